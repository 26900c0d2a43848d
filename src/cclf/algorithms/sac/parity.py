"""`cclf bench parity`: a fast precision held against plain float32 at the weights and on the replay
of a trained run."""

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cclf.algorithms.common.off_policy import OffPolicyLearner
from cclf.algorithms.sac.learner import make_algorithm, make_learner
from cclf.algorithms.sac.parts import SacNoise
from cclf.config import Config, Precision
from cclf.errors import ConfigError
from cclf.storage.provenance import header
from cclf.storage.run_folder import read_checkpoint
from cclf.training import devices
from cclf.types import Batch, MakeEnv

# Adam's first moment after one step is the gradient times 1 - beta1; rates so small leave every
# weight where it is.
STILL = {
    **dict.fromkeys(
        ("learning_rate", "contrastive_learning_rate", "temperature_learning_rate"), 1e-30
    ),
    **dict.fromkeys(("q_ema_rate", "encoder_ema_rate"), 0.0),
}


def parity(
    asked: Config,
    folder: Path,
    make_env: MakeEnv,
    precision: Precision,
    device: torch.device,
    batches: int,
    updates: int,
) -> dict[str, Any]:
    """A fast precision against plain float32 at the weights and on the replay of a trained run.

    First without moving anything: gradients tensor by tensor, beliefs, chosen crops, targets. Then
    `updates` updates from there, once in `precision` and three times in float32 with other random
    numbers: whether the fast one lies among them.
    """
    if asked.env.observe != "pixels":
        raise ConfigError(
            f"{folder} has observe={asked.env.observe}: precisions are those of convolutions, and "
            "it has none"
        )
    fast, plain = (
        _restored(_with(asked, name), folder, make_env, device) for name in (precision, "fp32")
    )
    report = header(asked.task, precision, device) | {"run": asked.run_name(), "batches": batches}
    report["run_updates"] = fast.updates
    readers = (
        _Reader(_with(asked, precision), fast),
        _Reader(_with(asked, "fp32", compiles=False), plain),
    )
    cosines: dict[str, dict[str, float]] = {
        "gradient_cosine": {},
        "gradient_cosine_on_the_same_crops": {},
    }
    crops, beliefs, targets = [], [], []
    for _ in range(batches):
        batch, noise = plain.draw()
        batch = batch.to(device)
        ours, exact = (reader.read(batch, noise) for reader in readers)
        crops.append(float((ours.chosen == exact.chosen).float().mean()))
        beliefs.append(float((ours.curiosity - exact.curiosity).abs().mean()))
        targets.append(float((ours.target - exact.target).abs() / exact.target.abs()))
        _keep_least(cosines["gradient_cosine"], ours, exact)
        only = noise._replace(
            origins=_nothing_to_choose(noise.origins, exact.chosen),
            next_origins=_nothing_to_choose(noise.next_origins, exact.next_chosen),
        )
        _keep_least(
            cosines["gradient_cosine_on_the_same_crops"],
            *(reader.read(batch, only) for reader in readers),
        )
    fast.close()
    plain.close()
    report |= cosines | {
        "same_crop_share": statistics.mean(crops),
        "belief_mean_absolute_error": statistics.mean(beliefs),
        "target_mean_relative_error": statistics.mean(targets),
    }
    after = {}
    for stream, label in enumerate([precision, "fp32 (1)", "fp32 (2)", "fp32 (3)"]):
        learner = _restored(
            _with(asked, precision if stream == 0 else "fp32"), folder, make_env, device
        )
        after[label] = _losses_after(learner, stream, updates)
        learner.close()
    return report | {"updates": updates, "after_updates": after}


def _with(asked: Config, precision: Precision, compiles: bool = True) -> Config:
    run = replace(asked.run, env_steps=10**7, compile=asked.run.compile and compiles)
    return replace(asked, algorithm=replace(asked.algorithm, precision=precision), run=run)


def _restored(
    config: Config, folder: Path, make_env: MakeEnv, device: torch.device
) -> OffPolicyLearner:
    devices.set_precision(config, device)
    learner = make_learner(config, device, make_env)
    learner.load_state_dict(read_checkpoint(folder)["learner"])
    return learner


def _losses_after(learner: OffPolicyLearner, stream: int, updates: int) -> dict[str, float]:
    """Means over the last third of so many updates with random numbers of their own."""
    for name in ("replay", "augment", "policy"):
        learner.generators[name].manual_seed(stream)
    rows = [learner.update(0) for _ in range(updates)]
    last = [row for row in rows[-max(1, updates // 3) :] if row is not None]
    names = ("critic_loss", "contrastive_loss", "curiosity_mean", "q_mean")
    return {
        name: statistics.mean(float(row[name]) for row in last) for name in names if name in last[0]
    }


class Reading(NamedTuple):
    """What one update would do."""

    gradients: dict[str, Tensor]  # by optimiser and parameter
    chosen: Tensor
    next_chosen: Tensor
    curiosity: Tensor
    target: Tensor


class _Reader:
    """An agent that computes as its config says, with the weights of a learner, and does not
    move."""

    def __init__(self, config: Config, learner: OffPolicyLearner):
        self.config, self.device = config, learner.device
        still = replace(config, algorithm=replace(config.algorithm, **STILL))
        self.sac = make_algorithm(still, learner.env.spec, self.device)
        self.state = {
            name: value.clone() for name, value in learner.algorithm.networks.state_dict().items()
        }
        self.log_temperature = learner.algorithm.state_dict()["log_temperature"].clone()

    def read(self, batch: Batch, noise: SacNoise) -> Reading:
        devices.set_precision(self.config, self.device)
        sac, env_steps = self.sac, torch.zeros((), dtype=torch.float64, device=self.device)
        self._restore()
        appraisal, _, _ = sac.compute.appraise(
            sac, sac.encode(batch, noise), batch, noise, env_steps
        )
        self._restore()  # appraising moved the running maxima
        metrics = sac.update(batch, noise, env_steps).metrics
        chosen = (
            appraisal.chosen.clone(),
            appraisal.next_chosen.clone(),
            appraisal.curiosity.clone(),
        )
        return Reading(self._gradients(), *chosen, metrics["target_mean"])

    def _restore(self) -> None:
        self.sac.networks.load_state_dict(self.state)
        self.sac.log_temperature.data.copy_(self.log_temperature)
        for optimiser in self.sac.optimisers.values():
            optimiser.state.clear()
        self.sac.count_updates(0)

    def _gradients(self) -> dict[str, Tensor]:
        names: dict[Tensor, str] = {
            parameter: name for name, parameter in self.sac.networks.named_parameters()
        }
        names[self.sac.log_temperature] = "log_temperature"
        found: dict[str, Tensor] = {}
        for owner, optimiser in self.sac.optimisers.items():
            if owner == "encoder":  # it steps with the gradients of "contrastive"
                continue
            share = 1.0 - optimiser.settings["betas"][0]
            for place, state in optimiser.state.items():
                name = names[optimiser.parameters[place]]
                found[f"{owner}: {name}"] = state["exp_avg"].clone() / share
        return found


def _nothing_to_choose(origins: Tensor, chosen: Tensor) -> Tensor:
    """Corners (K, B, 2) of which all but the anchor's are those of the chosen view: whichever is
    taken, it is that one."""
    if len(origins) < 2:
        return origins
    taken = origins[
        chosen.clamp(max=len(origins) - 1), torch.arange(origins.shape[1], device=origins.device)
    ]
    return torch.cat([origins[:1], taken.expand(len(origins) - 1, -1, -1)])


def _keep_least(cosines: dict[str, float], ours: Reading, exact: Reading) -> None:
    for name, theirs in exact.gradients.items():
        pair = (ours.gradients[name].double().flatten(), theirs.double().flatten())
        cosine = float(torch.cosine_similarity(*pair, dim=0)) if theirs.any() else 1.0
        cosines[name] = min(cosine, cosines.get(name, 1.0))
