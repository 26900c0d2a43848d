"""Rainbow as the rest of the package asks for it: learners, agents, and what its replay takes."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from cclf.algorithms.rainbow.batched import BatchedRainbow, RainbowKernels, make_kernels, uncompiled
from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.rainbow.games import BatchedLearner, GameWorkers, RunHandle
from cclf.algorithms.rainbow.players import EpisodicGame, GameGroup
from cclf.algorithms.rainbow.rainbow import RainbowLoss
from cclf.algorithms.rainbow.replay import NStepReplay
from cclf.algorithms.rainbow.turn import RainbowLearner, RainbowRun
from cclf.config import Config
from cclf.errors import ConfigError
from cclf.training.agent import Agent
from cclf.training.cuda_graphs import compiled
from cclf.training.devices import choose_replay_device
from cclf.training.evaluation import EvaluationSteps, evaluate_games
from cclf.training.evaluation_workers import EvaluationWorkers
from cclf.training.seeding import derive, seeded_weights
from cclf.training.workers import EnvPool, EnvWorkers, LocalEnvs, anonymous_file
from cclf.types import Env, EnvFactory, EnvSpec


def make_learners(
    configs: Sequence[Config],
    device: torch.device,
    make_env: EnvFactory,
    resume_points: Sequence[int | None],
) -> list[RainbowLearner | RunHandle]:
    """Runs that go on from the same step are stacked: they learn as one.

    A run alone is a plain one on a CPU, and a stack of one on a GPU.
    """
    learners: dict[int, RainbowLearner | RunHandle] = {}
    for point in dict.fromkeys(resume_points):
        places = [place for place, own in enumerate(resume_points) if own == point]
        runs = [configs[place] for place in places]
        games = [partial(make_env, config, derive(config.seed, "env")) for config in runs]
        if len(runs) == 1 and device.type == "cpu":
            learners[places[0]] = make_learner(runs[0], device, games[0])
        else:
            stack = make_game_stack(runs, device, games, num_game_workers(len(runs), device))
            learners |= dict(zip(places, stack.runs, strict=True))
    return [learners[place] for place in range(len(configs))]


def make_learner(
    config: Config, device: torch.device, make_game: Callable[[], Env]
) -> RainbowLearner:
    """One run by itself."""
    player = EpisodicGame(make_game(), config.env.frame_stack)
    algorithm = make_rainbow_run(config, num_actions(player.spec), device)
    replay = make_replay_of_runs([config], player.spec, device)
    return RainbowLearner(player, algorithm, replay, config.run.log_every_agent_steps)


def make_rainbow(config: Config, num_actions: int) -> RainbowLoss:
    with seeded_weights(config.seed):
        return RainbowLoss(config, num_actions)


def noise_seed(config: Config) -> int:
    return derive(config.seed, "rainbow", config.task)


def make_rainbow_run(
    config: Config, num_actions: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> RainbowRun:
    return RainbowRun(make_rainbow(config, num_actions), noise_seed(config), device, dtype)


def make_rainbow_stack(
    configs: Sequence[Config],
    num_actions: Sequence[int],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    compute: RainbowKernels | None = None,
) -> BatchedRainbow:
    """Runs that differ in task and seed alone, as one."""
    return BatchedRainbow(
        [make_rainbow(config, count) for config, count in zip(configs, num_actions, strict=True)],
        make_rainbow(configs[0], max(num_actions)),
        [noise_seed(config) for config in configs],
        device,
        dtype,
        compute,
    )


def make_game_stack(
    configs: Sequence[Config],
    device: torch.device,
    games: Sequence[Callable[[], Env]],
    workers: int = 0,
) -> BatchedLearner:
    """Runs that differ in task and seed alone and move in step; each plays one of `games`."""
    config = configs[0]
    seats = make_game_workers(config, games, workers)
    replay = make_replay_of_runs(configs, seats.specs[0], device)
    on_gpu, replay_beside = device.type == "cuda", replay.device == device
    wrap = compiled if on_gpu and config.run.compile else uncompiled
    compute = make_kernels(wrap, wrap if replay_beside else uncompiled)
    algorithm = make_rainbow_stack(
        configs, [num_actions(spec) for spec in seats.specs], device, compute=compute
    )
    graphs = on_gpu and replay_beside and config.run.cuda_graphs
    return BatchedLearner(seats, algorithm, replay, config.run.log_every_agent_steps, graphs)


def make_game_workers(
    config: Config, games: Sequence[Callable[[], Env]], workers: int
) -> GameWorkers:
    """In as many processes; with none, here."""
    shares = _split_evenly(games, workers or 1)
    tables = [partial(GameGroup, share, config.env.frame_stack) for share in shares]
    memory = anonymous_file()
    pool: EnvPool = (
        EnvWorkers(tables, workers, config.task, shared=[memory.fileno()])
        if workers
        else LocalEnvs([make() for make in tables])
    )
    return GameWorkers(pool, [len(share) for share in shares], memory, config.env.frame_stack)


def make_replay_of_runs(
    configs: Sequence[Config], spec: EnvSpec, device: torch.device
) -> NStepReplay:
    """Beside the algorithm where it fits; refuses what fits nowhere."""
    _, size = replay_size(configs[0], spec)
    wanted = configs[0].algorithm.replay_device
    there = choose_replay_device(wanted, device, size * len(configs))
    return make_game_replay(configs[0], len(configs), spec.frame_shape[1:], there)


def make_game_replay(
    config: Config, runs: int, frame_shape: tuple[int, ...], device: torch.device
) -> NStepReplay:
    settings: RainbowConfig = config.algorithm
    return NStepReplay(
        runs,
        replay_transitions(config),
        frame_shape,
        config.env.frame_stack,
        settings.n_steps,
        settings.discount,
        settings.n_step_bug,
        device,
    )


def num_game_workers(runs: int, device: torch.device) -> int:
    """Processes that play the games of a stack: none for one run or on a CPU."""
    return 0 if runs == 1 or device.type == "cpu" else min(runs, len(os.sched_getaffinity(0)))


def _split_evenly(
    makes: Sequence[Callable[[], Env]], shares: int
) -> list[Sequence[Callable[[], Env]]]:
    """Cut into `shares` runs of neighbours, as even as can be."""
    bounds = [len(makes) * share // shares for share in range(shares + 1)]
    return [makes[first:last] for first, last in pairwise(bounds)]


def num_actions(spec: EnvSpec) -> int:
    if spec.num_actions is None:
        raise ConfigError(
            "Rainbow chooses among discrete actions, and this task has continuous ones: use "
            "another --base"
        )
    return spec.num_actions


def replay_transitions(config: Config) -> int:
    """Those this run can ever hold. A short run never allocates the whole capacity."""
    settings: RainbowConfig = config.algorithm
    return min(settings.replay_capacity_transitions, max(1, config.planned_agent_steps))


def replay_size(config: Config, spec: EnvSpec) -> tuple[int, int]:
    """Transitions this run can ever hold, and their bytes."""
    transitions = replay_transitions(config)
    return transitions, NStepReplay.bytes_needed(
        transitions, spec.frame_shape[1:], config.env.frame_stack
    )


def make_agent(
    config: Config,
    device: torch.device,  # noqa: ARG001
    make_env: EnvFactory,
    evaluators: EvaluationWorkers | None = None,
) -> Agent:
    """On the CPU whatever the training runs on: the network is small, and scores are the same."""
    settings: RainbowConfig = config.algorithm
    game, frame_stack = make_env(config, 0, True), config.env.frame_stack
    player = make_rainbow_run(config, num_actions(game.spec), torch.device("cpu"))

    def rounds(seeds: Sequence[int], record: bool) -> EvaluationSteps:
        if evaluators is None:
            return evaluate_games(game, player, seeds, settings.epsilon_eval, frame_stack, record)
        weights = {
            name: value.numpy().copy() for name, value in player.network.state_dict().items()
        }
        return elsewhere(evaluators, (config.to_dict(), weights), seeds, record)

    def elsewhere(
        evaluators: EvaluationWorkers, agent: tuple[Any, ...], seeds: Sequence[int], record: bool
    ) -> EvaluationSteps:
        result = yield from evaluators.evaluate_async(agent, seeds)
        if not record:
            return result
        # The first again, for its pictures.
        seen = yield from evaluate_games(
            game, player, seeds[:1], settings.epsilon_eval, frame_stack, record
        )
        return result._replace(pictures=seen.pictures)

    return Agent(player, rounds, game.close, game.spec)


def make_evaluators(
    config: Config, device: torch.device, make_env: EnvFactory, runs: int
) -> EvaluationWorkers | None:
    """Processes that play the evaluation episodes of all `runs`; None where this one plays them."""
    from cclf.algorithms.rainbow.evaluation_worker import EvaluationWorker

    episodes = runs * max(config.run.eval_episodes, config.run.final_eval_episodes)
    told = config.run.eval_workers
    workers = min(
        episodes,
        (0 if device.type == "cpu" else len(os.sched_getaffinity(0))) if told is None else told,
    )
    return EvaluationWorkers(partial(EvaluationWorker, make_env), workers) if workers else None
