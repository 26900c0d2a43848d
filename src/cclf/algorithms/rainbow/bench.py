"""Speed of Rainbow: one run in a CUDA graph, many runs as a stack, the games on all cores, and what
a schedule of 26 games x 4 seeds takes.

No speed without parity: the same call holds a stack against its runs one by one, and the fast way
against the plain one.
"""

import math
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cclf import presets
from cclf.algorithms.rainbow.coefficients import GAMES
from cclf.config import Config
from cclf.console import say
from cclf.errors import ConfigError
from cclf.validation import Range

if TYPE_CHECKING:
    import torch

    from cclf.algorithms.rainbow.games import BatchedLearner
    from cclf.types import EnvFactory

ACTIONS = 18  # the most a game has
PARITY_RUNS, PARITY_UPDATES = 3, 8
SCHEDULE_GAMES, SCHEDULE_SEEDS = 26, 4
GAME_TURNS = 200


class NullGame:
    """An environment that takes no time: the shapes of an Atari game and blank frames."""

    def __init__(self, pixels: int):
        import numpy as np

        from cclf.types import EnvSpec, EnvStep

        self.spec = EnvSpec((1, pixels, pixels), 1, 4, None, num_actions=ACTIONS)
        self._frame = np.zeros((1, pixels, pixels), np.uint8)
        self._step = EnvStep(self._frame, 0.0, terminated=False, truncated=False)

    def reset(self, seed: int | None = None) -> Any:  # noqa: ARG002
        return self._frame

    def step(self, action: int) -> Any:  # noqa: ARG002
        return self._step

    def render(self) -> Any:
        return self._frame[0]

    def close(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class Options:
    """Updates per second of Rainbow methods, one run alone and many as a stack, after a check of
    their parity; and what 26 games with 4 seeds each would take."""

    methods: tuple[str, ...] = ("rainbow", "curl", "cclf")
    """Methods to measure, one after another."""
    stacks: tuple[Annotated[int, Range(1, 10_000)], ...] = (26, 104)
    """Runs in a stack."""
    precision: Literal["fp32", "tf32"] = "fp32"
    """Of matrix products."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU when there is one."""
    rounds: Annotated[int, Range(1, 1_000_000)] = 200
    """Updates of every run in each of five measurements."""
    replay_transitions: Annotated[int, Range(100, 10**12)] = 100_000
    """Of each run; 0.71 GB per 100,000."""
    deterministic: bool = False
    """On a GPU, with the kernels of `cclf train --deterministic`."""
    tiny: bool = False
    """Small networks and frames, to try the benchmark itself."""
    json: bool = False
    """One JSON document on standard output."""


FIGURE, UNIT = "median_ms", "ms per update of one run"


def bench(options: Options, make_env: "EnvFactory") -> dict[str, Any]:
    """Updates per second of each method, alone and in stacks of these sizes."""
    from cclf.storage.provenance import origin
    from cclf.training import devices

    device, precision, tiny = devices.choose_device(options.device), options.precision, options.tiny
    configs = [
        _config(method, precision, options.replay_transitions, tiny) for method in options.methods
    ]
    if options.deterministic:
        configs = [
            replace(config, run=replace(config.run, deterministic=True)) for config in configs
        ]
    for config in configs:  # what cannot be is refused before anything is measured
        devices.configure_torch(config, device)
    report: dict[str, Any] = {
        **origin(device),
        "precision": precision,
        "processors": os.cpu_count(),
        "replay_transitions": options.replay_transitions,
        "game_steps_per_second": _game_speed(make_env, GAMES[:2] if tiny else GAMES),
    }
    for method, config in zip(options.methods, configs, strict=True):
        figures: dict[str, Any] = {"parity": _parity(config, device)}
        say(f"{method}: parity {figures['parity']}")
        for runs in (1, *options.stacks):
            figures[f"stack_{runs}"] = timed = _time_stack(config, runs, device, options.rounds)
            rate = f"{timed['run_updates_per_second']:,.0f} run-updates/s"
            say(f"{method}: {runs} runs, {rate}")
        figures["median_ms"] = figures["stack_1"]["median_ms"]
        games = report["game_steps_per_second"]
        figures["schedule"] = _schedule(config, figures, options.stacks, games)
        report[method] = figures
    return report


def _config(
    method: str, precision: Literal["fp32", "tf32"], replay_transitions: int, tiny: bool
) -> Config:
    config = presets.resolve("atari/Pong", method)
    env = config.env
    algorithm = replace(
        config.algorithm, replay_capacity_transitions=replay_transitions, precision=precision
    )
    if tiny:
        algorithm = replace(
            algorithm,
            batch_size=4,
            hidden_dim=8,
            atoms=5,
            contrastive_hidden_dim=8,
            contrastive_dim=8,
        )
        env = replace(env, frame_pixels=36, crop_pixels=36)
    return replace(config, algorithm=algorithm, env=env)


def _stack(
    configs: Sequence[Config], device: "torch.device", plain: bool = False
) -> "BatchedLearner":
    """A learner of these runs on games that take no time, its replay filled."""
    import torch

    from cclf.algorithms.rainbow.learner import make_game_stack

    if plain:
        configs = [
            replace(config, run=replace(config.run, cuda_graphs=False, compile=False))
            for config in configs
        ]
    games = [partial(NullGame, config.env.frame_pixels) for config in configs]
    stack = make_game_stack(configs, device, games=games)
    replay = stack.replay
    random = torch.Generator(replay.device).manual_seed(0)
    for name, low, high in (("frames", 0, 256), ("actions", 0, ACTIONS), ("rewards", -1, 2)):
        # the same for each run: then it does not depend on their number
        one = getattr(replay, name)[0]
        getattr(replay, name)[:] = torch.randint(
            low, high, one.shape, generator=random, device=replay.device, dtype=one.dtype
        )
    replay.ages[:] = torch.arange(replay.slots, device=replay.device)
    priorities = torch.rand(replay.slots, generator=random, device=replay.device)
    replay.priorities[:, : replay.slots] = priorities.double() + 0.1
    replay.set_written(replay.slots)
    return stack


def _parity(config: Config, device: "torch.device") -> dict[str, float]:
    """After some updates from the same replay, how far a stack is from its runs one by one,
    relative to how far all have moved.

    `stack` compares a stack of three with each alone, both plain and in float32; `fast` compares
    the compiled update in CUDA graphs, in the precision that was asked for, with the plain one in
    float32.
    """
    import torch

    from cclf.training import devices

    exact = replace(config, algorithm=replace(config.algorithm, precision="fp32"))
    configs = [replace(config, seed=seed) for seed in range(PARITY_RUNS)]

    def moved(group: Sequence[Config], plain: bool) -> torch.Tensor:
        devices.set_precision(exact if plain else config, device)
        stack = _stack(group, device, plain)
        before = stack.algorithm.rows["online"].detach().clone()
        for number in range(PARITY_UPDATES):
            stack.learn(config.algorithm.learn_start_agent_steps + number, 4 * number)
        return stack.algorithm.rows["online"].detach() - before

    together = moved(configs, plain=True)
    alone = torch.cat([moved([each], plain=True) for each in configs])
    fast = moved(configs, plain=False)
    length = together.norm()
    return {
        "stack_relative_difference": float((together - alone).norm() / length),
        "fast_relative_difference": float((together - fast).norm() / length),
    }


def _time_stack(config: Config, runs: int, device: "torch.device", rounds: int) -> dict[str, float]:
    """Milliseconds of one update of every run (replay, random numbers and priorities included), and
    of a whole turn."""
    from cclf.storage.provenance import finish

    stack = _stack([replace(config, seed=seed) for seed in range(runs)], device)
    step = config.algorithm.learn_start_agent_steps
    started = time.perf_counter()
    for _ in range(max(8, rounds // 10)):
        stack.learn(step, 0)
    finish(device)
    ready = time.perf_counter() - started
    updates = [_milliseconds(lambda: stack.learn(step, 0), rounds, device) for _ in range(5)]
    for run in stack.runs:
        run.agent_steps = step
    turns = [_milliseconds(lambda: stack.step(0), rounds, device) for _ in range(3)]
    median = statistics.median(updates)
    return {
        "median_ms": median,
        "least_ms": min(updates),
        "most_ms": max(updates),
        "run_updates_per_second": 1e3 * runs / median,
        # acting, storing and target copies besides; the game takes no time
        "turn_median_ms": statistics.median(turns),
        "seconds_to_get_ready": ready,
    }


def _milliseconds(call: Any, rounds: int, device: "torch.device") -> float:
    """Per call, over `rounds` of them, from the first start to the last end."""
    from cclf.storage.provenance import finish

    started = time.perf_counter()
    for _ in range(rounds):
        call()
    finish(device)
    return (time.perf_counter() - started) * 1e3 / rounds


def _game_speed(make_env: "EnvFactory", names: Sequence[str]) -> float | None:
    """Agent steps per second of this machine under random actions, these games in a process per
    core; None without ale-py.

    A core alone with one game is no measure: it makes twice as many, or more.
    """
    import numpy as np

    from cclf.algorithms.rainbow.learner import make_game_workers

    configs = [presets.resolve(f"atari/{name}") for name in names]
    try:
        make_env(configs[0], 0).close()
    except ConfigError:
        return None
    games = [partial(make_env, config, 0) for config in configs]
    workers = min(len(games), len(os.sched_getaffinity(0)))
    with closing(make_game_workers(configs[0], games, workers)) as tables:
        random = np.random.default_rng(0)
        counts = np.array([spec.num_actions for spec in tables.specs])
        tables.look()
        started = time.perf_counter()
        for _ in range(GAME_TURNS):
            tables.play(random.integers(counts))
        return GAME_TURNS * len(games) / (time.perf_counter() - started)


def _schedule(
    config: Config, figures: dict[str, Any], stacks: Sequence[int], game_speed: float | None
) -> dict[str, Any]:
    """Minutes for 26 games x 4 seeds, from the turns of the largest stack that was measured and the
    speed of the games.

    Turns before learning are counted as the others. Evaluation is left out. `overlapped`: half the
    runs play while half learn.
    """
    runs = SCHEDULE_GAMES * SCHEDULE_SEEDS
    size = max((1, *stacks))
    passes = math.ceil(runs / size)
    learning = (
        passes * config.planned_agent_steps * figures[f"stack_{size}"]["turn_median_ms"] / 60e3
    )
    answer: dict[str, Any] = {
        "runs": runs,
        "stack": size,
        "agent_steps_of_each": config.planned_agent_steps,
    }
    answer["learning_minutes"] = learning
    if game_speed is not None:
        playing = runs * config.planned_agent_steps / game_speed / 60.0
        answer |= {
            "playing_minutes": playing,
            "minutes_one_after_the_other": learning + playing,
            "minutes_overlapped": max(learning, playing),
        }
    return answer
