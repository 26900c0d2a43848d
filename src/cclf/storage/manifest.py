"""manifest.json: the code and the machine that produced the rows of a run, and the env steps at
which they changed."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import torch

from cclf import __version__
from cclf.config import Config
from cclf.storage.atomic_files import write_json
from cclf.storage.machine import MachineInfo, RendererInfo, machine_info
from cclf.storage.safe_loading import DATA_ERRORS, data_error_context, read_json
from cclf.types import Learner, StateDict

PACKAGE = Path(__file__).resolve().parents[1]
MANIFEST = "manifest.json"
VOLATILE_FIELDS = ("ms_per_frame",)  # measurements, whose change does not mean another machine


class Manifest(MachineInfo, RendererInfo):
    commit: str
    torch: str
    threads: int
    device: str
    env_steps_per_agent_step: int


class Origin(TypedDict):
    """Provenance of the figures of a benchmark."""

    device: str
    torch: str
    commit: str
    command: str


def manifest(config: Config, learner: Learner, device: torch.device) -> Manifest:
    measure = getattr(getattr(learner, "env", None), "renderer_facts", None)
    renderer: RendererInfo = measure(frames=5) if measure else {"renderer": None}
    return {
        "commit": code_version(),
        **machine_info(),
        "torch": torch.__version__,  # with the build, such as +cpu
        "threads": torch.get_num_threads(),
        "device": _device_name(device),
        **renderer,
        "env_steps_per_agent_step": config.env.action_repeat,
    }


def origin(device: torch.device) -> Origin:
    return Origin(
        device=_device_name(device),
        torch=torch.__version__,
        commit=code_version(),
        command=" ".join(["cclf", *sys.argv[1:]]),
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def code_version(package: Path = PACKAGE) -> str:
    """The commit of this code, with `-dirty` if files differ, or CCLF_COMMIT if it is set.

    The version of the package if no repository tracks its files: a virtual environment may be
    inside an unrelated repository.
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


def write_manifest(
    config: Config, learner: Learner, device: torch.device, folder: Path, env_steps: int
) -> None:
    """Write config.json and manifest.json of a run that starts or resumes at `env_steps`."""
    now = manifest(config, learner, device)
    with data_error_context(f"cannot use the run folder {folder}"):
        write_json(folder / "config.json", config.to_dict())
        write_json(folder / MANIFEST, append_history(_read_manifest(folder), now, env_steps))


def append_history(
    before: StateDict | None, now: Mapping[str, object], env_steps: int
) -> StateDict:
    """The manifest `before`, with `now` in its `history` if code or machine changed at `env_steps`.

    Each entry of `history` has all facts of the rows after its `from_env_steps`. Without a readable
    manifest from before, the commit of earlier rows is unknown.

    >>> append_history({"commit": "a"}, {"commit": "b"}, 60)
    {'commit': 'a', 'history': [{'from_env_steps': 60, 'commit': 'b'}]}
    """
    if env_steps == 0:
        return dict(now)
    first: StateDict = {**now, "commit": None} if before is None else dict(before)
    history = [entry for entry in first.pop("history", []) if entry["from_env_steps"] < env_steps]
    last = history[-1] if history else first
    if any(last.get(key) != value for key, value in now.items() if key not in VOLATILE_FIELDS):
        history.append({"from_env_steps": env_steps, **now})
    return first | ({"history": history} if history else {})


def _read_manifest(folder: Path) -> StateDict | None:
    """The manifest of a run folder, None if it cannot be read."""
    try:
        saved: StateDict = read_json(folder / MANIFEST)
        # Adding 0 raises TypeError if the value is not a number.
        steps = [entry["from_env_steps"] + 0 for entry in saved.get("history", [])]
    except (OSError, *DATA_ERRORS):
        return None
    return saved if isinstance(saved, dict) and steps == sorted(steps) else None
