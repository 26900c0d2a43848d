"""The cache folder of compiled code, which processes share."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # read by PyTorch's compiler


def set_compile_cache() -> Path | None:
    """Set the cache folder of PyTorch's compiler to one in the user's cache, unless the environment
    variable is set. PyTorch's default is in /tmp, which is lost at a restart. Returns the folder, or None
    if it is not writable."""
    if _VARIABLE in os.environ:
        return Path(os.environ[_VARIABLE])
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = caches / "cclf" / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home directory
        return None
    if not os.access(folder, os.W_OK):
        return None
    os.environ[_VARIABLE] = str(folder)
    return folder


def cached(compute: Callable[[], bytes], *inputs: str) -> bytes:
    """The result of `compute`, which depends on `inputs` only: read from the cache if it is there,
    otherwise computed and stored."""
    folder = set_compile_cache()
    if folder is None:
        return compute()
    path = folder / "cclf" / hashlib.sha256("\0".join(inputs).encode()).hexdigest()
    try:
        return path.read_bytes()
    except OSError:
        pass  # not cached yet
    result = compute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(result)
        os.replace(file.name, path)  # atomic: other processes may write the same file now
    except OSError:
        pass  # on a full disk the next process compiles again
    return result
