"""What `cclf inspect` shows of A2C on MiniGrid. A2C keeps no replay, so the run is resumed from its
checkpoint, in memory and without updates, and the samples are the observations of its next rollouts,
one rollout per batch as in training.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from cclf.algorithms.a2c.a2c import A2C, first_duplicate, generalized_advantage
from cclf.algorithms.a2c.config import A2cConfig
from cclf.algorithms.a2c.rollout import GRID_SHAPE, RolloutLearner
from cclf.config import Config
from cclf.curiosity import AbsoluteMeasure
from cclf.framework import Framework
from cclf.inspection import correlation
from cclf.inspection.records import About, Gallery, Measure, ShownObservation, ShownSample
from cclf.inspection.samples import evenly_ranked_rows, extreme_rows, restored_maxima
from cclf.training.seeding import derive
from cclf.types import Rollout

ACTIONS = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "done")
Picture = Callable[[np.ndarray], np.ndarray]  # a flat grid (147,) as an image (H, W, 3)
Table = dict[str, np.ndarray]  # values of all samples, by column


def gallery(
    about: About,
    config: Config[A2cConfig],
    learner: RolloutLearner,
    samples: int,
    env_steps: Tensor,
) -> Gallery:
    framework = learner.algorithm.framework
    assert framework is not None, "a method with curiosity has a framework"
    table = sample_rollouts(config, learner, samples, env_steps)
    identity = first_duplicate(table["observation"]).numpy()
    curiosity, floor = table["curiosity"], 1.0 - 1.0 / table["copies"]
    most, least = extreme_rows(curiosity, identity)
    batch_size = learner.rollout_steps * learner.env.num_envs

    def picture(observation: np.ndarray) -> np.ndarray:
        return learner.env.render_observation(observation.reshape(GRID_SHAPE))

    return Gallery(
        about,
        drawn=f"{len(identity):,} observations ({len(np.unique(identity)):,} of them distinct): "
        f"the next rollouts of the run, {batch_size} to a batch as in training, with nothing learned on the way.",
        curiosity_name="c",
        curiosity=curiosity,
        measures=_measures(table, floor, identity),
        most=[_sample(framework, table, row, picture, batch_size) for row in most],
        least=[_sample(framework, table, row, picture, batch_size) for row in least],
        ladder=[
            (picture(table["observation"][row]), float(curiosity[row]))
            for row in evenly_ranked_rows(curiosity)
        ],
        remarks=_remarks(framework, curiosity, floor),
        priorities=None,
        ages=None,
    )


def sample_rollouts(
    config: Config[A2cConfig], learner: RolloutLearner, samples: int, env_steps: Tensor
) -> Table:
    """`samples` observations or a few more, in whole rollouts."""
    a2c, num_envs = learner.algorithm, learner.env.num_envs
    batch_size = learner.rollout_steps * num_envs
    # of each episode; unknown for those that had begun before
    episode_steps = np.full(num_envs, math.nan)
    # of its own, so that the rollouts do not depend on the curiosity measure
    random = np.random.default_rng(derive(config.seed, "inspect"))
    parts = []
    for _ in range(math.ceil(samples / batch_size)):
        rollout, _ = learner.collect()
        permutation = None
        if a2c.needs_permutation:
            permutation = torch.from_numpy(random.permutation(batch_size))
        parts.append(columns(a2c, rollout, env_steps, episode_steps, permutation))
    learner.close()
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _measures(table: Table, floor: np.ndarray, identity: np.ndarray) -> list[Measure]:
    sightings = np.bincount(identity, minlength=len(identity))[identity]
    next_curiosity = "c′, which shares the bonus of Eq. (9) with c"
    duplicates = "n is how often the same observation is in its batch"
    all_samples = "how often the same observation is in all samples"
    steps = "agent steps since its episode began; unknown for those under way"
    errors = "the size of its advantage: TD errors from there on, added up by GAE, without a bonus"
    return [
        Measure("1 − 1/n", floor, duplicates, novelty=-1),
        Measure("sightings", sightings.astype(float), all_samples, novelty=-1),
        Measure("step in the episode", table["step"], steps),
        Measure("reward", table["reward"], "what the environment paid"),
        Measure("TD error", table["td_error"], errors),
        Measure("curiosity of what came next", table["next_curiosity"], next_curiosity),
    ]


def columns(
    a2c: A2C,
    rollout: Rollout,
    env_steps: Tensor,
    episode_steps: np.ndarray,
    permutation: Tensor | None = None,
) -> Table:
    """All values of a rollout, T N rows each. `episode_steps` (N,), the step of each episode, is
    updated in place."""
    framework = a2c.framework
    assert framework is not None, "a method with curiosity has a framework"
    framework.eval()  # running means stay those of the checkpoint
    reward = torch.from_numpy(rollout.reward).flatten()
    with torch.no_grad(), restored_maxima(framework):
        features = a2c.features(rollout)
        appraisal, *_ = a2c.appraise(framework, features, rollout, reward, env_steps, permutation)
        values = a2c.policy.critic(features).view(len(rollout.action) + 1, -1)
    advantage = generalized_advantage(
        torch.from_numpy(rollout.reward),
        values,
        torch.from_numpy(rollout.ended),
        a2c.settings.discount,
        a2c.settings.gae_lambda,
    )
    step = np.empty(rollout.action.shape)
    for t, ended in enumerate(rollout.ended):
        step[t] = episode_steps
        episode_steps[:] = np.where(ended, 0.0, episode_steps + 1.0)
    flat = rollout.observation.reshape(-1, 147)
    observation = flat[: len(reward)]
    same = first_duplicate(observation).numpy()
    return {
        "observation": observation,
        "next_observation": flat[-len(reward) :],
        "ended": rollout.ended.ravel(),
        "action": rollout.action.ravel(),
        "reward": rollout.reward.ravel(),
        "curiosity": appraisal.curiosity.numpy(),
        "next_curiosity": appraisal.next_curiosity.numpy(),
        "bonus": appraisal.bonus.numpy(),
        "td_error": advantage.flatten().abs().numpy(),
        "step": step.ravel(),
        "copies": np.bincount(same, minlength=len(same))[same],
    }


def _sample(
    framework: Framework, table: Table, row: int, picture: Picture, batch_size: int
) -> ShownSample:
    values = {name: column[row] for name, column in table.items()}

    def observed(prefix: str) -> ShownObservation:
        curiosity = float(values[f"{prefix}curiosity"])
        frames = [picture(values[f"{prefix}observation"])]
        return ShownObservation(frames, [], 1, 1.0 - curiosity, curiosity)

    action, step = int(values["action"]), values["step"]
    counts_copies = framework.method.negatives == "all" and not _is_absolute(framework)
    return ShownSample(
        observed(""),
        observed("next_"),
        curiosity=float(values["curiosity"]),
        action=ACTIONS[action] if action < len(ACTIONS) else str(action),
        reward=float(values["reward"]),
        bonus=float(values["bonus"]) if framework.method.reward else None,
        second_weight=None,  # both views are the same, so their weights have no effect
        next_second_weight=None,
        priority=None,
        draws=None,
        step=None if math.isnan(step) else int(step),
        age=None,
        new_episode=bool(values["ended"]),
        copies=(int(values["copies"]), batch_size) if counts_copies else None,
    )


def _is_absolute(framework: Framework) -> bool:
    """Whether the belief does not depend on the other keys of the batch."""
    return isinstance(framework.measure, AbsoluteMeasure)


def _remarks(framework: Framework, curiosity: np.ndarray, floor: np.ndarray) -> list[str]:
    linear = correlation.correlate(curiosity, floor).linear
    if math.isnan(linear) or _is_absolute(framework):
        return []
    correlation_is = f"The linear correlation of curiosity with 1 − 1/n is {linear:.2f}"
    if framework.method.negatives == "distinct":
        return [
            f"{correlation_is}: this method counts each distinct observation once, so that copies do not "
            "lower a belief."
        ]
    return [
        f"{correlation_is}. With n copies in the batch no belief can pass 1/n, so that a perfect one still "
        "leaves c = 1 − 1/n: "
        f"{floor.mean():.3f} on average, of the {curiosity.mean():.3f} seen here. Only what lies "
        "above is not known yet."
    ]
