"""`cclf bench parity`: a fast precision held against plain float32 at the weights and on the replay of a trained run."""

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cclf import build, devices, equations
from cclf.algorithms.sac import Sac, SacNoise
from cclf.algorithms.sac_lean import lean_update
from cclf.bench import header
from cclf.config import Config, ConfigError, Precision, SacConfig
from cclf.from_disk import refused_as
from cclf.run_folder import playable_config
from cclf.runtime.learner import OffPolicyLearner
from cclf.types import Batch


def parity(
    folder: Path, precision: Precision, device_name: str, batches: int, updates: int, trust_imports: bool = False
) -> dict[str, Any]:
    """A fast precision against plain float32 at the weights and on the replay of a trained run.

    First without moving anything: gradients tensor by tensor, beliefs, chosen crops, targets. Then `updates` updates from there,
    once in `precision` and three times in float32 with other random numbers: whether the fast one lies among them.
    """
    device = devices.choose_device(device_name)
    asked = playable_config(folder, trust_imports)

    def of(precision: Precision, plain: bool = False) -> Config:
        assert isinstance(asked.algorithm, SacConfig), "checked before"
        run = replace(asked.run, env_steps=10**7, compile=asked.run.compile and not plain)
        return replace(asked, algorithm=replace(asked.algorithm, precision=precision), run=run)

    def restored(precision: Precision, plain: bool = False) -> OffPolicyLearner:
        config = of(precision, plain)
        devices.set_precision(config, device)
        with refused_as(f"cannot make the run of {folder}"):
            training, learner, agent = build.make_training(config, folder, device)
        agent.close()
        if not training.resume():
            raise ConfigError(f"{folder} holds no checkpoint yet: train it first")
        assert isinstance(learner, OffPolicyLearner), "SAC learns from replay"
        return learner

    if not isinstance(asked.algorithm, SacConfig):
        raise ConfigError(f"{folder} was not trained with SAC: precision is a matter of its pixels alone")
    report = header(asked.task, precision, device) | {"run": asked.run_name(), "batches": batches}
    fast, plain = restored(precision), restored("fp32", plain=True)
    report["run_updates"] = fast.updates
    cosines: dict[str, dict[str, float]] = {"gradient_cosine": {}, "gradient_cosine_on_the_same_crops": {}}
    crops, beliefs, targets = [], [], []
    for _ in range(batches):
        batch = plain.replay.sample(plain.batch_size, plain.generators["replay"]).to(device)
        noise = plain.algorithm.draw_noise(plain.batch_size, plain.generators["augment"], plain.generators["policy"])
        devices.set_precision(of("fp32"), device)
        with _choices() as made:
            exact = _gradients(plain, Sac.update, batch, noise)
        devices.set_precision(of(precision), device)
        free = _gradients(fast, lean_update, batch, noise)
        with _choices(made):
            held = _gradients(fast, lean_update, batch, noise)
        for least, ours in zip(cosines.values(), (free, held), strict=True):
            for name, theirs in exact.gradients.items():
                pair = (ours.gradients[name].double().flatten(), theirs.double().flatten())
                cosine = float(torch.cosine_similarity(*pair, dim=0)) if theirs.any() else 1.0
                least[name] = min(cosine, least.get(name, 1.0))
        crops.append(float((free.chosen == exact.chosen).float().mean()))
        beliefs.append(float((free.curiosity - exact.curiosity).abs().mean()))
        targets.append(float((free.target - exact.target).abs() / exact.target.abs()))
    fast.close()
    plain.close()
    report |= cosines | {
        "same_crop_share": statistics.mean(crops),
        "belief_mean_absolute_error": statistics.mean(beliefs),
        "target_mean_relative_error": statistics.mean(targets),
    }
    after = {}
    for stream, label in enumerate([precision, "fp32 (1)", "fp32 (2)", "fp32 (3)"]):
        learner = restored(precision if stream == 0 else "fp32")
        for name in ("replay", "augment", "policy"):
            learner.generators[name].manual_seed(stream)
        rows = [learner.update(0) for _ in range(updates)]
        names = ("critic_loss", "contrastive_loss", "curiosity_mean", "q_mean")
        last = [row for row in rows[-max(1, updates // 3) :] if row is not None]
        after[label] = {name: statistics.mean(float(row[name]) for row in last) for name in names if name in last[0]}
        learner.close()
    return report | {"updates": updates, "after_updates": after}


@contextlib.contextmanager
def _choices(forced: Sequence[Tensor] = ()) -> Iterator[list[Tensor]]:
    """The crops that are chosen meanwhile, in turn; or these instead of them."""
    choose, given, made = equations.select_most_curious, iter(forced), list[Tensor]()

    def chosen(beliefs: Tensor) -> Tensor:
        made.append(next(given) if forced else choose(beliefs))
        return made[-1]

    equations.select_most_curious = chosen
    try:
        yield made
    finally:
        equations.select_most_curious = choose


class _Seen(NamedTuple):
    gradients: dict[str, Tensor]  # by loss and parameter
    chosen: Tensor
    curiosity: Tensor
    target: Tensor


def _gradients(learner: OffPolicyLearner, run: Callable[..., Any], batch: Batch, noise: SacNoise) -> _Seen:
    """What one update would do, without doing it. Its appraisal is looked into, and so is not a compiled one."""
    sac = learner.algorithm
    assert isinstance(sac, Sac), "checked before"
    names = {parameter: name for name, parameter in sac.networks.named_parameters()} | {sac.log_temperature: "log_temperature"}
    found: dict[str, Tensor] = {}
    appraisals = []
    appraise, updates = sac.framework.appraise, sac.updates

    def record(loss: Tensor, *optimisers: str) -> None:
        owner = {p: name for name in optimisers for group in sac.optimisers[name].param_groups for p in group["params"]}
        for parameter, gradient in zip(owner, torch.autograd.grad(loss, list(owner)), strict=True):
            found[f"{owner[parameter]}: {names[parameter]}"] = gradient

    def keep(*arguments: Any, **named: Any) -> Any:
        appraisals.append(appraise(*arguments, **named))
        return appraisals[-1]

    state = {name: buffer.clone() for name, buffer in sac.framework.named_buffers()}
    sac.framework.appraise, sac._step, sac.target_step, sac.updates = keep, record, lambda: None, 0  # type: ignore[method-assign]
    try:
        metrics = run(sac, batch, noise, learner._moment).metrics
    finally:
        del sac.framework.appraise, sac._step, sac.target_step
        sac.updates = updates
        for name, buffer in sac.framework.named_buffers():
            buffer.copy_(state[name])
    return _Seen(found, appraisals[0].chosen, appraisals[0].curiosity, metrics["target_mean"])
