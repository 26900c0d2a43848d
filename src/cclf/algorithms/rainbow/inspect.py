"""The gallery of Rainbow on games: transitions drawn from replay as training draws them, with views
shifted as it shifts them.

What came next is what came n steps later, and blank from the end of the episode on.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cclf.algorithms.rainbow.learner import make_game_replay, make_rainbow, noise_seed
from cclf.algorithms.rainbow.noise import NoiseSampler
from cclf.algorithms.rainbow.rainbow import RainbowLoss, RainbowNoise
from cclf.algorithms.rainbow.replay import NStepReplay
from cclf.config import Config
from cclf.errors import ConfigError
from cclf.framework import Appraisal
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
    without_curiosity,
)
from cclf.storage.safe_loading import check_same_structure, load_state
from cclf.training.seeding import derive
from cclf.types import EnvFactory, GameBatch


def gallery(
    about: About,
    config: Config,
    learner: dict[str, Any],
    samples: int,
    env_steps: Tensor,
    make_env: EnvFactory,  # noqa: ARG001 (replay holds what is looked at)
) -> Gallery:
    draws, rainbow, replay = load(config, learner, env_steps.device)

    def read(number: int) -> dict[str, Tensor]:
        batch, noise = draw(draws, replay, 2 * number)
        pair, appraisal = appraise(rainbow, batch, noise, env_steps)
        _, again = appraise(rainbow, batch, draws.of_first(2 * number + 1)[1], env_steps)
        found = columns(rainbow, batch, noise, pair, appraisal) | {
            "again": transition_curiosity(again)
        }
        return found | {"td_error": td_error(rainbow, batch, noise)}

    table = table_of(samples, rainbow.settings.batch_size, read)
    return of_transitions(
        about,
        rainbow.framework,
        table,
        _memory(replay),
        pictures=_pictures,
        facts=partial(_facts, replay.n_steps),
        rewards="what the game paid in its first step, clipped as in training",
        td_errors="its loss on whole frames, without the bonus",
        measures=_measures(table, replay.n_steps),
        drawn=f"{len(table['slot']):,} transitions of {replay.n_steps} steps, drawn from replay as training draws them, in "
        f"batches of {rainbow.settings.batch_size}.",
        remarks=_remarks(rainbow, replay, table),
    )


def load(
    config: Config, learner: dict[str, Any], device: torch.device
) -> tuple[NoiseSampler, RainbowLoss, NStepReplay]:
    """Random numbers, the networks, and the replay of a checkpoint; without its game."""
    rainbow = config.algorithm
    networks, maxima = learner["algorithm"]["networks"], learner["algorithm"]["maxima"]
    num_actions = len(networks["online.head.layers.1.bias_mean"]) // (
        rainbow.atoms if rainbow.distributional else 1
    )
    module = make_rainbow(config, num_actions).to(device)
    load_state(module, module.state_dict() | networks | maxima, "networks")
    # A stream of numbers of its own, which the run's seed decides.
    key = noise_seed(replace(config, seed=derive(config.seed, "inspect")))
    draws = NoiseSampler(module, [key], device, torch.float32)
    pixels = config.env.frame_pixels
    replay = make_game_replay(config, 1, (pixels, pixels), torch.device("cpu"))
    check_same_structure(replay.run_state(0), learner["replay"], "replay")
    replay.load_run_state(0, learner["replay"])
    if not replay.drawable().any():
        raise ConfigError("the replay of this run holds nothing to draw yet: train it first")
    return draws, module, replay


def draw(draws: NoiseSampler, replay: NStepReplay, moment: int) -> tuple[GameBatch, RainbowNoise]:
    """A batch and the noise of its update, of a moment of this stream."""
    uniform, noise = draws.of_first(moment)
    batch = replay.sample(uniform["replay"][None].cpu())
    return GameBatch(*(tensor[0].to(draws.device) for tensor in batch)), noise


def appraise(
    rainbow: RainbowLoss, batch: GameBatch, noise: RainbowNoise, env_steps: Tensor
) -> tuple[Pair, Appraisal[Tensor]]:
    """Views of o_t and o_(t+n) as an update shifts them, and what it would make of them."""
    pair = (
        rainbow.views(batch.observation, noise.shifts, noise.intensity),
        rainbow.views(batch.next_observation, noise.next_shifts, noise.next_intensity),
    )
    with torch.no_grad(), kept_maxima(rainbow.framework):
        return pair, rainbow.framework.appraise(
            *pair, batch.reward, env_steps, rainbow.query, rainbow.key, noise.order
        )


def columns(
    rainbow: RainbowLoss,
    batch: GameBatch,
    noise: RainbowNoise,
    pair: Pair,
    appraisal: Appraisal[Tensor],
) -> dict[str, Tensor]:
    """All numbers about a batch, samples first, and the newest frame of each view."""
    found = common_columns(rainbow.framework, batch, pair, appraisal, rainbow.query, rainbow.key)
    found |= {"n_step_return": batch.n_step_return, "ended": batch.continuation == 0}
    for side, views in zip(SIDES, pair, strict=True):
        aparts = shift_apart(rainbow, getattr(noise, f"{side}shifts"))  # (K-1, B)
        apart = of_chosen(aparts, found[f"{side}chosen"])
        found |= {
            f"{side}pictures": views.inputs[:, :, -1].clamp(0, 255).byte().transpose(0, 1),
            f"{side}apart": apart,
            f"{side}lies_furthest": apart == aparts.max(0).values,
        }
    return found


def shift_apart(rainbow: RainbowLoss, shifts: Tensor) -> Tensor:
    """How far the middle of each view lies from the anchor's, in pixels along both axes: (K-1,
    B)."""
    # (2, K, B)
    middles = torch.stack([place[..., place.shape[-1] // 2] for place in rainbow.places(shifts)])
    return (middles[:, 1:] - middles[:, :1]).abs().sum(0).float()


@torch.no_grad()
def td_error(rainbow: RainbowLoss, batch: GameBatch, noise: RainbowNoise) -> Tensor:
    """The loss of each transition, (B,), as Rainbow alone has it: one view, no bonus."""
    seen = (batch.observation, batch.next_observation)
    first, next_first = map(rainbow.online.encoder, seen)
    valid = torch.ones(rainbow.online.head.num_actions, device=batch.reward.device)
    alone = without_curiosity(*seen, batch.reward)
    return rainbow.td_losses(alone, batch, noise, valid, first, next_first).losses


def _measures(table: dict[str, np.ndarray], n_steps: int) -> list[Measure]:
    return [
        Measure(
            f"{n_steps}-step return",
            table["n_step_return"],
            "what its steps were paid together, discounted",
        ),
        Measure(
            "shift",
            (table["apart"] + table["next_apart"]) / 2.0,
            "pixels by which the chosen view lies off the anchor, mean of both observations",
        ),
    ]


def _remarks(rainbow: RainbowLoss, replay: NStepReplay, table: dict[str, np.ndarray]) -> list[str]:
    remarks = again_remark(table, "shifts")
    if rainbow.framework.selection == "curiosity":
        furthest = np.concatenate([table["lies_furthest"], table["next_lies_furthest"]]).mean()
        remarks.append(
            f"The chosen view lies furthest from its anchor in {100 * furthest:.0f} % of cases; a "
            "blind choice would do so in "
            f"{100 / (rainbow.method.num_augmented_views - 1):.0f} % or a little more, since views may lie "
            "equally far."
        )
    ended, next_c = table["ended"], table["next_c"]
    if ended.any() and not ended.all():
        remarks.append(
            f"In {100 * ended.mean():.0f} % of the samples the episode ended within the "
            f"{replay.n_steps} steps: what comes next "
            f"is blank from there on, much alike, and c′ is {next_c[ended].mean():.3f} on average, "
            "against "
            f"{next_c[~ended].mean():.3f}."
        )
    return remarks


def _memory(replay: NStepReplay) -> Memory:
    drawable = replay.drawable()[0].numpy()
    live = np.flatnonzero(drawable)
    return Memory(
        live,
        drawable[live],
        lambda slots: np.asarray((replay.written - slots) % replay.slots),
        replay.ages[0].numpy(),
        partial(_stacks, replay),
    )


def _facts(n_steps: int, found: Row) -> dict[str, Any]:
    return {
        "action": str(found["action"]),
        "steps_between": n_steps,
        "ended_between": bool(found["ended"]),
    }


def _pictures(side: str, found: Row, _: Frames) -> list[tuple[np.ndarray, None]]:
    return [(_grey(picture), None) for picture in found[f"{side}pictures"]]


def _grey(picture: np.ndarray) -> np.ndarray:
    return np.repeat(picture[..., None], 3, axis=-1)


def _stacks(replay: NStepReplay, slot: int) -> tuple[Frames, Frames]:
    """The frames of o_t and of o_(t+n) as pictures (H, W, 3), the newest last."""
    batch = replay.gather(torch.tensor([[int(slot)]]))
    now, following = (
        list(_grey(stack[0, 0].numpy())) for stack in (batch.observation, batch.next_observation)
    )
    return now, following
