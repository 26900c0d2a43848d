"""The gallery of `cclf inspect` for Rainbow: transitions sampled from replay and augmented as in training.

The next observation of a transition is n steps later. Its frames after the end of the episode are zero.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.rainbow.learner import make_replay
from cclf.algorithms.rainbow.noise import NoiseSampler, noise_key
from cclf.algorithms.rainbow.rainbow import RainbowLoss, RainbowNoise, make_rainbow
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
    augmentation_remark,
    collect_columns,
    common_columns,
    gallery_of_transitions,
    of_selected_view,
    restored_maxima,
    transition_curiosity,
    without_curiosity,
)
from cclf.storage.safe_loading import check_same_structure, load_state
from cclf.training.seeding import derive
from cclf.types import GameBatch, StateDict


def inspect(
    about: About, config: Config[RainbowConfig], learner: StateDict, samples: int, env_steps: Tensor
) -> Gallery:
    sampler, rainbow, replay = load(config, learner, env_steps.device)

    def sample_columns(batch_index: int) -> dict[str, Tensor]:
        """The columns of one batch, which is appraised twice with different augmentations."""
        batch, noise = sample(sampler, replay, 2 * batch_index)
        other_noise = sampler.sample_single(2 * batch_index + 1)[1]
        pair, appraisal = appraise(rainbow, batch, noise, env_steps)
        _, other_appraisal = appraise(rainbow, batch, other_noise, env_steps)
        return columns(rainbow, batch, noise, pair, appraisal) | {
            "again": transition_curiosity(other_appraisal),
            "td_error": td_error(rainbow, batch, noise),
        }

    batch_size = rainbow.settings.batch_size
    table = collect_columns(samples, batch_size, sample_columns)
    shift = (table["distance"] + table["next_distance"]) / 2.0
    shifts = "pixels between the chosen view and the anchor, mean of both observations"
    return gallery_of_transitions(
        about,
        rainbow.framework,
        table,
        _memory(replay),
        pictures=_pictures,
        facts=partial(_facts, replay.n_steps),
        rewards="reward of its first step, clipped as in training",
        td_errors="its loss on the original frames, without the bonus",
        measures=[
            Measure(
                f"{replay.n_steps}-step return",
                table["n_step_return"],
                "discounted sum of the rewards of its steps",
            ),
            Measure("shift", shift, shifts),
        ],
        sampling=f"{len(table['slot']):,} transitions of {replay.n_steps} steps, sampled from replay as "
        f"in training, in batches of {batch_size}.",
        remarks=_remarks(rainbow, replay, table),
    )


def load(
    config: Config[RainbowConfig], learner: StateDict, device: torch.device
) -> tuple[NoiseSampler, RainbowLoss, NStepReplay]:
    """Random numbers, networks and replay of a checkpoint, without its game."""
    settings = config.algorithm
    networks, maxima = learner["algorithm"]["networks"], learner["algorithm"]["maxima"]
    outputs = len(networks["online.head.layers.1.bias_mean"])
    num_actions = outputs // (settings.atoms if settings.distributional else 1)
    module = make_rainbow(config, num_actions).to(device)
    load_state(module, module.state_dict() | networks | maxima, "networks")
    # The random numbers differ from those of training, and depend on the seed of the run.
    key = noise_key(replace(config, seed=derive(config.seed, "inspect")))
    sampler = NoiseSampler(module, [key], device, torch.float32)
    replay = make_replay(config, 1, torch.device("cpu"))
    check_same_structure(replay.run_state(0), learner["replay"], "replay")
    replay.load_run_state(0, learner["replay"])
    if not replay.sampling_weights().any():
        raise ConfigError("the replay of this run has no complete transition yet: train it first")
    return sampler, module, replay


def sample(
    sampler: NoiseSampler, replay: NStepReplay, update_index: int
) -> tuple[GameBatch, RainbowNoise]:
    """The batch and the noise of one update."""
    uniform, noise = sampler.sample_single(update_index)
    batch = replay.sample(uniform["replay"][None].cpu())
    return GameBatch(*(tensor[0].to(sampler.device) for tensor in batch)), noise


def appraise(
    rainbow: RainbowLoss, batch: GameBatch, noise: RainbowNoise, env_steps: Tensor
) -> tuple[Pair, Appraisal[Tensor]]:
    """The views of o_t and o_(t+n), augmented as in an update, and their appraisal."""
    pair = (
        rainbow.views(batch.observation, noise.shifts, noise.intensity),
        rainbow.views(batch.next_observation, noise.next_shifts, noise.next_intensity),
    )
    with torch.no_grad(), restored_maxima(rainbow.framework):
        return pair, rainbow.framework.appraise(
            *pair, batch.reward, env_steps, rainbow.query, rainbow.key, noise.permutation
        )


def columns(
    rainbow: RainbowLoss,
    batch: GameBatch,
    noise: RainbowNoise,
    pair: Pair,
    appraisal: Appraisal[Tensor],
) -> dict[str, Tensor]:
    """All columns of a batch, (B, ...) each, with the newest frame of each view."""
    table = common_columns(rainbow.framework, batch, pair, appraisal, rainbow.query, rainbow.key)
    table |= {"n_step_return": batch.n_step_return, "ended": batch.continuation == 0}
    shifts = (noise.shifts, noise.next_shifts)
    for side, views, side_shifts in zip(SIDES, pair, shifts, strict=True):
        distances = anchor_distances(rainbow, side_shifts)  # (K-1, B)
        distance = of_selected_view(distances, table[f"{side}chosen"])
        table |= {
            f"{side}pictures": views.inputs[:, :, -1].clamp(0, 255).byte().transpose(0, 1),
            f"{side}distance": distance,
            f"{side}is_furthest": distance == distances.max(0).values,
        }
    return table


def anchor_distances(rainbow: RainbowLoss, shifts: Tensor) -> Tensor:
    """Distances (K-1, B) from the center of each view to that of the anchor: the sum of both axes, in
    pixels."""
    centers = [index[..., index.shape[-1] // 2] for index in rainbow.pixel_indices(shifts)]
    center = torch.stack(centers)  # (2, K, B)
    return (center[:, 1:] - center[:, :1]).abs().sum(0).float()


@torch.no_grad()
def td_error(rainbow: RainbowLoss, batch: GameBatch, noise: RainbowNoise) -> Tensor:
    """The loss of each transition, (B,), as in Rainbow without CCLF: original frames and no bonus."""
    observations = (batch.observation, batch.next_observation)
    features, next_features = map(rainbow.online.encoder, observations)
    action_mask = torch.ones(rainbow.online.head.num_actions, device=batch.reward.device)
    plain = without_curiosity(*observations, batch.reward)
    return rainbow.td_losses(plain, batch, noise, action_mask, features, next_features).losses


def _remarks(rainbow: RainbowLoss, replay: NStepReplay, table: dict[str, np.ndarray]) -> list[str]:
    remarks = augmentation_remark(table, "shifts")
    if rainbow.framework.selection == "curiosity":
        furthest = np.concatenate([table["is_furthest"], table["next_is_furthest"]]).mean()
        uniform = 1 / (rainbow.method.num_augmented_views - 1)
        remarks.append(
            f"The chosen view is the furthest from its anchor in {100 * furthest:.0f} % of cases; "
            f"with a random choice it would be in {100 * uniform:.0f} %, or slightly more because of "
            "equal distances."
        )
    ended, next_c = table["ended"], table["next_c"]
    if ended.any() and not ended.all():
        remarks.append(
            f"In {100 * ended.mean():.0f} % of the samples the episode ended within the "
            f"{replay.n_steps} steps. Later frames are blank and look alike, so c′ is "
            f"{next_c[ended].mean():.3f} on average, against {next_c[~ended].mean():.3f} elsewhere."
        )
    return remarks


def _memory(replay: NStepReplay) -> Memory:
    weights = replay.sampling_weights()[0].numpy()
    live = np.flatnonzero(weights)
    return Memory(
        live,
        weights[live],
        lambda slots: np.asarray((replay.written - slots) % replay.slots),
        replay.ages[0].numpy(),
        partial(_stacks, replay),
    )


def _facts(n_steps: int, row: Row) -> StateDict:
    return {
        "action": str(row["action"]),
        "steps_between": n_steps,
        "ended_between": bool(row["ended"]),
    }


def _pictures(side: str, row: Row, _: Frames) -> list[tuple[np.ndarray, None]]:
    return [(_grey(picture), None) for picture in row[f"{side}pictures"]]


def _grey(picture: np.ndarray) -> np.ndarray:
    return np.repeat(picture[..., None], 3, axis=-1)


def _stacks(replay: NStepReplay, slot: int) -> tuple[Frames, Frames]:
    """The frames of o_t and of o_(t+n) as pictures (H, W, 3), the newest last."""
    batch = replay.gather(torch.tensor([[int(slot)]]))
    now, following = (
        list(_grey(stack[0, 0].numpy())) for stack in (batch.observation, batch.next_observation)
    )
    return now, following
