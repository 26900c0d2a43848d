"""The gallery of SAC on pixels: transitions drawn from replay as training draws them, with views cropped as it crops them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cclf import build, equations
from cclf.algorithms.sac import Sac
from cclf.analysis.gallery import About, Gallery, Glance, Look, Measure, View
from cclf.augment import Views
from cclf.config import Config, ConfigError, SacConfig
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
from cclf.replay import Replay
from cclf.runtime.seeding import Generators, derive
from cclf.types import Batch


def gallery(about: About, config: Config, learner: dict[str, Any], samples: int, env_steps: Tensor) -> Gallery:
    sac, replay = load(config, learner, env_steps.device)
    assert isinstance(config.algorithm, SacConfig), "chosen by the type of its config"
    batch_size = config.algorithm.batch_size
    generators = Generators(derive(config.seed, "inspect"), env_steps.device, replay.device)
    parts = []
    for _ in range(math.ceil(samples / batch_size)):
        batch = replay.sample(batch_size, generators["replay"]).to(env_steps.device)
        views, appraisal = appraise(sac, batch, generators, env_steps)
        _, again = appraise(sac, batch, generators, env_steps)  # with other crops: what is luck of the crops?
        parts.append(columns(sac, batch, views, appraisal) | {"again": transition_curiosity(again)})
    table = {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}
    slot, curiosity, live = table["slot"], table["curiosity"], np.flatnonzero(replay.live)
    prioritised = sac.framework.prioritisation
    # Beliefs rank finer than curiosity: 1 - belief rounds to 1 for every tiny belief.
    most, least = ends(-table["belief"] - table["next_belief"], slot)
    show = LookMaker(sac, replay, table)
    return Gallery(
        about,
        drawn=f"{len(slot):,} transitions, drawn from replay by priority as training draws them, in batches of {batch_size}.",
        curiosity_name="(c + c′)/2",
        curiosity=curiosity,
        measures=_measures(table, replay),
        most=[show(row) for row in most],
        least=[show(row) for row in least],
        ladder=[(_stacks(replay, slot[row])[0][-1], float(curiosity[row])) for row in rungs(curiosity)],
        remarks=_remarks(sac, table),
        priorities=replay.priorities.numpy()[live] if prioritised else None,
        ages=(replay.head - live) % replay.slots if prioritised else None,
    )


def load(config: Config, learner: dict[str, Any], device: torch.device) -> tuple[Sac, Replay]:
    """Networks and replay of a checkpoint, without its environment; in float32, whatever the run trained with."""
    state = learner["replay"]
    slots, action_dim = state["actions"].shape
    if not state["live"].any():
        raise ConfigError("the replay of this run is still empty: train it first")
    assert isinstance(config.algorithm, SacConfig), "chosen by the type of its config"
    config = replace(config, algorithm=replace(config.algorithm, precision="fp32"))
    sac = build.make_sac(config, action_dim, device)
    sac.networks.load_state_dict(learner["algorithm"]["networks"])
    replay = Replay(slots, tuple(state["frames"].shape[1:]), action_dim, config.env.frame_stack, None, torch.device("cpu"))
    replay.load_state_dict(state)
    return sac, replay


def appraise(sac: Sac, batch: Batch, generators: Generators, env_steps: Tensor) -> tuple[tuple[Views, Views], Appraisal]:
    """Views of o_t and o_(t+1) drawn as an update draws them, and what it would make of them."""
    noise = sac.draw_noise(len(batch.reward), generators["augment"], generators["policy"])
    views = sac.views(batch, noise)
    with kept_maxima(sac.framework):
        return views, sac.appraise(*views, batch.reward, env_steps)


def columns(sac: Sac, batch: Batch, pair: tuple[Views, Views], appraisal: Appraisal) -> dict[str, Tensor]:
    """All numbers about a batch, samples first. Pictures are cut later, for the few that are shown."""
    priority = sac.framework.priority(batch.priority, appraisal)
    found = {
        "slot": batch.slot,
        "action": batch.action,
        "reward": batch.reward,
        "priority": batch.priority,
        "new_priority": batch.priority if priority is None else priority,
        "curiosity": transition_curiosity(appraisal),
        "bonus": appraisal.bonus,
        "rarity": rarity(batch.observation),
    }
    everyone = torch.arange(len(batch.reward), device=batch.reward.device)
    for side, views in zip(SIDES, pair, strict=True):
        chosen = getattr(appraisal, f"{side}chosen")
        believed = beliefs(sac.framework, views, chosen, batch.slot, sac.critic.encoder, sac.target.encoder)
        assert views.origins is not None, "SAC sees crops"
        overlaps = equations.overlap(views.origins[:1], views.origins[1:], sac.crop_pixels)  # (K-1, B)
        found |= {f"{side}{name}": values for name, values in believed.items()} | {
            f"{side}origins": views.origins.transpose(0, 1),
            f"{side}chosen": chosen,
            f"{side}c": getattr(appraisal, f"{side}curiosity"),
            f"{side}second_weight": getattr(appraisal, f"{side}weights")[-1],
            f"{side}overlap": overlaps[chosen - 1, everyone] / sac.crop_pixels**2,
            f"{side}overlaps_least": overlaps[chosen - 1, everyone] == overlaps.min(0).values,
        }
    return found


def _measures(table: dict[str, np.ndarray], replay: Replay) -> list[Measure]:
    slot = table["slot"]
    distance = f"distance in pixels to the {NEIGHBOURS} nearest observations of its batch"
    overlap = (table["overlap"] + table["next_overlap"]) / 2.0
    return [
        Measure("rarity", table["rarity"], distance, novelty=1),
        Measure("age", _age(replay, slot).astype(float), "agent steps since it happened", novelty=-1),
        Measure("step in the episode", replay.ages.numpy()[slot].astype(float), "agent steps since its episode began"),
        Measure("reward", table["reward"], "what the environment paid"),
        Measure("overlap", overlap, "share of the anchor that the chosen crop shows too, mean of both observations"),
        Measure("priority", table["priority"], "before this batch: a long memory of curiosity when it was drawn before"),
    ]


def _remarks(sac: Sac, table: dict[str, np.ndarray]) -> list[str]:
    remarks = again_remark(table, "crops")
    if sac.framework.selection == "curiosity":
        least = np.concatenate([table["overlaps_least"], table["next_overlaps_least"]]).mean()
        remarks.append(
            f"The chosen crop overlaps least with its anchor in {100 * least:.0f} % of cases; a blind choice would do so in "
            f"about {100 / (sac.drawn_views - 1):.0f} %."
        )
    return remarks


def _age(replay: Replay, slot: np.ndarray) -> np.ndarray:
    return np.asarray((replay.head - slot) % replay.slots)


class LookMaker:
    """Rows of the table as `Look`s, with their pictures out of replay."""

    def __init__(self, sac: Sac, replay: Replay, table: dict[str, np.ndarray]):
        self.sac, self.replay, self.table = sac, replay, table
        self.mean_priority = float(replay.priorities.numpy()[replay.live].mean())

    def __call__(self, row: int) -> Look:
        found = {name: values[row] for name, values in self.table.items()}
        stacks = _stacks(self.replay, found["slot"])
        return look(
            self.sac.framework,
            found,
            [self._glance(side, found, frames) for side, frames in zip(SIDES, stacks, strict=True)],
            self.mean_priority,
            action=f"({', '.join(f'{value:.2f}' for value in found['action'])})".replace("-", "−"),
            step=int(self.replay.ages[int(found["slot"])]),
            age=int(_age(self.replay, found["slot"])),
        )

    def _glance(self, side: str, found: dict[str, Any], frames: Sequence[np.ndarray]) -> Glance:
        pixels = self.sac.crop_pixels
        beliefs = [None, *(float(belief) for belief in found[f"{side}beliefs"])]
        corners = [(int(y), int(x)) for y, x in found[f"{side}origins"]]
        cut = [frames[-1][y : y + pixels, x : x + pixels] for y, x in corners]
        other = _stacks(self.replay, found[f"{side}taken_slot"])[SIDES.index(side)][-1]
        return glance(side, found, frames, [View(*view) for view in zip(cut, corners, beliefs, strict=True)], other)


def _stacks(replay: Replay, slot: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The frames of o_t and of o_(t+1) as pictures (H, W, 3), the newest last."""
    batch = replay.gather(torch.tensor([int(slot)]))
    now, following = (
        list(stack.view(replay.frame_stack, -1, *stack.shape[2:]).permute(0, 2, 3, 1).contiguous().numpy())
        for stack in (batch.observation, batch.next_observation)
    )
    return now, following
