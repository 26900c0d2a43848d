"""`cclf reproduce`: what a table of the paper will cost on this machine, and which of its claims
its runs bear out."""

import dataclasses
import heapq
import multiprocessing
import signal
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from cclf.analysis import verdict
from cclf.analysis.evaluations import Row
from cclf.analysis.verdict import Claim, Verdict
from cclf.config import Config
from cclf.sweep.plan import Call, is_finished, progress
from cclf.training.signals import StopSignal

CALIBRATION_SECONDS = 1.0  # timed, per method, after its warm-up
# On-policy a window of 10,000 observations fills; on a GPU compilers and graphs are at work.
WARMUP_UPDATES = {"on-policy": 160, "cpu": 2, "cuda": 20}
_RANDOM_AGENT_STEPS = 100  # before a calibration's first update, in place of the run's own warm-up
_REPLAY_AGENT_STEPS = 1_000  # for which its replay is made
# timed in place of larger ones, whose updates take many seconds on a CPU, in proportion
_CPU_BATCH_SIZE = 32


class Speed(NamedTuple):
    """Of one method on the first task of its suite, alone on this machine."""

    task: str
    device: str
    agent_steps_per_second: float
    evaluation_seconds: float  # of an untrained agent, whose episodes are as long as they get
    start_seconds: float


Kind = tuple[str, str]  # suite and method: what is taken to be equally fast


def kind_of(call: Call) -> Kind:
    return call.config.task.partition("/")[0], call.config.method_name


def measure(calls: Sequence[Call], stop: StopSignal) -> dict[Kind, Speed]:
    """A few seconds of each kind of run, one after the other, each in a process that gives all
    memory back."""
    first: dict[Kind, Config] = {}
    for call in calls:
        first.setdefault(kind_of(call), call.config)
    speeds: dict[Kind, Speed] = {}
    for kind, config in first.items():
        if stop.requested:
            break
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            1, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)
        ) as pool:  # Ctrl-C is for us
            speeds[kind] = pool.submit(_calibrate, config, time.time()).result()
    return speeds


def _calibrate(config: Config, started_at: float) -> Speed:
    import torch

    from cclf import build
    from cclf.training import devices
    from cclf.training.turns import run_to_end

    torch.set_num_threads(max(1, config.run.threads))
    base = build.base_of(config)
    on_policy = not base.uses_replay
    batches = 1.0
    if not on_policy:
        changes: dict[str, Any] = {base.warmup_field: _RANDOM_AGENT_STEPS}
        if devices.choose_device(config.run.device).type == "cpu":
            changes["batch_size"] = min(config.algorithm.batch_size, _CPU_BATCH_SIZE)
            batches = config.algorithm.batch_size / changes["batch_size"]
        run = dataclasses.replace(
            config.run, env_steps=_REPLAY_AGENT_STEPS * config.env.action_repeat
        )
        config = dataclasses.replace(
            config, algorithm=dataclasses.replace(config.algorithm, **changes), run=run
        )
    device = devices.choose_device(config.run.device)
    devices.set_precision(config, device)
    learner = build.make_learner(config, device)
    agent = build.make_agent(config, device)
    start_seconds = time.time() - started_at
    agent_steps = 0

    def turn() -> int:
        return run_to_end(learner.turn(agent_steps * config.env.action_repeat)).agent_steps

    while learner.updates < WARMUP_UPDATES["on-policy" if on_policy else device.type]:
        agent_steps += turn()
    before, since = agent_steps, time.perf_counter()
    while time.perf_counter() - since < CALIBRATION_SECONDS or agent_steps == before:
        agent_steps += turn()
    if device.type == "cuda":
        torch.cuda.synchronize()
    per_second = (agent_steps - before) / (time.perf_counter() - since) / batches
    # one by one where episodes do not run side by side
    seeds = range(config.run.eval_episodes) if on_policy else range(1)
    since = time.perf_counter()
    agent.evaluate(list(seeds))
    evaluation = (time.perf_counter() - since) * config.run.eval_episodes / len(seeds)
    agent.close()
    learner.close()
    return Speed(config.task, str(device), per_second, evaluation, start_seconds)


def seconds_left(call: Call, speed: Speed) -> float:
    """What is left of a run: its start, its steps and its evaluations."""
    run, repeat = call.config.run, call.config.env.action_repeat
    done = min(progress(call.folder).env_steps, run.env_steps)
    evaluations: float = (
        -(-run.env_steps // run.eval_every_env_steps) - done // run.eval_every_env_steps
    )
    evaluations += run.final_eval_episodes / run.eval_episodes
    return (
        speed.start_seconds
        + (run.env_steps - done) / repeat / speed.agent_steps_per_second
        + evaluations * speed.evaluation_seconds
    )


def wall_seconds(lengths: Sequence[float], places: int) -> float:
    """How long runs take on `places` of equal speed, each given to the first that falls free.

    >>> wall_seconds([3.0, 2.0, 2.0, 1.0], 2)
    4.0
    """
    free_at = [0.0] * places
    for length in lengths:
        heapq.heappush(free_at, heapq.heappop(free_at) + length)
    return max(free_at)


class ForecastLine(NamedTuple):
    kind: Kind
    runs_left: int
    env_steps: int  # per run
    env_steps_per_second: float
    seconds: float  # per run, the longest


class Forecast(NamedTuple):
    lines: list[ForecastLine]
    runs: int
    finished: int
    places: int
    busy_seconds: float
    wall_seconds: float


def forecast(calls: Sequence[Call], speeds: Mapping[Kind, Speed], places: int) -> Forecast:
    """`speeds` are those of every kind of run that is not finished."""
    seconds = {
        call: seconds_left(call, speeds[kind_of(call)]) for call in calls if not is_finished(call)
    }
    lines = []
    for kind, speed in speeds.items():
        alike = [call for call in seconds if kind_of(call) == kind]
        longest = max(alike, key=lambda call: seconds[call])
        rate = speed.agent_steps_per_second * longest.config.env.action_repeat
        lines.append(
            ForecastLine(kind, len(alike), longest.config.run.env_steps, rate, seconds[longest])
        )
    lengths = list(seconds.values())
    return Forecast(
        lines,
        len(calls),
        len(calls) - len(lengths),
        places,
        sum(lengths),
        wall_seconds(lengths, places),
    )


def decidable(claims: Sequence[Claim], calls: Sequence[Call]) -> list[Claim]:
    """The claims that these runs can speak to: all of a claim's tasks and methods are among them,
    and run that long."""
    reached: dict[tuple[str, str], int] = {}
    for call in calls:
        config = call.config
        repeat = config.env.action_repeat
        for unit, steps in (
            ("env_steps", config.run.env_steps),
            ("agent_steps", config.run.env_steps // repeat),
        ):
            reached[f"{config.task} {config.method_name}", unit] = steps
    return [
        claim
        for claim in claims
        if all(
            reached.get((f"{task} {method}", claim.clock.unit), 0) >= claim.clock.steps
            for task in claim.tasks
            for method in claim.methods
        )
    ]


def verdicts(table: str, calls: Sequence[Call], rows: Sequence[Row]) -> list[tuple[Claim, Verdict]]:
    return [
        (claim, verdict.judge(claim, rows)) for claim in decidable(verdict.claims(table), calls)
    ]
