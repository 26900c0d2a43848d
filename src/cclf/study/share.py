"""A trained agent as a folder to share: its weights as safetensors, its config and its card.
`cclf.load`, `evaluate` and `play` take such a folder as they take a run folder."""

import os
import shutil
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as tensors_to_bytes

from cclf import __version__, build
from cclf.errors import ConfigError
from cclf.runtime.run_folder import WEIGHTS, read_config
from cclf.study import card

CARD, VIDEO = "README.md", "replay.mp4"  # names that hubs know
CPU = torch.device("cpu")


def write(folder: Path, out: Path, trust_imports: bool = False) -> list[Path]:
    """Write the agent of a run folder to the folder `out`; the weights are read back and must be
    those of the run, otherwise nothing is left."""
    if (out / "checkpoint").exists():
        raise ConfigError(f"cannot write {out}: it is a run folder; name another one")
    evaluations = card.evaluations_of(folder)
    if not evaluations:
        raise ConfigError(f"{folder} has no evaluation yet: a card says what an agent reached")
    agent, _, env_steps = build.load_agent(folder, CPU, 1, trust_imports=trust_imports)
    with closing(agent):
        weights = _weights(agent.policy, folder)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".card-") as begun:
        made = Path(begun)
        header = {"format": "pt", "cclf": __version__, "env_steps": str(env_steps)}
        (made / WEIGHTS).write_bytes(tensors_to_bytes(weights, metadata=header))
        shutil.copyfile(folder / "config.json", made / "config.json")
        _refuse_other_weights(made, weights, trust_imports)
        (made / CARD).write_text(card.text(folder, read_config(folder), env_steps, evaluations))
        videos = sorted(folder.glob("episode-*.mp4"), key=lambda path: (len(path.name), path))
        if videos:
            shutil.copyfile(videos[-1], made / VIDEO)
        files = sorted(path.name for path in made.iterdir())
        for name in files:
            os.replace(made / name, out / name)
    return [out / name for name in files]


def _weights(policy: Any, folder: Path) -> dict[str, torch.Tensor]:
    """What an evaluation takes a copy of, on the CPU."""
    state = build.networks_of(policy).state_dict()
    if not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ConfigError(f"the base algorithm of {folder} keeps more than tensors: no card of it")
    return {name: value.detach().cpu().clone().contiguous() for name, value in state.items()}


def _refuse_other_weights(
    made: Path, weights: dict[str, torch.Tensor], trust_imports: bool
) -> None:
    agent, _, _ = build.load_agent(made, CPU, 1, trust_imports=trust_imports)
    with closing(agent):
        found = _weights(agent.policy, made)
    if not all(torch.equal(found[name], value) for name, value in weights.items()):
        raise ConfigError("the written weights are not those of the run: nothing is left")
