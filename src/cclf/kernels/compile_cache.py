"""Where compiled code is kept from one process to the next."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

_FOLDER = "TORCHINDUCTOR_CACHE_DIR"  # PyTorch's own name for it


def set_compile_cache() -> Path | None:
    """The folder of all that is compiled, PyTorch's compiler told of it: with the user's other
    caches, unless told otherwise. PyTorch's own place is in /tmp, where a restart takes it away."""
    if _FOLDER in os.environ:
        return Path(os.environ[_FOLDER])
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = caches / "cclf" / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # nobody's home
        return None
    if not os.access(folder, os.W_OK):
        return None
    os.environ[_FOLDER] = str(folder)
    return folder


def cached(make: Callable[[], bytes], *made_from: str) -> bytes:
    """What `make` makes of these texts and of nothing else: made once, then read. Where nothing can
    be kept it is made each time."""
    folder = set_compile_cache()
    if folder is None:
        return make()
    path = folder / "cclf" / hashlib.sha256("\0".join(made_from).encode()).hexdigest()
    try:
        return path.read_bytes()
    except OSError:
        pass  # not there yet
    made = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(made)
        os.replace(file.name, path)  # whole or not there, whoever else makes it now
    except OSError:
        pass  # a full disk costs seconds, not the run
    return made
