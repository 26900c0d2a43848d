"""A trained agent as a folder to share: its weights as safetensors, its config and its model card.
`cclf.load`, `evaluate` and `play` accept such a folder as they accept a run folder."""

import contextlib
import os
import tempfile
from contextlib import closing
from pathlib import Path

import torch
from safetensors.torch import save as tensors_to_bytes

from cclf import __version__, model_card
from cclf.errors import ConfigError
from cclf.storage.atomic_files import write_output
from cclf.storage.run_folder import WEIGHTS, read_config, read_weights
from cclf.storage.safe_loading import TENSOR_BYTES, data_error_context, read_file
from cclf.training.agent import evaluation_networks, load_agent
from cclf.types import HasState

CARD, VIDEO = "README.md", "replay.mp4"  # names that model hubs expect
CPU = torch.device("cpu")


def write(folder: Path, out: Path, trust_imports: bool = False) -> list[Path]:
    """Write the agent of a run folder to the folder `out`, which is new, empty, or written by this
    function before; the weights are read back and must be those of the run, otherwise nothing is
    left."""
    _refuse_other_folder(out)
    evaluations = model_card.read_evaluations(folder)
    if not evaluations:
        raise ConfigError(
            f"{folder} has no evaluation yet, which a model card needs: train it first"
        )
    agent, _, env_steps = load_agent(folder, CPU, 1, trust_imports=trust_imports)
    with closing(agent):
        weights = _weights(agent.policy, folder)
    header = {"format": "pt", "cclf": __version__, "env_steps": str(env_steps)}
    files: dict[str, str | bytes] = {
        "config.json": read_file(folder / "config.json"),
        CARD: model_card.text(folder, read_config(folder), env_steps, evaluations),
        WEIGHTS: tensors_to_bytes(weights, metadata=header),
    }
    videos = sorted(folder.glob("episode-*.mp4"), key=lambda path: (len(path.name), path))
    if videos:
        with data_error_context(f"cannot read {videos[-1]}"):
            files[VIDEO] = read_file(videos[-1], TENSOR_BYTES)
    is_new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=out, prefix=".card-") as begun:
            made = Path(begun)
            for name, content in files.items():
                write_output(made / name, content)
            _refuse_other_weights(made, weights, trust_imports)
            for name in files:
                os.replace(made / name, out / name)
    except BaseException as error:
        if is_new:
            with contextlib.suppress(OSError):
                out.rmdir()
        if isinstance(error, OSError):  # it names a temporary file
            raise OSError(error.errno, error.strerror or str(error), str(out)) from error
        raise
    return [out / name for name in sorted(files)]


def _refuse_other_folder(out: Path) -> None:
    """Raise ConfigError for a folder with other files, such as a project with its own README.md."""
    if (out / "checkpoint").exists():
        raise ConfigError(f"cannot write {out}: it is a run folder; name another one")
    if not out.exists() or not any(out.iterdir()):
        return
    try:
        read_weights(out)
    except ConfigError as error:
        raise ConfigError(
            f"cannot write {out}: it holds files that are not of an exported agent; name a new or "
            "an empty folder"
        ) from error


def _weights(policy: HasState, folder: Path) -> dict[str, torch.Tensor]:
    """The tensors that an evaluation uses, on the CPU."""
    state = evaluation_networks(policy).state_dict()
    if not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ConfigError(
            f"the base algorithm of {folder} has state other than tensors, which a model card cannot hold"
        )
    return {name: value.detach().cpu().clone().contiguous() for name, value in state.items()}


def _refuse_other_weights(
    made: Path, weights: dict[str, torch.Tensor], trust_imports: bool
) -> None:
    agent, _, _ = load_agent(made, CPU, 1, trust_imports=trust_imports)
    with closing(agent):
        found = _weights(agent.policy, made)
    if not all(torch.equal(found[name], value) for name, value in weights.items()):
        raise ConfigError("the written weights are not those of the run: nothing is left")
