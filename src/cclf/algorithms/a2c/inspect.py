"""What `cclf inspect` shows of A2C on MiniGrid. A2C keeps no replay, so the run is resumed from its
checkpoint, in memory and without updates of its policy, and the samples are the observations of its
next rollouts, one rollout per batch as in training.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cclf import equations
from cclf.algorithms.a2c.a2c import A2C, first_duplicate, generalized_advantage
from cclf.algorithms.a2c.config import A2cConfig
from cclf.algorithms.a2c.rollout import GRID_SHAPE, RolloutLearner
from cclf.algorithms.common.optimizers import backward_and_step
from cclf.config import PREDICTED_CURIOSITIES, Config
from cclf.curiosity import AbsoluteMeasure
from cclf.errors import ConfigError
from cclf.framework import Framework
from cclf.inspection import correlation
from cclf.inspection.probe import Batches
from cclf.inspection.records import About, Gallery, Measure, ShownObservation, ShownSample
from cclf.inspection.samples import evenly_ranked_rows, extreme_rows, restored_maxima
from cclf.training.seeding import derive
from cclf.types import Rollout

ACTIONS = ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "done")
TRAINING_ROLLOUTS = 1_000  # on which `probe` trains a measure that the run was not trained with
FORWARD = "forward"  # the measure whose prediction error is the quantity `error`
QUANTITIES = ("rarity", "error", "td", "step")
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
    # Curiosity is at least 1 - 1/n if n copies in the batch all count in the belief.
    curiosity, floor = table["curiosity"], 1.0 - 1.0 / table["copies"]
    most, least = extreme_rows(curiosity, identity)
    batch_size = learner.rollout_steps * learner.env.num_envs

    def picture(observation: np.ndarray) -> np.ndarray:
        return learner.env.render_observation(observation.reshape(GRID_SHAPE))

    return Gallery(
        about,
        sampling=f"{len(identity):,} observations ({len(np.unique(identity)):,} of them distinct): "
        f"the next rollouts of the run, in batches of {batch_size} as in training. The policy is not updated meanwhile.",
        curiosity_name="c",
        curiosity=curiosity,
        measures=_measures(table, floor, identity),
        most=[_sample(framework, table, row, picture, batch_size) for row in most],
        least=[_sample(framework, table, row, picture, batch_size) for row in least],
        ranked_frames=[
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
    a2c, batch_size = learner.algorithm, learner.rollout_steps * learner.env.num_envs
    rollouts = _next_rollouts(learner, math.ceil(samples / batch_size))
    # A separate generator, so that the rollouts do not depend on the curiosity measure.
    random = np.random.default_rng(derive(config.seed, "inspect"))
    parts = []
    for rollout in rollouts:
        permutation = None
        if a2c.needs_permutation:
            permutation = torch.from_numpy(random.permutation(batch_size))
        parts.append(columns(a2c, rollout, env_steps, permutation))
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return table | {"step": episode_steps(rollouts)}


def _next_rollouts(learner: RolloutLearner, count: int) -> list[Rollout]:
    rollouts = [learner.collect()[0] for _ in range(count)]
    learner.close()
    return rollouts


def columns(
    a2c: A2C, rollout: Rollout, env_steps: Tensor, permutation: Tensor | None = None
) -> Table:
    """The values of a rollout, T N rows each."""
    framework = a2c.framework
    assert framework is not None, "a method with curiosity has a framework"
    framework.eval()  # so that the running means of the checkpoint are not updated
    reward = torch.from_numpy(rollout.reward)
    with torch.no_grad(), restored_maxima(framework):
        features = a2c.features(rollout)
        appraisal, *_ = a2c.appraise(
            framework, features, rollout, reward.flatten(), env_steps, permutation
        )
        values = a2c.policy.critic(features).view(len(rollout.action) + 1, -1)
    ended, settings = torch.from_numpy(rollout.ended), a2c.settings
    advantage = generalized_advantage(reward, values, ended, settings.discount, settings.gae_lambda)
    flat, batch_size = rollout.observation.reshape(-1, 147), rollout.action.size
    return {
        "observation": flat[:batch_size],
        "next_observation": flat[-batch_size:],
        "ended": rollout.ended.ravel(),
        "action": rollout.action.ravel(),
        "reward": rollout.reward.ravel(),
        "curiosity": appraisal.curiosity.numpy(),
        "next_curiosity": appraisal.next_curiosity.numpy(),
        "bonus": appraisal.bonus.numpy(),
        "td_error": advantage.flatten().abs().numpy(),
        "copies": _frequency(first_duplicate(flat[:batch_size]).numpy()),
    }


def _frequency(identity: np.ndarray) -> np.ndarray:
    """How often each identity occurs: (n,) to (n,)."""
    counts: np.ndarray = np.bincount(identity)[identity]
    return counts


def episode_steps(rollouts: Sequence[Rollout]) -> np.ndarray:
    """The agent steps since the episode of each sample began; nan for episodes that began before the
    first rollout."""
    ended = np.concatenate([rollout.ended for rollout in rollouts])
    steps = np.full((len(ended) + 1, ended.shape[1]), math.nan)
    for t, ended_now in enumerate(ended):
        steps[t + 1] = np.where(ended_now, 0.0, steps[t] + 1.0)
    return steps[:-1].ravel()


def _measures(table: Table, floor: np.ndarray, identity: np.ndarray) -> list[Measure]:
    next_curiosity = "c′, which shares the bonus of Eq. (9) with c"
    duplicates = "n is how often the same observation is in its batch"
    all_samples = "how often the same observation is in all samples"
    steps = "agent steps since its episode began; unknown if it began before the first rollout"
    errors = (
        "absolute value of its advantage: the following TD errors, summed by GAE, without a bonus"
    )
    return [
        Measure("1 − 1/n", floor, duplicates, novelty=-1),
        Measure("sightings", _frequency(identity).astype(float), all_samples, novelty=-1),
        Measure("step in the episode", table["step"], steps),
        Measure("reward", table["reward"], "reward of the environment"),
        Measure("TD error", table["td_error"], errors),
        Measure("curiosity of what came next", table["next_curiosity"], next_curiosity),
    ]


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
    sentence = f"The linear correlation of curiosity with 1 − 1/n is {linear:.2f}"
    if framework.method.negatives == "distinct":
        return [
            f"{sentence}: this method counts each distinct observation once, so that copies do not "
            "lower a belief."
        ]
    return [
        f"{sentence}. With n copies in the batch no belief can exceed 1/n, so that curiosity c is at least "
        f"1 − 1/n: {floor.mean():.3f} on average, of the mean curiosity {curiosity.mean():.3f} shown here. "
        "Only the part above 1 − 1/n comes from an imperfect belief."
    ]


# --- `cclf inspect --curiosity`


def probe(
    config: Config[A2cConfig],
    learner: RolloutLearner,
    measures: Sequence[str],
    quantities: Sequence[str],
    num_batches: int,
    env_steps: Tensor,
) -> tuple[Batches, Batches]:
    """Curiosity by measure, and the quantities by name, of the next rollouts. The measure that the run
    was trained with is loaded from its checkpoint; the predictions of any other measure are first
    trained on rollouts of the same policy."""
    for name in quantities:
        if name not in QUANTITIES:
            raise ConfigError(
                f"--follow {name} conflicts with a2c, which has no replay: use {', '.join(QUANTITIES)}"
            )
    names = dict.fromkeys([*measures, *([FORWARD] if "error" in quantities else [])])
    algorithms = {name: _with_measure(config, learner, name) for name in names}
    _train([a2c for a2c in algorithms.values() if a2c is not learner.algorithm], learner, env_steps)
    rollouts = _next_rollouts(learner, num_batches)
    tables = {
        name: [columns(a2c, rollout, env_steps) for rollout in rollouts]
        for name, a2c in algorithms.items()
    }
    first, *_ = tables.values()  # the policy and its values are the same in all of them
    identity = first_duplicate(np.concatenate([table["observation"] for table in first])).numpy()
    values = {
        "td": [table["td_error"] for table in first],
        "step": np.split(episode_steps(rollouts), num_batches),
        "rarity": np.split(-_frequency(identity).astype(float), num_batches),
    }
    if "error" in quantities:
        values["error"] = [_forward_error(algorithms[FORWARD], rollout) for rollout in rollouts]
    curiosity = {name: [table["curiosity"] for table in tables[name]] for name in measures}
    return curiosity, {name: values[name] for name in quantities}


def _with_measure(config: Config[A2cConfig], learner: RolloutLearner, name: str) -> A2C:
    """The run's own algorithm if this is its measure; else one with the same policy and encoders."""
    own = learner.algorithm
    if name == config.method.curiosity and config.method.needs_curiosity:
        return own
    is_predicted = name in PREDICTED_CURIOSITIES
    if not (is_predicted or config.method.contrastive):
        raise ConfigError(
            f"--curiosity {name} conflicts with {config.method_name}: this run has no contrastive "
            f"loss, which alone trains it; use {', '.join(PREDICTED_CURIOSITIES)}"
        )
    method = replace(
        config.method,
        curiosity=name,
        reward=True,
        contrastive=not is_predicted,
        regularisation=config.method.regularisation and not is_predicted,
    )
    a2c = A2C(replace(config, method=method), learner.env.num_actions)
    shapes = {key: value.shape for key, value in a2c.networks.state_dict().items()}
    weights = {
        key: value
        for key, value in own.networks.state_dict().items()
        if shapes.get(key) == value.shape  # W has another shape without the contrastive loss
    }
    a2c.networks.load_state_dict(weights, strict=False)
    return a2c


def _train(algorithms: Sequence[A2C], learner: RolloutLearner, env_steps: Tensor) -> None:
    """Train the measures that are an `AbsoluteMeasure`: their running means and predictions."""
    trained = [
        (a2c, a2c.framework)
        for a2c in algorithms
        if a2c.framework is not None and _is_absolute(a2c.framework)
    ]
    for _ in range(TRAINING_ROLLOUTS if trained else 0):
        rollout, _ = learner.collect()
        reward = torch.from_numpy(rollout.reward).flatten()
        for a2c, framework in trained:
            with torch.no_grad():
                features = a2c.features(rollout)
            *_, loss = a2c.appraise(framework, features, rollout, reward, env_steps)
            if loss is not None:
                backward_and_step(loss, a2c.prediction_optimizer)


@torch.no_grad()
def _forward_error(a2c: A2C, rollout: Rollout) -> np.ndarray:
    assert a2c.predicted is not None, "the forward measure predicts"
    prediction = a2c.predicted.predictions(a2c.transitions(rollout))
    return np.asarray(equations.squared_distance(prediction.query, prediction.key)[1])
