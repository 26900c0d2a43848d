"""The gallery of Rainbow on games: transitions drawn from replay as training draws them, with views shifted as it shifts them.

What came next is what came n steps later, and blank where the episode ended before.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cclf import build
from cclf.algorithms.rainbow import Rainbow, RainbowNoise
from cclf.algorithms.rainbow_stack import RainbowStack
from cclf.analysis.gallery import About, Gallery, Glance, Look, Measure, View
from cclf.augment import Views
from cclf.config import Config, ConfigError, RainbowConfig
from cclf.framework import Appraisal
from cclf.gallery.samples import (
    NEIGHBOURS,
    SIDES,
    again_remark,
    beliefs,
    ends,
    glance,
    kept_maxima,
    look,
    rarity,
    rungs,
    transition_curiosity,
)
from cclf.replay_nstep import NStepReplay
from cclf.runtime.seeding import derive
from cclf.types import GameBatch

Pair = tuple[Views, Views]  # of o_t and o_(t+n)


def gallery(about: About, config: Config, learner: dict[str, Any], samples: int, env_steps: Tensor) -> Gallery:
    stack, rainbow, replay = load(config, learner, env_steps.device)
    parts = []
    for number in range(math.ceil(samples / stack.batch_size)):
        batch, noise = draw(stack, replay, 2 * number)
        pair, appraisal = appraise(rainbow, batch, noise, env_steps)
        _, again = appraise(rainbow, batch, of_one(stack, 2 * number + 1), env_steps)  # with other shifts: what is their luck?
        parts.append(columns(rainbow, batch, noise, pair, appraisal) | {"again": transition_curiosity(again)})
    table = {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}
    slot, curiosity = table["slot"], table["curiosity"]
    drawable = replay.drawable()[0].numpy()
    live = np.flatnonzero(drawable)
    # Beliefs rank finer than curiosity: 1 - belief rounds to 1 for every tiny belief.
    most, least = ends(-table["belief"] - table["next_belief"], slot)
    show = LookMaker(rainbow, replay, table)
    prioritised = rainbow.framework.prioritisation
    return Gallery(
        about,
        drawn=f"{len(slot):,} transitions of {replay.n_steps} steps, drawn from replay as training draws them, in batches of "
        f"{stack.batch_size}.",
        curiosity_name="(c + c′)/2",
        curiosity=curiosity,
        measures=_measures(table, replay),
        most=[show(row) for row in most],
        least=[show(row) for row in least],
        ladder=[(_stacks(replay, slot[row])[0][-1], float(curiosity[row])) for row in rungs(curiosity)],
        remarks=_remarks(rainbow, replay, table),
        priorities=drawable[live] if prioritised else None,
        ages=_age(replay, live) if prioritised else None,
    )


def load(config: Config, learner: dict[str, Any], device: torch.device) -> tuple[RainbowStack, Rainbow, NStepReplay]:
    """A stack that draws random numbers, the networks, and the replay of a checkpoint; without its game."""
    rainbow, state, env = config.algorithm, learner["replay"], config.env
    assert isinstance(rainbow, RainbowConfig), "chosen by the type of its config"
    networks, maxima = learner["algorithm"]["networks"], learner["algorithm"]["maxima"]
    num_actions = len(networks["online.head.layers.1.bias_mean"]) // (rainbow.atoms if rainbow.distributional else 1)
    module = build.make_rainbow(config, num_actions).to(device)
    module.load_state_dict(module.state_dict() | networks | maxima)
    # A stream of numbers of its own, which the run's seed decides.
    stack = build.make_rainbow_stack([replace(config, seed=derive(config.seed, "inspect"))], [num_actions], device)
    replay = NStepReplay(
        1,
        min(rainbow.replay_capacity_transitions, max(1, config.planned_agent_steps)),
        (env.frame_pixels, env.frame_pixels),
        env.frame_stack,
        rainbow.n_steps,
        rainbow.discount,
        rainbow.n_step_slip,
        torch.device("cpu"),
    )
    replay.load_run_state(0, state)
    if not replay.drawable().any():
        raise ConfigError("the replay of this run holds nothing to draw yet: train it first")
    return stack, module, replay


def draw(stack: RainbowStack, replay: NStepReplay, moment: int) -> tuple[GameBatch, RainbowNoise]:
    """A batch of one run and the noise of its update, of a moment of this stream."""
    uniform, _ = stack.draw(torch.tensor(moment, device=stack.device))
    batch = replay.sample(uniform["replay"].cpu())
    return GameBatch(*(tensor[0].to(stack.device) for tensor in batch)), of_one(stack, moment)


def of_one(stack: RainbowStack, moment: int) -> RainbowNoise:
    """The noise of the views, of the only run in the stack."""
    _, noise = stack.draw(torch.tensor(moment, device=stack.device))
    names = ("shifts", "next_shifts", "intensity", "next_intensity")
    return noise._replace(**{name: getattr(noise, name)[0] for name in names})


def appraise(rainbow: Rainbow, batch: GameBatch, noise: RainbowNoise, env_steps: Tensor) -> tuple[Pair, Appraisal]:
    """Views of o_t and o_(t+n) as an update shifts them, and what it would make of them."""
    pair = (
        rainbow.views(batch.observation, noise.shifts, noise.intensity),
        rainbow.views(batch.next_observation, noise.next_shifts, noise.next_intensity),
    )
    with torch.no_grad(), kept_maxima(rainbow.framework):
        return pair, rainbow.framework.appraise(*pair, batch.reward, env_steps, rainbow.query, rainbow.key)


def columns(rainbow: Rainbow, batch: GameBatch, noise: RainbowNoise, pair: Pair, appraisal: Appraisal) -> dict[str, Tensor]:
    """All numbers about a batch, samples first, and the newest frame of each view."""
    priority = rainbow.framework.priority(batch.priority, appraisal)
    found = {
        "slot": batch.slot,
        "action": batch.action,
        "reward": batch.reward,
        "n_step_return": batch.n_step_return,
        "blank": batch.next_observation.flatten(1).amax(1) == 0,
        "priority": batch.priority,
        "new_priority": batch.priority if priority is None else priority,
        "curiosity": transition_curiosity(appraisal),
        "bonus": appraisal.bonus,
        "rarity": rarity(batch.observation),
    }
    everyone = torch.arange(len(batch.reward), device=batch.reward.device)
    for side, views in zip(SIDES, pair, strict=True):
        chosen = getattr(appraisal, f"{side}chosen")
        believed = beliefs(rainbow.framework, views, chosen, batch.slot, rainbow.query, rainbow.key)
        apart = shift_apart(rainbow, getattr(noise, f"{side}shifts"))  # (K-1, B)
        found |= {f"{side}{name}": values for name, values in believed.items()} | {
            f"{side}pictures": views.images[:, :, -1].clamp(0, 255).byte().transpose(0, 1),
            f"{side}chosen": chosen,
            f"{side}c": getattr(appraisal, f"{side}curiosity"),
            f"{side}second_weight": getattr(appraisal, f"{side}weights")[-1],
            f"{side}apart": apart[chosen - 1, everyone],
            f"{side}lies_furthest": apart[chosen - 1, everyone] == apart.max(0).values,
        }
    return found


def shift_apart(rainbow: Rainbow, shifts: Tensor) -> Tensor:
    """How far the middle of each view lies from the anchor's, in pixels along both axes: (K-1, B)."""
    middles = torch.stack([place[..., place.shape[-1] // 2] for place in rainbow.places(shifts)])  # (2, K, B)
    return (middles[:, 1:] - middles[:, :1]).abs().sum(0).float()


def _measures(table: dict[str, np.ndarray], replay: NStepReplay) -> list[Measure]:
    slot = table["slot"]
    distance = f"distance in pixels to the {NEIGHBOURS} nearest observations of its batch"
    apart = (table["apart"] + table["next_apart"]) / 2.0
    return [
        Measure("rarity", table["rarity"], distance, novelty=1),
        Measure("age", _age(replay, slot).astype(float), "agent steps since it happened", novelty=-1),
        Measure("step in the episode", replay.ages[0].numpy()[slot].astype(float), "agent steps since its episode began"),
        Measure("reward", table["reward"], "what the game paid in its first step, clipped as in training"),
        Measure(f"{replay.n_steps}-step return", table["n_step_return"], "what its steps were paid together, discounted"),
        Measure("shift", apart, "pixels by which the chosen view lies off the anchor, mean of both observations"),
        Measure("priority", table["priority"], "before this batch: a long memory of curiosity when it was drawn before"),
    ]


def _remarks(rainbow: Rainbow, replay: NStepReplay, table: dict[str, np.ndarray]) -> list[str]:
    remarks = again_remark(table, "shifts")
    if rainbow.framework.selection == "curiosity":
        furthest = np.concatenate([table["lies_furthest"], table["next_lies_furthest"]]).mean()
        remarks.append(
            f"The chosen view lies furthest from its anchor in {100 * furthest:.0f} % of cases; a blind choice would do so in "
            f"{100 / (rainbow.drawn_views - 1):.0f} % or a little more, since views may lie equally far."
        )
    blank, next_c = table["blank"], table["next_c"]
    if blank.any() and not blank.all():
        remarks.append(
            f"In {100 * blank.mean():.0f} % of the samples the episode ended within the {replay.n_steps} steps: what comes next "
            f"is blank there, all alike, and c′ is {next_c[blank].mean():.3f} on average, against {next_c[~blank].mean():.3f}."
        )
    return remarks


def _age(replay: NStepReplay, slot: np.ndarray) -> np.ndarray:
    return np.asarray((replay.written - slot) % replay.slots)


class LookMaker:
    """Rows of the table as `Look`s, with their frames out of replay."""

    def __init__(self, rainbow: Rainbow, replay: NStepReplay, table: dict[str, np.ndarray]):
        self.rainbow, self.replay, self.table = rainbow, replay, table
        drawable = replay.drawable()
        self.mean_priority = float(drawable[drawable > 0.0].mean())

    def __call__(self, row: int) -> Look:
        found = {name: values[row] for name, values in self.table.items()}
        stacks = _stacks(self.replay, found["slot"])
        return look(
            self.rainbow.framework,
            found,
            [self._glance(side, found, frames) for side, frames in zip(SIDES, stacks, strict=True)],
            self.mean_priority,
            action=str(found["action"]),
            step=int(self.replay.ages[0, int(found["slot"])]),
            age=int(_age(self.replay, found["slot"])),
            steps_between=self.replay.n_steps,
            ended_between=bool(found["blank"]),
        )

    def _glance(self, side: str, found: dict[str, Any], frames: Sequence[np.ndarray]) -> Glance:
        pairs = [None, *(float(belief) for belief in found[f"{side}beliefs"])]
        views = [View(_grey(picture), None, belief) for picture, belief in zip(found[f"{side}pictures"], pairs, strict=True)]
        other = _stacks(self.replay, found[f"{side}taken_slot"])[SIDES.index(side)][-1]
        return glance(side, found, frames, views, other)


def _grey(picture: np.ndarray) -> np.ndarray:
    return np.repeat(picture[..., None], 3, axis=-1)


def _stacks(replay: NStepReplay, slot: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The frames of o_t and of o_(t+n) as pictures (H, W, 3), the newest last."""
    batch = replay.gather(torch.tensor([[int(slot)]]))
    now, following = (list(_grey(stack[0, 0].numpy())) for stack in (batch.observation, batch.next_observation))
    return now, following
