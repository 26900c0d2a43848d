"""A run's folder: whose it is, what is written there about config, code and machine, and what is
read back from it."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes

from cclf import __version__, presets
from cclf.config import Config
from cclf.errors import ConfigError
from cclf.storage import checkpoint, machine
from cclf.storage.atomic_files import atomic_write, folder_lock
from cclf.storage.migrations import migrate_config
from cclf.storage.safe_loading import (
    DATA_ERRORS,
    TENSOR_BYTES,
    check_same_structure,
    data_error_context,
    read_file,
    read_json,
)
from cclf.types import Learner, StateDict

PACKAGE = Path(__file__).resolve().parents[1]
WEIGHTS = "model.safetensors"  # of an agent that was shared, beside its config
VOLATILE_FIELDS = ("ms_per_frame",)  # of a manifest: another value is no other machine


@contextmanager
def create_run_folder(config: Config, out: Path) -> Iterator[Path]:
    """The run's folder, made or found, for this process alone, with its config in it. Refuses what
    `open_run_folder` refuses."""
    folder = out / config.run_name()
    with data_error_context(f"cannot use the run folder {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    with open_run_folder(config, out):
        with data_error_context(f"cannot use the run folder {folder}"):
            write_config(config, folder)
        yield folder


@contextmanager
def open_run_folder(config: Config, out: Path) -> Iterator[Path]:
    """A run's folder that is there, for this process alone; but for its lock nothing is written.
    Refuses one that holds another config, one that another process works in, and one that cannot
    be written."""
    folder = out / config.run_name()
    with ExitStack() as held:
        with data_error_context(f"cannot use the run folder {folder}"):
            held.enter_context(folder_lock(folder))
            _refuse_other_config(config, folder)
        yield folder


def write_config(config: Config, folder: Path) -> None:
    """Where there is none yet."""
    if not os.path.lexists(folder / "config.json"):
        atomic_write(
            folder / "config.json", (json.dumps(config.to_dict(), indent=2) + "\n").encode()
        )


def _refuse_other_config(config: Config, folder: Path) -> None:
    known = folder / "config.json"
    if not os.path.lexists(known):
        return
    before = read_config(folder).hashed_fields()
    now = config.hashed_fields()
    differing = [
        f"{key} ({before.get(key)} there, {now[key]} now)"
        for key in now
        if before.get(key) != now[key]
    ]
    if differing:
        raise ConfigError(
            f"{folder} holds a run of another config: {', '.join(differing)}; use another --out"
        )


def read_config(folder: Path) -> Config:
    known = folder / "config.json"
    if not os.path.lexists(known):
        raise ConfigError(f"{folder} is not a run folder: it holds no config.json")
    return read_config_file(known)


def read_config_file(known: Path) -> Config:
    try:
        with data_error_context(f"cannot read {known}"):
            return presets.from_dict(migrate_config(read_json(known)))
    except ConfigError as error:  # what a config refuses does not name its file
        line = str(error)
        raise ConfigError(line if str(known) in line else f"cannot read {known}: {line}") from error


def load_config_for_playing(folder: Path, trust_imports: bool) -> Config:
    """The config of a run folder whose environments and networks are to be made. A task
    gym/MODULE:ID makes Gymnasium import MODULE, an encoder MODULE:FUNCTION imports it too, and
    with that run its code: a file from a stranger may not ask for it, unless the user says so
    (`trust_imports`)."""
    config = read_config(folder)
    reject_imports(config, folder, trust_imports)
    return config


def reject_imports(
    config: Config,
    where: Path,
    trust_imports: bool,
    makes_env: bool = True,
) -> None:
    """Raise ConfigError if the run imports modules that are not trusted. The task's module is
    imported only if an environment is made."""
    for option, module in config.imported_modules.items():
        if not trust_imports and (makes_env or option != "task"):
            raise ConfigError(
                f"{where} asks for the {option} {config.imported_names[option]!r}, which imports "
                f"the Python module {module!r} and runs its code: "
                "add --trust-imports (in Python: trust_imports=True) if you trust it"
            )


def load_config_for_training(path: Path, trust_imports: bool) -> Config:
    """The config to train once more: of a run folder, or a file such as its config.json. Refuses
    imports as `load_config_for_playing` does, and names that are not known here."""
    config = read_config(path) if path.is_dir() else read_config_file(path)
    reject_imports(config, path, trust_imports)
    try:
        presets.validate_names(config)
    except ConfigError as error:
        raise ConfigError(f"cannot train {path}: {error}") from error
    return config


def read_checkpoint(folder: Path, frames: bool = True) -> StateDict:
    """The newest good state of a run; without `frames` those of a replay, nearly all of its bytes,
    are not read."""
    saved = checkpoint.load(folder / "checkpoint", frames)
    if saved is None:
        raise ConfigError(f"{folder} holds no checkpoint yet: train it first")
    with data_error_context(f"the checkpoint in {folder} is not that of a run"):
        check_same_structure(0, saved["agent_steps"], "agent_steps")
        check_same_structure(0, saved["learner"]["updates"], "updates")
    if frames and not saved.get(checkpoint.REPLAY_KEPT, True):
        raise ConfigError(
            f"{folder} kept no replay (--no-keep-replay): train it again without that option"
        )
    return saved


def read_weights(folder: Path) -> tuple[dict[str, torch.Tensor], int]:
    """Of an agent that was shared without its run: the networks, and the env steps it had seen."""
    with data_error_context(f"cannot read {folder / WEIGHTS}"):
        data = read_file(folder / WEIGHTS, TENSOR_BYTES)
        try:
            weights = tensors_from_bytes(data)
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        # a length, then names and what was written beside them
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return weights, int(header["__metadata__"]["env_steps"])


def write_manifest(
    config: Config, learner: Learner, device: torch.device, folder: Path, env_steps: int
) -> None:
    """Write down what runs in `folder` from this moment on, and where."""
    facts = append_history(_read_manifest(folder), manifest(config, learner, device), env_steps)
    for name, content in (("config.json", config.to_dict()), ("manifest.json", facts)):
        atomic_write(folder / name, (json.dumps(content, indent=2) + "\n").encode())


def append_history(
    before: dict[str, Any] | None, now: dict[str, Any], env_steps: int
) -> dict[str, Any]:
    """A manifest that keeps what it said of earlier rows: where code or machine changed at
    `env_steps`, `history` says so.

    Each entry there holds all facts, and counts for rows after its `from_env_steps`. Without a
    readable manifest from before, the commit of earlier rows is not known.

    >>> append_history({"commit": "a"}, {"commit": "b"}, 60)
    {'commit': 'a', 'history': [{'from_env_steps': 60, 'commit': 'b'}]}
    """
    if env_steps == 0:
        return now
    first = (
        now | {"commit": None}
        if before is None
        else {key: value for key, value in before.items() if key != "history"}
    )
    history = (
        []
        if before is None
        else [entry for entry in before.get("history", []) if entry["from_env_steps"] < env_steps]
    )
    last = history[-1] if history else first
    if any(last.get(key) != value for key, value in now.items() if key not in VOLATILE_FIELDS):
        history.append({"from_env_steps": env_steps, **now})
    return first | ({"history": history} if history else {})


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """None where there is none that can be read."""
    try:
        facts = read_json(folder / "manifest.json")
        steps = [entry["from_env_steps"] + 0 for entry in facts.get("history", [])]
    except (OSError, *DATA_ERRORS):
        return None
    return facts if isinstance(facts, dict) and steps == sorted(steps) else None


def manifest(config: Config, learner: Learner, device: torch.device) -> dict[str, Any]:
    """The facts about code and machine that a result must carry."""
    renderer = getattr(getattr(learner, "env", None), "renderer", None)
    return {
        "commit": code_version(),
        **machine.machine_info(),
        # with the build's +cu or +cpu, which the package's metadata leaves out
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        **(renderer(frames=5) if renderer else {"renderer": None}),
        "env_steps_per_agent_step": config.env.action_repeat,
    }


def code_version(package: Path = PACKAGE) -> str:
    """The commit this code runs from, `-dirty` where files differ; CCLF_COMMIT says it where code
    travels without its history.

    Only of a repository that holds this code: an environment may lie inside another one. Else the
    version of the package.
    """
    if "CCLF_COMMIT" in os.environ:
        return os.environ["CCLF_COMMIT"]

    def git(*words: str) -> str:
        command = ["git", "-C", str(package), *words]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return f"cclf {__version__}"
