"""The gallery of base algorithms on pixels with continuous actions: transitions drawn from replay
as training draws them, with views cut as it cuts them."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from cclf import equations
from cclf.config import Config
from cclf.data.augment import crop
from cclf.data.replay import Replay
from cclf.data.types import Batch
from cclf.errors import ConfigError
from cclf.framework import Appraisal, Encode, Framework
from cclf.gallery.record import About, Gallery, Measure
from cclf.gallery.samples import (
    NEIGHBOURS,
    SIDES,
    Frames,
    Pair,
    Row,
    again_remark,
    common_columns,
    kept_maxima,
    of_chosen,
    of_transitions,
    transition_curiosity,
)
from cclf.runtime.run_folder import load_part
from cclf.runtime.seeding import Generators, derive


class WithNetworks(Protocol):
    @property
    def networks(self) -> torch.nn.Module: ...


Algorithm = TypeVar("Algorithm", bound=WithNetworks)


class Looks(NamedTuple):
    """How an algorithm looks at observations."""

    framework: Framework
    draw_noise: Callable[..., Any]  # (batch size, generators of crops and of the policy)
    frames: Callable[[Tensor], Tensor]  # observations as views are cut out of them
    view_pixels: int
    encode_query: Encode
    encode_key: Encode
    views_name: str  # crops, shifts


def gallery(
    about: About,
    config: Config,
    looks: Looks,
    replay: Replay,
    samples: int,
    env_steps: Tensor,
) -> Gallery:
    batch_size = config.algorithm.batch_size
    generators = Generators(derive(config.seed, "inspect"), env_steps.device, replay.device)
    parts = []
    for _ in range(math.ceil(samples / batch_size)):
        batch = replay.sample(batch_size, generators["replay"]).to(env_steps.device)
        views, appraisal = appraise(looks, batch, generators, env_steps)
        # with other crops: what is luck of the crops?
        _, again = appraise(looks, batch, generators, env_steps)
        second = {"again": transition_curiosity(again), "reading_again": again.paid_for}
        parts.append(columns(looks, batch, views, appraisal) | second)
    table = {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}
    live = np.flatnonzero(replay.live)
    return of_transitions(
        about,
        looks.framework,
        table,
        stacks=partial(_stacks, looks, replay),
        pictures=partial(_cut, looks.view_pixels),
        facts=partial(_facts, replay),
        priorities=replay.priorities.numpy()[live],
        ages=_age(replay, live),
        drawn=f"{len(table['slot']):,} transitions, drawn from replay by priority as training "
        f"draws them, in batches of {batch_size}.",
        measures=_measures(table, replay),
        remarks=_remarks(looks, table),
    )


def load(
    config: Config,
    learner: dict[str, Any],
    make: Callable[[Config, int], Algorithm],
    n_steps: int = 1,
) -> tuple[Algorithm, Replay]:
    """Networks and replay of a checkpoint, without its environment; in float32, whatever the run
    trained with. `make` takes a config and the number of actions."""
    replay = _load_replay(config, learner, n_steps)
    config = replace(config, algorithm=replace(config.algorithm, precision="fp32"))
    algorithm = make(config, replay.actions.shape[1])
    load_part(algorithm.networks, learner["algorithm"]["networks"], "networks")
    return algorithm, replay


def _load_replay(config: Config, learner: dict[str, Any], n_steps: int) -> Replay:
    state = learner["replay"]
    slots, action_dim = state["actions"].shape
    if not state["live"].any():
        raise ConfigError("the replay of this run is still empty: train it first")
    shape, stack = tuple(state["frames"].shape[1:]), config.env.frame_stack
    returns = (n_steps, config.algorithm.discount)
    replay = Replay(slots, shape, action_dim, stack, None, torch.device("cpu"), *returns)
    load_part(replay, state, "replay")
    return replay


def appraise(
    looks: Looks, batch: Batch, generators: Generators, env_steps: Tensor
) -> tuple[Pair, Appraisal]:
    """Views of o_t and o_(t+1) drawn as an update draws them, and what it would make of them."""
    noise = looks.draw_noise(len(batch.reward), generators["augment"], generators["policy"])
    now = crop(looks.frames(batch.observation), noise.origins, looks.view_pixels)
    following = crop(looks.frames(batch.next_observation), noise.next_origins, looks.view_pixels)
    with kept_maxima(looks.framework):
        encoders = (looks.encode_query, looks.encode_key)
        return (now, following), looks.framework.appraise(
            now, following, batch.reward, env_steps, *encoders, noise.order
        )


def columns(looks: Looks, batch: Batch, pair: Pair, appraisal: Appraisal) -> dict[str, Tensor]:
    """All numbers about a batch, samples first. Pictures are cut later, for the few that are
    shown."""
    encoders = (looks.encode_query, looks.encode_key)
    found = common_columns(looks.framework, batch, pair, appraisal, *encoders)
    for side, views in zip(SIDES, pair, strict=True):
        assert views.origins is not None, "views have corners"
        # (K-1, B)
        overlaps = equations.overlap(views.origins[:1], views.origins[1:], looks.view_pixels)
        overlap = of_chosen(overlaps, found[f"{side}chosen"])
        found |= {
            f"{side}origins": views.origins.transpose(0, 1),
            f"{side}overlap": overlap / looks.view_pixels**2,
            f"{side}overlaps_least": overlap == overlaps.min(0).values,
        }
    return found


def _measures(table: dict[str, np.ndarray], replay: Replay) -> list[Measure]:
    slot = table["slot"]
    distance = f"distance in pixels to the {NEIGHBOURS} nearest observations of its batch"
    overlap = (table["overlap"] + table["next_overlap"]) / 2.0
    return [
        Measure("rarity", table["rarity"], distance, novelty=1),
        Measure(
            "age", _age(replay, slot).astype(float), "agent steps since it happened", novelty=-1
        ),
        Measure(
            "step in the episode",
            replay.ages.numpy()[slot].astype(float),
            "agent steps since its episode began",
        ),
        Measure("reward", table["reward"], "what the environment paid"),
        Measure(
            "overlap",
            overlap,
            "share of the anchor that the chosen view shows too, mean of both observations",
        ),
        Measure(
            "priority",
            table["priority"],
            "before this batch: a long memory of curiosity when it was drawn before",
        ),
    ]


def _remarks(looks: Looks, table: dict[str, np.ndarray]) -> list[str]:
    remarks = again_remark(table, looks.views_name)
    if looks.framework.selection == "curiosity":
        least = np.concatenate([table["overlaps_least"], table["next_overlaps_least"]]).mean()
        remarks.append(
            f"The chosen view overlaps least with its anchor in {100 * least:.0f} % of cases; a "
            "blind choice would do so in "
            f"about {100 / (looks.framework.method.drawn_views - 1):.0f} %."
        )
    return remarks


def _age(replay: Replay, slot: np.ndarray) -> np.ndarray:
    return np.asarray((replay.head - slot) % replay.slots)


def _facts(replay: Replay, found: Row) -> dict[str, Any]:
    return {
        "action": f"({', '.join(f'{value:.2f}' for value in found['action'])})".replace("-", "−"),
        "step": int(replay.ages[int(found["slot"])]),
        "age": int(_age(replay, found["slot"])),
    }


def _cut(
    pixels: int, side: str, found: Row, frames: Frames
) -> list[tuple[np.ndarray, tuple[int, int]]]:
    corners = [(int(y), int(x)) for y, x in found[f"{side}origins"]]
    return [(frames[-1][y : y + pixels, x : x + pixels], (y, x)) for y, x in corners]


def _stacks(looks: Looks, replay: Replay, slot: int) -> tuple[Frames, Frames]:
    """The frames of o_t and of o_(t+1) as pictures (H, W, 3), the newest last."""
    batch = replay.gather(torch.tensor([int(slot)]))
    now, following = (
        list(
            stack.view(replay.frame_stack, -1, *stack.shape[2:])
            .permute(0, 2, 3, 1)
            .contiguous()
            .numpy()
        )
        for stack in map(looks.frames, (batch.observation, batch.next_observation))
    )
    return now, following
