"""The gallery of A2C on MiniGrid. It keeps no replay: the run goes on from its checkpoint, in
memory and without learning, and the observations of its next rollouts are looked at, each
rollout a batch as in training.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cclf.algorithms.a2c.a2c import A2C, first_duplicate, generalized_advantage
from cclf.algorithms.a2c.learner import make_learner
from cclf.config import Config
from cclf.inspection import correlation
from cclf.inspection.records import About, Gallery, Measure, ShownObservation, ShownSample
from cclf.inspection.samples import ends, kept_maxima, rungs
from cclf.storage.safe_loading import load_state
from cclf.training.seeding import derive
from cclf.types import EnvFactory, Rollout

Picture = Callable[[np.ndarray], np.ndarray]  # a grid observation for people
ACTIONS = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "done")


def gallery(
    about: About,
    config: Config,
    state: dict[str, Any],
    samples: int,
    env_steps: Tensor,
    make_env: EnvFactory,
) -> Gallery:
    # On the CPU as in training: such networks are too small for a GPU.
    learner = make_learner(config, torch.device("cpu"), make_env)
    a2c, picture = learner.algorithm, learner.env.render_observation
    load_state(learner, state, "learner")
    batch = learner.rollout_steps * learner.env.num_envs
    # since each episode began; unknown for those under way
    steps = np.full(learner.env.num_envs, math.nan)
    random = np.random.default_rng(derive(config.seed, "inspect"))
    parts = []
    for _ in range(math.ceil(samples / batch)):
        rollout, _ = learner.collect()
        # from a stream of its own: the same rollouts follow whatever the measure
        order = torch.from_numpy(random.permutation(batch)) if a2c.needs_permutation else None
        parts.append(columns(a2c, rollout, env_steps.cpu(), steps, order))
    learner.close()
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    identity = first_duplicate(table["observation"]).numpy()
    sightings = np.bincount(identity, minlength=len(identity))[identity]
    curiosity, floor = table["curiosity"], 1.0 - 1.0 / table["copies"]
    most, least = ends(curiosity, identity)
    distinct = config.method.negatives == "distinct"
    measures = [
        Measure(
            "1 − 1/n", floor, "n is how often the same observation is in its batch", novelty=-1
        ),
        Measure(
            "sightings",
            sightings.astype(float),
            "how often the same observation is in all samples",
            novelty=-1,
        ),
        Measure(
            "step in the episode",
            table["step"],
            "agent steps since its episode began; unknown for those under way",
        ),
        Measure("reward", table["reward"], "what the environment paid"),
        Measure(
            "TD error",
            table["td_error"],
            "the size of its advantage: TD errors from there on, added up by GAE, without a bonus",
        ),
        Measure(
            "curiosity of what came next",
            table["next_curiosity"],
            "c′, which shares the bonus of Eq. (9) with c",
        ),
    ]
    return Gallery(
        about,
        drawn=f"{len(identity):,} observations ({len(np.unique(identity)):,} of them distinct): "
        f"the next rollouts of the run, {batch} to a batch as in training, with nothing learned on the way.",
        curiosity_name="c",
        curiosity=curiosity,
        measures=measures,
        most=[_look(a2c, picture, table, row, batch, distinct) for row in most],
        least=[_look(a2c, picture, table, row, batch, distinct) for row in least],
        ladder=[
            (picture(table["observation"][row].reshape(7, 7, 3)), float(curiosity[row]))
            for row in rungs(curiosity)
        ],
        remarks=_remarks(curiosity, floor, distinct),
        priorities=None,
        ages=None,
    )


def columns(
    a2c: A2C,
    rollout: Rollout,
    env_steps: Tensor,
    steps: np.ndarray,
    order: Tensor | None = None,
) -> dict[str, np.ndarray]:
    """All numbers about a rollout, row after row. `steps` (N,) is where each episode stands, and is
    moved on."""
    assert a2c.framework is not None, "a method with curiosity has a framework"
    reward = torch.from_numpy(rollout.reward).flatten()
    with torch.no_grad(), kept_maxima(a2c.framework):
        features = a2c.features(rollout)
        appraisal, _ = a2c.appraise(a2c.framework, features, rollout, reward, env_steps, order)
        values = a2c.policy.critic(features).view(len(rollout.action) + 1, -1)
    advantage = generalized_advantage(
        torch.from_numpy(rollout.reward),
        values,
        torch.from_numpy(rollout.ended),
        a2c.settings.discount,
        a2c.settings.gae_lambda,
    )
    where = np.empty(rollout.action.shape)
    for t, ended in enumerate(rollout.ended):
        where[t] = steps
        steps[:] = np.where(ended, 0.0, steps + 1.0)
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
        "step": where.ravel(),
        "copies": np.bincount(same, minlength=len(same))[same],
    }


def _look(
    a2c: A2C, picture: Picture, table: dict[str, np.ndarray], row: int, batch: int, distinct: bool
) -> ShownSample:
    assert a2c.framework is not None, "a method with curiosity has a framework"

    def glance(observation: np.ndarray, curiosity: float) -> ShownObservation:
        return ShownObservation(
            [picture(observation.reshape(7, 7, 3))], [], 1, 1.0 - curiosity, curiosity
        )

    step = table["step"][row]
    action = int(table["action"][row])
    return ShownSample(
        glance(table["observation"][row], float(table["curiosity"][row])),
        glance(table["next_observation"][row], float(table["next_curiosity"][row])),
        curiosity=float(table["curiosity"][row]),
        action=ACTIONS[action] if action < len(ACTIONS) else str(action),
        reward=float(table["reward"][row]),
        bonus=float(table["bonus"][row]) if a2c.framework.method.reward else None,
        second_weight=None,  # its two views are the same, so that their weights change nothing
        next_second_weight=None,
        priority=None,
        draws=None,
        step=None if math.isnan(step) else int(step),
        age=None,
        new_episode=bool(table["ended"][row]),
        copies=None if distinct else (int(table["copies"][row]), batch),
    )


def _remarks(curiosity: np.ndarray, floor: np.ndarray, distinct: bool) -> list[str]:
    linear = correlation.correlate(curiosity, floor).linear
    if math.isnan(linear):
        return []
    told = f"The linear correlation of curiosity with 1 − 1/n is {linear:.2f}"
    if distinct:
        return [
            f"{told}: this method counts each distinct observation once, so that copies do not "
            "lower a belief."
        ]
    return [
        f"{told}. With n copies in the batch no belief can pass 1/n, so that a perfect one still "
        "leaves c = 1 − 1/n: "
        f"{floor.mean():.3f} on average, of the {curiosity.mean():.3f} seen here. Only what lies "
        "above is not known yet."
    ]
