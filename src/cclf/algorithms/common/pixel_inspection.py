"""The gallery of base algorithms on pixels with continuous actions: transitions drawn from replay
as training draws them, with views cut as it cuts them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from cclf import equations
from cclf.config import Config
from cclf.data.augmentations import crop
from cclf.data.replay import Replay
from cclf.errors import ConfigError
from cclf.framework import Appraisal, Encode, Framework
from cclf.inspection.records import About, Gallery, Measure
from cclf.inspection.samples import (
    SIDES,
    Frames,
    Memory,
    Pair,
    Row,
    again_remark,
    common_columns,
    kept_maxima,
    of_chosen,
    of_transitions,
    table_of,
    transition_curiosity,
)
from cclf.storage.safe_loading import load_state
from cclf.training.seeding import Generators, derive
from cclf.types import Batch


class WithNetworks(Protocol):
    @property
    def networks(self) -> torch.nn.Module: ...


Algorithm = TypeVar("Algorithm", bound=WithNetworks)


class InspectionAdapter(NamedTuple):
    """How an algorithm looks at observations."""

    framework: Framework
    draw_noise: Callable[..., Any]  # (batch size, generators of crops and of the policy)
    frames: Callable[[Tensor], Tensor]  # observations as views are cut out of them
    view_pixels: int
    encode_query: Encode[Tensor]
    encode_key: Encode[Tensor]
    views_name: str  # crops, shifts
    # |target - Q| (B,) of a batch, standard normal noise (B, A) of actions, and the clock
    td_error: Callable[[Batch, Tensor, Tensor], Tensor]


def gallery(
    about: About,
    config: Config,
    looks: InspectionAdapter,
    replay: Replay,
    samples: int,
    env_steps: Tensor,
) -> Gallery:
    batch_size, device = config.algorithm.batch_size, env_steps.device
    generators = Generators(derive(config.seed, "inspect"), device, replay.device)
    # A stream of its own: the same TD errors whatever the measure of curiosity draws.
    actions = torch.Generator(device).manual_seed(derive(config.seed, "inspect", "td-error"))

    def read(number: int) -> dict[str, Tensor]:  # noqa: ARG001 (streams know where they are)
        batch = replay.sample(batch_size, generators["replay"]).to(device)
        views, appraisal = appraise(looks, batch, generators, env_steps)
        _, again = appraise(looks, batch, generators, env_steps)
        noise = torch.randn(batch.action.shape, generator=actions, device=device)
        with torch.no_grad():
            error = {"td_error": looks.td_error(batch, noise, env_steps)}
        return (
            columns(looks, batch, views, appraisal) | {"again": transition_curiosity(again)} | error
        )

    table = table_of(samples, batch_size, read)
    overlap = (table["overlap"] + table["next_overlap"]) / 2.0
    overlaps = "share of the anchor that the chosen view shows too, mean of both observations"
    return of_transitions(
        about,
        looks.framework,
        table,
        _memory(looks, replay),
        pictures=partial(_cut, looks.view_pixels),
        facts=_facts,
        rewards="what the environment paid",
        td_errors="how far Q lies from its target, |y − Q| on whole views, without the bonus",
        measures=[Measure("overlap", overlap, overlaps)],
        drawn=f"{len(table['slot']):,} transitions, drawn from replay by priority as training draws them, in batches of "
        f"{batch_size}.",
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
    load_state(algorithm.networks, learner["algorithm"]["networks"], "learner/algorithm/networks")
    return algorithm, replay


def _load_replay(config: Config, learner: dict[str, Any], n_steps: int) -> Replay:
    state = learner["replay"]
    slots, action_dim = state["actions"].shape
    if not state["live"].any():
        raise ConfigError("the replay of this run is still empty: train it first")
    shape, stack = tuple(state["frames"].shape[1:]), config.env.frame_stack
    returns = (n_steps, config.algorithm.discount)
    replay = Replay(slots, shape, action_dim, stack, None, torch.device("cpu"), *returns)
    load_state(replay, state, "learner/replay")
    return replay


def appraise(
    looks: InspectionAdapter, batch: Batch, generators: Generators, env_steps: Tensor
) -> tuple[Pair, Appraisal[Tensor]]:
    """Views of o_t and o_(t+1) drawn as an update draws them, and what it would make of them."""
    noise = looks.draw_noise(len(batch.reward), generators["augment"], generators["policy"])
    now = crop(looks.frames(batch.observation), noise.augmentation, looks.view_pixels)
    following = crop(
        looks.frames(batch.next_observation), noise.next_augmentation, looks.view_pixels
    )
    with kept_maxima(looks.framework):
        encoders = (looks.encode_query, looks.encode_key)
        return (now, following), looks.framework.appraise(
            now, following, batch.reward, env_steps, *encoders, noise.permutation
        )


def distance_to(target: Tensor, values: tuple[Tensor, Tensor]) -> Tensor:
    """|target - Q|, mean of both critics: (B,).

    >>> distance_to(torch.tensor([1.0]), (torch.tensor([0.0]), torch.tensor([4.0])))
    tensor([2.])
    """
    return torch.stack([(q - target).abs() for q in values]).mean(0)


def columns(
    looks: InspectionAdapter, batch: Batch, pair: Pair, appraisal: Appraisal[Tensor]
) -> dict[str, Tensor]:
    """All numbers about a batch, samples first. Pictures are cut later, for the few that are
    shown."""
    encoders = (looks.encode_query, looks.encode_key)
    found = common_columns(looks.framework, batch, pair, appraisal, *encoders)
    for side, views in zip(SIDES, pair, strict=True):
        assert views.crop_corners is not None, "views have corners"
        # (K-1, B)
        overlaps = equations.overlap(
            views.crop_corners[:1], views.crop_corners[1:], looks.view_pixels
        )
        overlap = of_chosen(overlaps, found[f"{side}chosen"])
        found |= {
            f"{side}origins": views.crop_corners.transpose(0, 1),
            f"{side}overlap": overlap / looks.view_pixels**2,
            f"{side}overlaps_least": overlap == overlaps.min(0).values,
        }
    return found


def _remarks(looks: InspectionAdapter, table: dict[str, np.ndarray]) -> list[str]:
    remarks = again_remark(table, looks.views_name)
    if looks.framework.selection == "curiosity":
        least = np.concatenate([table["overlaps_least"], table["next_overlaps_least"]]).mean()
        remarks.append(
            f"The chosen view overlaps least with its anchor in {100 * least:.0f} % of cases; a "
            "blind choice would do so in "
            f"about {100 / (looks.framework.method.num_augmented_views - 1):.0f} %."
        )
    return remarks


def _memory(looks: InspectionAdapter, replay: Replay) -> Memory:
    live = np.flatnonzero(replay.valid)
    return Memory(
        live,
        replay.priorities.numpy()[live],
        lambda slots: np.asarray((replay.head - slots) % replay.slots),
        replay.ages.numpy(),
        partial(_stacks, looks, replay),
    )


def _facts(found: Row) -> dict[str, Any]:
    action = ", ".join(f"{value:.2f}" for value in found["action"])
    return {"action": f"({action})".replace("-", "−")}


def _cut(
    pixels: int, side: str, found: Row, frames: Frames
) -> list[tuple[np.ndarray, tuple[int, int]]]:
    corners = [(int(y), int(x)) for y, x in found[f"{side}origins"]]
    return [(frames[-1][y : y + pixels, x : x + pixels], (y, x)) for y, x in corners]


def _stacks(looks: InspectionAdapter, replay: Replay, slot: int) -> tuple[Frames, Frames]:
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
