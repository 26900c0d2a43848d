"""The composition root: a config becomes objects here, and only here are all layers imported."""

import math
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cclf.algorithms.a2c import A2c
from cclf.algorithms.rainbow import Rainbow
from cclf.algorithms.rainbow_stack import RainbowStack, StackedRun
from cclf.algorithms.re3 import StateEntropy
from cclf.algorithms.sac import Sac, SacNoise
from cclf.algorithms.sac_lean import appraise_looks, lean_update
from cclf.config import A2cConfig, Config, ConfigError, MethodConfig, Precision, RainbowConfig, SacConfig
from cclf.devices import choose_replay_device
from cclf.envs.make import make_any, make_env, make_game
from cclf.framework import Framework
from cclf.kernels.first_convolution import pack
from cclf.kernels.paired_convolutions import backward, paired_convolutions, prepare
from cclf.nets import plain_convolutions
from cclf.replay import Replay
from cclf.replay_nstep import NStepReplay
from cclf.runtime.compile import GraphedPolicy, compiled
from cclf.runtime.evaluate import Evaluation, Rounds, evaluate, evaluate_games, evaluate_vector, finish
from cclf.runtime.evaluators import Evaluators
from cclf.runtime.game_stack import GameRun, GameSchedule, GameStack, Tables
from cclf.runtime.learner import OffPolicyLearner, OnPolicyLearner
from cclf.runtime.loop import Plan, Training
from cclf.runtime.player import Players
from cclf.runtime.seeding import Generators, derive
from cclf.runtime.workers import EnvPool, EnvWorkers, LocalEnvs, WorkerEnv
from cclf.types import Batch, EnvSpec, Game, Policy, UpdateResult, VectorEnv

AnyLearner = OffPolicyLearner | OnPolicyLearner | GameRun
AnyPolicy = Sac | A2c | StackedRun
SacUpdate = Callable[[Batch, SacNoise, Tensor], UpdateResult]


def make_framework(method: MethodConfig, feature_dim: int, logit_scale: float = 1.0) -> Framework:
    return Framework(
        feature_dim,
        learned_views=method.learned_views,
        selection=method.selection,
        prioritisation=method.prioritisation,
        regularisation=method.regularisation,
        reward=method.reward,
        priority_momentum=method.priority_momentum,
        bonus_temperature=method.bonus_temperature,
        bonus_decay_per_env_step=method.bonus_decay_per_env_step,
        contrastive_reduction=method.contrastive_reduction,
        bonus_maxima=method.bonus_maxima,
        negatives=method.negatives,
        logit_scale=logit_scale,
    )


def make_sac(config: Config, action_dim: int, device: torch.device) -> Sac:
    method, sac, env = config.method, config.algorithm, config.env
    assert isinstance(sac, SacConfig), "pixels are learned with SAC"
    assert method.augmentation in ("random-crop", "centre-crop"), "pixels are cropped"
    with torch.random.fork_rng(devices=[]):  # networks are drawn on the CPU: the same weights on every device
        torch.manual_seed(derive(config.seed, "init"))
        return Sac(
            make_framework(method, sac.feature_dim),
            device,
            channels=3 * env.frame_stack,
            frame_pixels=env.frame_pixels,
            crop_pixels=env.crop_pixels,
            action_dim=action_dim,
            augmentation=method.augmentation,
            drawn_views=method.drawn_views,
            contrastive=method.contrastive,
            discount=sac.discount,
            learning_rate=sac.learning_rate,
            contrastive_learning_rate=sac.contrastive_learning_rate,
            contrastive_encoder_steps=sac.contrastive_encoder_steps,
            temperature_learning_rate=sac.temperature_learning_rate,
            temperature_beta1=sac.temperature_beta1,
            initial_temperature=sac.initial_temperature,
            q_ema_rate=sac.q_ema_rate,
            encoder_ema_rate=sac.encoder_ema_rate,
            target_every_updates=sac.target_every_updates,
            actor_every_updates=sac.actor_every_updates,
            conv_layers=sac.conv_layers,
            conv_filters=sac.conv_filters,
            feature_dim=sac.feature_dim,
            hidden_dim=sac.hidden_dim,
            log_std_min=sac.log_std_min,
            log_std_max=sac.log_std_max,
            encoder_tanh=sac.encoder_tanh,
            precision=sac.precision,
            last_crop_offset=sac.last_crop_offset,
            collection_view=sac.collection_view,
        )


def make_a2c(config: Config, num_actions: int) -> A2c:
    method, a2c = config.method, config.algorithm
    assert isinstance(a2c, A2cConfig), "grids are learned with A2C"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "init"))
        batch = a2c.num_envs * a2c.rollout_steps
        entropy = StateEntropy(a2c.re3_window_observations, a2c.re3_running_mean_slip, batch) if a2c.re3 else None
        return A2c(
            make_framework(method, a2c.contrastive_hidden_dim) if method.contrastive else None,
            entropy,
            num_actions=num_actions,
            discount=a2c.discount,
            gae_lambda=a2c.gae_lambda,
            learning_rate=a2c.learning_rate,
            rmsprop_alpha=a2c.rmsprop_alpha,
            rmsprop_epsilon=a2c.rmsprop_epsilon,
            entropy_coefficient=a2c.entropy_coefficient,
            value_coefficient=a2c.value_coefficient,
            max_gradient_norm=a2c.max_gradient_norm,
            contrastive_coefficient=a2c.contrastive_coefficient,
            contrastive_hidden_dim=a2c.contrastive_hidden_dim,
            key_ema_rate=a2c.key_ema_rate,
            re3_coefficient=a2c.re3_coefficient,
        )


def make_rainbow(config: Config, num_actions: int) -> Rainbow:
    method, rainbow = config.method, config.algorithm
    assert isinstance(rainbow, RainbowConfig), "games are learned with Rainbow"
    assert method.augmentation in ("crop-pad-crop", "shift", "none"), "frames are shifted"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "init"))
        return Rainbow(
            make_framework(method, rainbow.contrastive_dim, rainbow.logit_scale),
            frame_stack=config.env.frame_stack,
            frame_pixels=config.env.frame_pixels,
            num_actions=num_actions,
            augmentation=method.augmentation,
            drawn_views=method.drawn_views,
            contrastive=method.contrastive,
            convolutions=rainbow.convolutions,
            hidden_dim=rainbow.hidden_dim,
            atoms=rainbow.atoms if rainbow.distributional else 1,
            value_max=rainbow.value_max,
            noisy_sigma=rainbow.noisy_sigma,
            dueling=rainbow.dueling,
            double_q=rainbow.double_q,
            contrastive_hidden_dim=rainbow.contrastive_hidden_dim,
            contrastive_dim=rainbow.contrastive_dim,
            contrastive_coefficient=rainbow.contrastive_coefficient,
            contrastive_joins_td=rainbow.contrastive_joins_td,
            q_observations=rainbow.q_observations,
            intensity_scale=rainbow.intensity_scale,
            td_priorities=rainbow.base_replay == "td-error",
            priority_exponent=rainbow.priority_exponent,
            importance_sampling=rainbow.importance_sampling,
            n_step_discount=rainbow.discount**rainbow.n_steps,
        )


def make_rainbow_stack(
    configs: Sequence[Config], num_actions: Sequence[int], device: torch.device, dtype: torch.dtype = torch.float32
) -> RainbowStack:
    """Runs that differ in task and seed alone, as one."""
    rainbow = configs[0].algorithm
    assert isinstance(rainbow, RainbowConfig), "games are learned with Rainbow"
    return RainbowStack(
        [make_rainbow(config, count) for config, count in zip(configs, num_actions, strict=True)],
        make_rainbow(configs[0], max(num_actions)),
        [derive(config.seed, "rainbow", config.task) for config in configs],
        device,
        batch_size=rainbow.batch_size,
        noisy=rainbow.noisy,
        learning_rate=rainbow.learning_rate,
        adam_epsilon=rainbow.adam_epsilon,
        max_gradient_norm=rainbow.max_gradient_norm,
        key_ema_rate=rainbow.key_ema_rate,
        dtype=dtype,
    )


def make_game_stack(
    configs: Sequence[Config], device: torch.device, games: Sequence[Callable[[], Game]] | None = None
) -> GameStack:
    """Learners of runs that differ in task and seed alone, which move in step; `games` other than their own for measurements."""
    config, rainbow = configs[0], configs[0].algorithm
    assert isinstance(rainbow, RainbowConfig), "games are learned with Rainbow"
    makes = [partial(make_game, each, derive(each.seed, "env")) for each in configs] if games is None else games
    workers = game_workers(config, len(configs), device) if games is None else 0
    shares = _shares(makes, workers or 1)
    tables = [partial(Players, share) for share in shares]
    pool: EnvPool = EnvWorkers(tables, workers, config.task) if workers else LocalEnvs([make() for make in tables])
    seats = Tables(pool, [len(share) for share in shares])
    algorithm = make_rainbow_stack(configs, [_num_actions(spec) for spec in seats.specs], device)
    _, size = replay_forecast(config, seats.specs[0])
    replay_device = choose_replay_device(rainbow.replay_device, device, size * len(configs))
    replay = make_game_replay(config, len(configs), seats.specs[0].frame_shape[1:], replay_device)
    schedule = GameSchedule(
        learn_start=rainbow.learn_start_agent_steps,
        uniform_warmup=rainbow.warmup_policy == "uniform",
        updates_per_step=rainbow.updates_per_agent_step,
        target_every=rainbow.target_every_agent_steps,
        beta=rainbow.importance_beta,
        beta_steps=rainbow.importance_beta_agent_steps,
        epsilon=rainbow.epsilon_train,
        epsilon_steps=rainbow.epsilon_decay_agent_steps,
    )
    graphs = device.type == "cuda" and replay_device == device and config.run.cuda_graphs
    stack = GameStack(seats, algorithm, replay, schedule, config.run.log_every_agent_steps, graphs)
    if device.type == "cuda" and config.run.compile:
        parts: list[tuple[Any, str]] = [(algorithm, "act"), (algorithm, "run_loss"), (algorithm, "descend")]
        if replay_device == device:
            parts += [(stack, "prepare"), (stack, "conclude")]
        for owner, name in parts:
            setattr(owner, name, compiled(getattr(owner, name)))
    return stack


def make_game_replay(config: Config, runs: int, frame_shape: tuple[int, int], device: torch.device) -> NStepReplay:
    rainbow = config.algorithm
    assert isinstance(rainbow, RainbowConfig), "games are learned with Rainbow"
    return NStepReplay(
        runs,
        replay_transitions(config),
        frame_shape,
        config.env.frame_stack,
        rainbow.n_steps,
        rainbow.discount,
        rainbow.n_step_slip,
        device,
    )


def game_workers(config: Config, runs: int, device: torch.device) -> int:
    """Processes that play the games of a stack: none for one run or on a CPU, unless asked for one."""
    if runs == 1 or device.type == "cpu":
        return int(config.run.env_worker)
    return min(runs, len(os.sched_getaffinity(0)))


def _shares(makes: Sequence[Callable[[], Game]], shares: int) -> list[Sequence[Callable[[], Game]]]:
    """Cut into `shares` runs of neighbours, as even as can be."""
    bounds = [len(makes) * share // shares for share in range(shares + 1)]
    return [makes[first:last] for first, last in pairwise(bounds)]


def _num_actions(spec: EnvSpec) -> int:
    assert spec.num_actions is not None, "Rainbow chooses among discrete actions"
    return spec.num_actions


def make_grids(config: Config, num_envs: int, seed: int) -> VectorEnv:
    from cclf.envs.minigrid import make_minigrid

    try:
        grids = make_minigrid(config.task.partition("/")[2], num_envs, seed)
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
    if tuple(grids.observation_shape) != (7, 7, 3):
        raise ConfigError(f"{config.task} shows {grids.observation_shape}: A2C here reads MiniGrid's 7x7x3 grids alone")
    return grids


class Agent(NamedTuple):
    """A policy with evaluation environments of its own."""

    policy: AnyPolicy
    rounds: Callable[..., Rounds]  # (seeds, record)
    close: Callable[[], None]

    def evaluate(self, seeds: Sequence[int], record: bool = False, stopped: Callable[[], bool] = lambda: False) -> Evaluation:
        return finish(self.rounds(seeds, record), stopped)


class Shown(NamedTuple):
    """A faster way to the actions of a policy."""

    evaluation_action: Callable[[Tensor], Tensor]


def make_agent(config: Config, device: torch.device, runs: int = 1, evaluators: Evaluators | None = None) -> Agent:
    """`runs`: how many share this machine's cores, each with workers of its own; those of Rainbow share `evaluators`."""
    if isinstance(config.algorithm, A2cConfig):
        grids = make_grids(config, config.run.eval_episodes, seed=0)
        a2c = make_a2c(config, grids.num_actions)
        return Agent(a2c, lambda seeds, record: evaluate_vector(grids, a2c, seeds, derive(seeds[0], "act"), record), grids.close)
    if isinstance(config.algorithm, RainbowConfig):
        return _make_game_agent(config, config.algorithm, evaluators)
    env = make_env(config, seed=0)
    sac = make_sac(config, env.spec.action_dim, device)
    workers = eval_workers(config, device, runs)
    pool: EnvPool = LocalEnvs([env])
    if workers:
        env.close()  # it was here to say what its actions are
        pool = EnvWorkers([partial(make_env, config, seed=0)] * workers, workers, config.task)
    elif _plays_between_turns(config, device):  # two: an action arrives a turn after it was asked for
        pool = LocalEnvs([env, make_env(config, seed=0)])
    stack = config.env.frame_stack
    graphed = device.type == "cuda" and config.run.cuda_graphs
    shown: Policy = Shown(GraphedPolicy(sac.evaluation_action)) if graphed else sac
    return Agent(sac, lambda seeds, record: evaluate(pool, shown, seeds, stack, device, record), pool.close)


def _make_game_agent(config: Config, rainbow: RainbowConfig, evaluators: Evaluators | None) -> Agent:
    """On the CPU whatever the training runs on: the network is small, and the scores are the same on every machine."""
    game = make_game(config, 0, evaluation=True)
    player = make_rainbow_stack([config], [_num_actions(game.spec)], torch.device("cpu")).runs[0]

    def rounds(seeds: Sequence[int], record: bool) -> Rounds:
        if evaluators is None:
            return evaluate_games(game, player, seeds, rainbow.epsilon_eval, record)
        weights = {name: value.numpy().copy() for name, value in player.network.state_dict().items()}
        return _elsewhere(evaluators, (config.to_dict(), weights), seeds, record)

    def _elsewhere(evaluators: Evaluators, agent: tuple[Any, ...], seeds: Sequence[int], record: bool) -> Rounds:
        result = yield from evaluators.rounds(agent, seeds)
        if not record:
            return result
        # The first again, for its pictures.
        seen = yield from evaluate_games(game, player, seeds[:1], rainbow.epsilon_eval, record)
        return result._replace(pictures=seen.pictures)

    return Agent(player, rounds, game.close)


def make_evaluators(config: Config, device: torch.device, runs: int) -> Evaluators | None:
    """Processes that play the evaluation episodes of all `runs` of Rainbow; None where this one plays them."""
    if not isinstance(config.algorithm, RainbowConfig):
        return None
    from cclf.episode_player import EpisodePlayer

    episodes = runs * max(config.run.eval_episodes, config.run.final_eval_episodes)
    told = config.run.eval_workers
    workers = min(episodes, (0 if device.type == "cpu" else len(os.sched_getaffinity(0))) if told is None else told)
    return Evaluators(EpisodePlayer, workers) if workers else None


def eval_workers(config: Config, device: torch.device, runs: int) -> int:
    """Unless told: on a GPU one process per episode as far as there are cores; on a CPU none, since they would gain nothing."""
    if config.run.eval_workers is not None:
        return min(config.run.eval_workers, config.run.eval_episodes)
    if device.type == "cpu" or not isinstance(config.algorithm, SacConfig):
        return 0
    return min(config.run.eval_episodes, max(1, len(os.sched_getaffinity(0)) // runs))


def _plays_between_turns(config: Config, device: torch.device) -> bool:
    """Whether evaluation in the training process need not stop training: a GPU computes updates while the host steps."""
    return device.type == "cuda" and isinstance(config.algorithm, SacConfig)


def make_learner(config: Config, device: torch.device) -> AnyLearner:
    seed = derive(config.seed, "env")
    if isinstance(config.algorithm, A2cConfig):
        grids = make_grids(config, config.algorithm.num_envs, seed)
        random = np.random.default_rng(derive(config.seed, "act"))
        return OnPolicyLearner(grids, make_a2c(config, grids.num_actions), random, config.algorithm.rollout_steps)
    if isinstance(config.algorithm, RainbowConfig):
        return make_game_stack([config], device).runs[0]
    env = WorkerEnv(partial(make_env, config, seed), config.task) if config.run.env_worker else make_env(config, seed)
    shape, action_dim, _, max_steps, _ = env.spec
    transitions, size = replay_forecast(config, env.spec)
    replay_device = choose_replay_device(config.algorithm.replay_device, device, size)
    replay = Replay(transitions, shape, action_dim, config.env.frame_stack, max_steps, replay_device)
    generators = Generators(config.seed, device, replay_device)
    settings, sac = config.algorithm, make_sac(config, action_dim, device)
    graphed = device.type == "cuda" and replay_device == device and config.run.cuda_graphs
    return OffPolicyLearner(
        env,
        sac,
        make_sac_update(config, sac, device),
        replay,
        generators,
        settings.batch_size,
        settings.warmup_agent_steps,
        graph_cycle=math.lcm(sac.actor_every_updates, sac.target_every_updates) if graphed else None,
    )


def make_sac_update(config: Config, sac: Sac, device: torch.device) -> SacUpdate:
    """The update that runs: the lean one, and on a GPU all of it but the optimisers compiled."""
    assert isinstance(config.algorithm, SacConfig), "pixels are learned with SAC"
    if device.type != "cuda" or not config.run.compile:
        return partial(lean_update, sac)
    return compile_sac(sac, config.algorithm.precision)


def compile_sac(sac: Sac, precision: Precision) -> SacUpdate:
    """Encoders first; what lies between them and the optimisers is hundreds of small kernels that become dozens."""
    kernel = compiled(plain_convolutions)
    if precision == "bf16":
        kernel = partial(paired_convolutions, prepare=compiled(prepare), backward=compiled(backward))
        sac.join_frames = compiled(pack)
    for network in (sac.critic, sac.target):
        network.encoder.convolutions.kernel = kernel
    for part, name in ((sac, "q_target"), (sac, "critic_loss"), (sac, "actor_loss"), (sac.framework, "contrastive_loss")):
        setattr(part, name, compiled(getattr(part, name)))
    return partial(lean_update, sac, appraise=compiled(appraise_looks))


def make_learners(
    configs: Sequence[Config], device: torch.device, resume_points: Sequence[int | None] | None = None
) -> list[AnyLearner]:
    """Of runs that take turns in one process; those of Rainbow that go on from the same step are stacked: they learn as one."""
    if not isinstance(configs[0].algorithm, RainbowConfig):
        return [make_learner(config, device) for config in configs]
    points = resume_points or [None] * len(configs)
    learners: dict[int, AnyLearner] = {}
    for point in dict.fromkeys(points):
        places = [place for place, own in enumerate(points) if own == point]
        stack = make_game_stack([configs[place] for place in places], device)
        learners |= dict(zip(places, stack.runs, strict=True))
    return [learners[place] for place in range(len(configs))]


def make_training(
    config: Config,
    folder: Path,
    device: torch.device,
    runs: int = 1,
    learner: AnyLearner | None = None,
    evaluators: Evaluators | None = None,
) -> tuple[Training, AnyLearner, Agent]:
    """One of `runs` in this process, with a learner of its own unless it is given one."""
    learner = learner or make_learner(config, device)
    agent = make_agent(config, device, runs, evaluators)

    def evaluate_now(env_steps: int, record: bool) -> Rounds:
        agent.policy.networks.load_state_dict(learner.algorithm.networks.state_dict())  # as they are now, while training goes on
        # Seeds depend on the moment and the episode alone: another schedule evaluates the same episodes at the same moment.
        seeds = [derive(config.seed, "eval", env_steps, episode) for episode in range(config.run.eval_episodes)]
        return agent.rounds(seeds, record)

    workers = eval_workers(config, device, runs) > 0 or evaluators is not None
    plan = Plan(
        env_steps=config.run.env_steps,
        action_repeat=config.env.action_repeat,
        eval_every_env_steps=config.run.eval_every_env_steps,
        log_every_agent_steps=config.run.log_every_agent_steps,
        video=config.run.video,
        evaluate_beside_training=workers or _plays_between_turns(config, device),
    )
    return Training(plan, learner, evaluate_now, folder), learner, agent


def replay_transitions(config: Config) -> int:
    """Those this run can ever hold. A short run never allocates the whole capacity."""
    assert not isinstance(config.algorithm, A2cConfig), "A2C keeps no replay"
    return min(config.algorithm.replay_capacity_transitions, max(1, config.planned_agent_steps))


def replay_forecast(config: Config, spec: EnvSpec) -> tuple[int, int]:
    """Transitions this run can ever hold, and their bytes."""
    transitions = replay_transitions(config)
    shape, action_dim, _, max_steps, _ = spec
    if isinstance(config.algorithm, RainbowConfig):
        return transitions, NStepReplay.bytes_needed(transitions, shape[1:], config.env.frame_stack)
    return transitions, Replay.bytes_needed(transitions, shape, action_dim, config.env.frame_stack, max_steps)


def replay_forecast_of(config: Config) -> tuple[int, int]:
    """The same before a run is built: its environment is made for the question alone."""
    with closing(make_any(config, seed=0)) as env:
        return replay_forecast(config, env.spec)
