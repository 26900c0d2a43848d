"""Agents by name, in place of a run folder: `pretrained/NAME`, which this package contains, and
`hf:USER/NAME`, which is on the Hugging Face Hub. Both hold safetensors and JSON, never a pickle."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from cclf.errors import ConfigError, did_you_mean, require_extras, short_error

PRETRAINED = Path(__file__).parent / "pretrained"
HUB_PREFIX = "hf:"
# The files of an exported agent, which must have the first two.
FILES = ("config.json", "model.safetensors", "README.md", "replay.mp4")
PICKLE_SUFFIXES = {".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pth"}


def find_agent(run: Path) -> Path:
    """The folder of a named agent. A path that exists or is no such name is returned unchanged."""
    if str(run).startswith(HUB_PREFIX):
        return _download(str(run))
    if run.parts[:1] != (PRETRAINED.name,) or run.exists():
        return run
    known = sorted(f"pretrained/{path.parent.name}" for path in PRETRAINED.glob("*/config.json"))
    if run.as_posix() not in known:
        hint = did_you_mean(run.as_posix(), known)
        raise ConfigError(f"unknown agent {run}{hint} (there are: {', '.join(known)})")
    return PRETRAINED / run.name


def output_folder(run: Path, name: Path) -> Path:
    """The default folder for files that a command writes about an agent, such as a video: its run
    folder `run`, or the working directory for an agent of this package or of the hub. `name` is the
    argument for which `find_agent` returned `run`."""
    is_named = PRETRAINED in run.parents or str(name).startswith(HUB_PREFIX)
    return Path() if is_named else run


def push(folder: Path, name: str, trust_imports: bool = False) -> str:
    """Upload the agent of a run folder, or an exported one, to `hf:USER/NAME` and return its
    URL."""
    repository, _ = _repository(name)
    hub = _import_hub("cclf push")
    with tempfile.TemporaryDirectory() as temporary:
        exported = Path(temporary) / "agent"
        if (folder / "checkpoint").exists():
            from cclf import share

            share.write(folder, exported, trust_imports)
        else:
            _copy_exported(folder, exported)
        with _hub_errors(name):
            hub.create_repo(repository, exist_ok=True)
            hub.upload_folder(
                repo_id=repository, folder_path=str(exported), commit_message="Agent of cclf"
            )
    return f"https://huggingface.co/{repository}"


def _copy_exported(folder: Path, out: Path) -> None:
    from cclf.storage.run_folder import read_config, read_weights

    read_config(folder)
    read_weights(folder)
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise ConfigError(
            f"{folder} holds {pickles[0]}, a pickle, and loading a pickle runs code: remove it"
        )
    out.mkdir()
    for file in FILES:
        if (folder / file).exists():
            shutil.copy(folder / file, out)


def _download(name: str) -> Path:
    repository, revision = _repository(name)
    hub = _import_hub(name)
    with _hub_errors(name):  # files of other names, such as pickles, are not downloaded
        folder = Path(
            hub.snapshot_download(repository, revision=revision, allow_patterns=list(FILES))
        )
    missing = [file for file in FILES[:2] if not (folder / file).exists()]
    if missing:
        raise ConfigError(
            f"{name} has no {' and no '.join(missing)}: it is not an agent that cclf exported "
            "(pickles are not loaded)"
        )
    return folder


def _repository(name: str) -> tuple[str, str | None]:
    """The repository and the revision of `hf:USER/NAME` or `hf:USER/NAME@REVISION`."""
    repository, _, revision = name.removeprefix(HUB_PREFIX).partition("@")
    if not (name.startswith(HUB_PREFIX) and re.fullmatch(r"[\w.-]+/[\w.-]+", repository)):
        raise ConfigError(f"{name!r:.60} must have the form hf:USER/NAME")
    return repository, revision or None


def _import_hub(purpose: str) -> ModuleType:
    require_extras(purpose, ["hub"])
    import huggingface_hub

    hub: ModuleType = huggingface_hub
    return hub


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Report an error of the hub, such as a missing repository or no network, as one line."""
    try:
        yield
    except Exception as error:  # huggingface_hub also raises errors of HTTP libraries
        raise ConfigError(f"cannot access {name}: {short_error(error)}") from error
