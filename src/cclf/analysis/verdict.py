"""Claims of the paper, and a few of this package, as data, and what results say of each: held, did
not hold, or undecided, with the interval that says so.

    held           the whole 95 % interval lies on the claimed side; where a size is claimed, that
                   size lies inside it or is surpassed: it is not ruled out, and not shown either
    did not hold   the whole interval lies on the other side, or falls short of the claimed size
    undecided      anything else, and always where seeds are too few

A claim against several rivals is one against the best of them, found anew in every resample.
Percentile intervals of few runs are too narrow: where two methods are in truth alike, "held" should
come out in 2.5 % of cases; in a simulation of normal returns it did in 17 %, 11 % and 6 % with 2, 3
and 5 seeds on one task, in 10 %, 6 % and 4 % on six. Hence MIN_SEEDS.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from cclf.analysis import evaluations, published, statistics
from cclf.analysis.evaluations import Clock, Row
from cclf.analysis.statistics import Interval
from cclf.analysis.tabular import number
from cclf.config import Config
from cclf.errors import ConfigError

MIN_SEEDS, MIN_SEEDS_SEVERAL_TASKS = 5, 3
TABLES = (
    *("table1", "ablation", "atari", "minigrid", "cost"),  # of the paper
    # whether its curiosity carries information, a question of our own
    *("curiosity", "curiosity-toy", "curiosity-re3", "curiosity-drqv2"),
)
LESS_IS_BETTER = ("steps", "seconds", "below")

Measure = Literal["return", "average", "iqm", "wins", "steps", "seconds", "above", "below"]
Judgement = Literal["held", "did not hold", "undecided"]


class Claim(NamedTuple):
    """`method` does better than every one of `rivals` on `tasks` at `clock`, by `measure`:

    return    mean return over seeds and tasks; by its difference, or by its ratio where a factor is claimed
    average   the same of the mean over all evaluations of training until then, on one task
    iqm       interquartile mean of scores over runs and tasks, each on its scale (of Atari random to human)
    wins      on how many tasks its mean return is above all rivals'; `factor` of them are claimed
    steps     median steps to a return of `threshold`, as a ratio; a run that never gets there needs infinitely many
    seconds   mean training time, as a ratio
    above     (no rivals) mean return against the fixed `threshold`;  below   the same, claimed to be less
    """

    table: str
    name: str
    text: str
    measure: Measure
    method: str
    rivals: tuple[str, ...]
    tasks: tuple[str, ...]
    clock: Clock
    threshold: float | None
    factor: float | None
    source: str

    @property
    def methods(self) -> tuple[str, ...]:
        return (self.method, *self.rivals)


class Verdict(NamedTuple):
    state: Judgement
    text: str
    estimate: float | None
    low: float | None
    high: float | None
    seeds: int  # the fewest of any method in the claim


def claims(table: str) -> list[Claim]:
    """The claims of one of TABLES."""
    if table not in TABLES:
        raise ConfigError(f"unknown table {table!r}: use one of {', '.join(TABLES)}")
    found = []
    for line in published.rows_of("claims"):
        if line["table"] == table:
            measure: Any = line["measure"]
            unit: Any = line["clock"]
            found.append(
                Claim(
                    table,
                    line["name"],
                    line["text"],
                    measure,
                    line["method"],
                    tuple(line["rivals"].split()),
                    tuple(line["tasks"].split()),
                    Clock(unit, int(line["steps"])),
                    float(line["threshold"]) if line["threshold"] else None,
                    float(line["factor"]) if line["factor"] else None,
                    line["source"],
                )
            )
    return found


def decidable_claims(claims: Iterable[Claim], configs: Iterable[Config]) -> list[Claim]:
    """The claims whose tasks and methods are all among these runs, trained for as many steps as the
    claim names."""
    steps: dict[tuple[str, str, str], int] = {}
    for config in configs:
        env_steps = config.run.env_steps
        name = config.task, config.method_name
        steps[*name, "env_steps"] = env_steps
        steps[*name, "agent_steps"] = env_steps // config.env.action_repeat
    return [
        claim
        for claim in claims
        if all(
            steps.get((task, method, claim.clock.unit), 0) >= claim.clock.steps
            for task in claim.tasks
            for method in claim.methods
        )
    ]


def judge(claim: Claim, rows: Sequence[Row]) -> Verdict:
    """What `rows`, of one profile, say of a claim. Rows of other tasks and methods do no harm."""
    rows = [row for row in rows if row.task in claim.tasks and row.method in claim.methods]
    profiles = sorted({row.profile for row in rows})
    if len(profiles) > 1:
        raise ConfigError(
            f"a claim is judged on one profile, got {', '.join(profiles)}: select rows first"
        )
    try:
        samples = _samples(claim, rows)
    except ConfigError as error:  # evaluations that cannot be compared
        return Verdict("undecided", str(error), None, None, None, 0)
    seeds = min(len(sample) for sample in samples)
    if seeds == 0:
        absent = [
            method for method, sample in zip(claim.methods, samples, strict=True) if not len(sample)
        ]
        return Verdict(
            "undecided", f"no results of {', '.join(absent)} at {claim.clock}", None, None, None, 0
        )
    if claim.measure == "seconds" and len(devices := sorted({row.device for row in rows})) > 1:
        return Verdict(
            "undecided",
            f"timed on different machines: {', '.join(devices)}",
            None,
            None,
            None,
            seeds,
        )
    interval = statistics.compare(samples, lambda parts: _statistic(claim, parts))
    # none lies below 0, even where never / never makes the interval as wide as it can be
    if _words(claim).startswith("ratio"):
        interval = interval._replace(low=np.maximum(interval.low, 0.0))
    needed = MIN_SEEDS if len(claim.tasks) == 1 else MIN_SEEDS_SEVERAL_TASKS
    state = "undecided" if seeds < needed else _state(claim, interval)
    text = _sentence(claim, samples, interval, needed)
    estimate, low, high = (float(value) for value in interval)
    if not statistics.over(samples):
        return Verdict(state, text, estimate, None, None, seeds)
    return Verdict(state, text, estimate, low, high, seeds)


def _samples(claim: Claim, rows: Sequence[Row]) -> list[np.ndarray]:
    """One (runs, tasks) matrix per method of what the measure looks at."""
    if claim.measure in ("steps", "average"):
        evaluations.refuse_other_spacing(rows)
    if claim.measure == "average":
        means = evaluations.mean_returns(rows, claim.methods, claim.clock)
        return [means[method] for method in claim.methods]
    if claim.measure in ("steps", "seconds"):
        by_method: dict[str, list[list[float]]] = {method: [] for method in claim.methods}
        for name, readings in evaluations.runs(rows).items():
            last = evaluations.at(readings, claim.clock)
            if claim.measure == "seconds" and last is not None:
                by_method[name.method].append([last.wall_seconds])
            elif claim.measure == "steps" and (last is not None or readings[-1].state == "failed"):
                by_method[name.method].append([_steps(readings, claim)])
        return [np.array(by_method[method]).reshape(-1, 1) for method in claim.methods]
    matrices = evaluations.scores(rows, claim.methods, dict.fromkeys(claim.tasks, claim.clock))
    samples = [matrices[method] for method in claim.methods]
    if claim.measure != "iqm":
        return samples
    low, high = np.transpose([published.score_range(task) for task in claim.tasks])
    return [(scores - low) / (high - low) for scores in samples]


def _steps(readings: Sequence[Row], claim: Claim) -> float:
    assert claim.threshold is not None, f"the claim {claim.name} lacks its threshold"
    seen = [row for row in readings if getattr(row, claim.clock.unit) <= claim.clock.steps * 1.01]
    return evaluations.steps_to(seen, claim.threshold, claim.clock.unit)


def _statistic(claim: Claim, samples: Sequence[np.ndarray]) -> np.ndarray:
    """What the claim is about, for scores (runs, tasks) or resamples of them (..., runs, tasks)."""
    ours, theirs = samples[0], samples[1:]
    if claim.measure in ("above", "below"):
        return statistics.mean(ours)
    if claim.measure == "wins":
        best = np.max([scores.mean(axis=-2) for scores in theirs], axis=0)
        return np.asarray((ours.mean(axis=-2) > best).sum(axis=-1))
    if claim.measure == "steps":
        quickest = np.min([np.median(scores, axis=(-2, -1)) for scores in theirs], axis=0)
        return np.asarray(np.median(ours, axis=(-2, -1)) / quickest)
    average = statistics.iqm if claim.measure == "iqm" else statistics.mean
    means = [average(scores) for scores in theirs]
    if claim.measure == "seconds":
        return np.asarray(average(ours) / np.min(means, axis=0))
    best = np.max(means, axis=0)
    return np.asarray(average(ours) - best if claim.factor is None else average(ours) / best)


def _words(claim: Claim) -> str:
    """What the number of a verdict is."""
    if claim.measure in ("return", "average", "iqm"):
        return "difference" if claim.factor is None else "ratio"
    words = {
        "wins": f"of {len(claim.tasks)} tasks won",
        "steps": "ratio of steps",
        "seconds": "ratio of seconds",
        "above": "mean",
        "below": "mean",
    }
    return words[claim.measure]


def _even(claim: Claim) -> float:
    """The value between the two sides: where neither does better."""
    if claim.measure in ("above", "below"):
        assert claim.threshold is not None, f"the claim {claim.name} lacks its threshold"
        return claim.threshold
    if claim.measure == "wins":
        assert claim.factor is not None, f"the claim {claim.name} lacks its count"
        return claim.factor - 0.5  # tasks are whole: a count of `factor` is on the claimed side
    return 0.0 if _words(claim) == "difference" else 1.0


def _state(claim: Claim, interval: Interval) -> Judgement:
    sign = -1.0 if claim.measure in LESS_IS_BETTER else 1.0  # turned so that more is better
    low, high = sorted((sign * float(interval.low), sign * float(interval.high)))
    even = sign * _even(claim)
    if high < even or _short(claim, interval):
        return "did not hold"
    return "held" if low > even else "undecided"


def _short(claim: Claim, interval: Interval) -> bool:
    """Whether the whole interval falls short of the size that is claimed."""
    if claim.factor is None or claim.measure == "wins":
        return False
    less = claim.measure in LESS_IS_BETTER
    return float(interval.low) > claim.factor if less else float(interval.high) < claim.factor


def _sentence(claim: Claim, samples: Sequence[np.ndarray], interval: Interval, needed: int) -> str:
    """The number with its interval and seeds, who gave nothing to divide by, and what follows:
    which side the interval lies on, and where in it a claimed size lies."""
    whole = claim.measure == "wins"
    estimate, low, high = (_figure(float(value), whole) for value in interval)
    redrawn = statistics.over(samples)
    ends = f" [{low}, {high}]" * bool(redrawn) + " (tasks redrawn)" * (redrawn == "tasks")
    number_of = f"{estimate} {_words(claim)}" if whole else f"{_words(claim)} {estimate}"
    fewest, most = (pick(len(sample) for sample in samples) for pick in (min, max))
    seeds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    follows = (
        f"too few to decide, at least {needed} of each are needed"
        if fewest < needed
        else _what_follows(claim, interval)
    )
    reasons = "; ".join(part for part in (_nothing(claim, samples), follows) if part)
    return f"{number_of}{ends}, {seeds} seed{'s' * (most != 1)}; {reasons}"


def _figure(value: float, whole: bool) -> str:
    """0 and infinity as such: something was never reached, or nothing was scored."""
    if np.isnan(value):
        return "unknown"
    if np.isinf(value):
        return "−∞" if value < 0 else "∞"
    return f"{value:.0f}" if whole or value == 0 else number(value)


def _what_follows(claim: Claim, interval: Interval) -> str:
    """Where the interval lies, in words; its ends belong to it."""
    low, high, even = float(interval.low), float(interval.high), _even(claim)
    inside, above = low <= even <= high, low > even
    size = f"the claimed {claim.factor:g}" if claim.factor is not None else ""
    if claim.measure == "wins":
        if inside:
            return f"both sides of {size} lie inside the interval"
        return f"nowhere fewer than {size}" if above else f"fewer than {size}"
    if claim.measure in ("above", "below"):
        return _inside(f"{even:g}") if inside else f"{'above' if above else 'below'} {even:g}"
    short = _short(claim, interval)
    if inside:
        none = f"{even:g} (no difference)"
        if size and not short:
            return f"{none} and {size} both lie inside the interval"
        return f"short of {size}; {_inside(none)}" if size else _inside(none)
    side = f"{claim.method} {_compared(claim, above)} {_rivals(claim)}"
    if not size or above == (claim.measure in LESS_IS_BETTER):  # or on the other side
        return side
    if short:
        return f"{side}, but short of {size}"
    reached = low <= (claim.factor or 0.0) <= high
    return f"{side}, and {_inside(size)}" if reached else f"{side}, and beyond {size}"


def _inside(value: str) -> str:
    return f"{value} lies inside the interval"


def _compared(claim: Claim, above: bool) -> str:
    if claim.measure in ("steps", "seconds"):
        return f"needs {'more' if above else 'fewer'} {claim.measure} than"
    return f"is {'above' if above else 'below'}"


def _rivals(claim: Claim) -> str:
    several = f"the best of {len(claim.rivals)} rivals"
    return claim.rivals[0] if len(claim.rivals) == 1 else several


def _nothing(claim: Claim, samples: Sequence[np.ndarray]) -> str:
    """What makes a ratio 0, infinite or unknown: median runs that never got there, means of 0."""
    named = list(zip(claim.methods, samples, strict=True))
    if claim.measure == "steps":
        never = [method for method, steps in named if np.isinf(np.median(steps))]
        shares = [f"{method} {np.isfinite(steps).sum()} of {len(steps)}" for method, steps in named]
        runs = f"runs that did: {', '.join(shares)}"
        verb = f"never reached {claim.threshold:g} ({runs})"
        return f"the median run of {' and of '.join(never)} {verb}" if never else ""
    if _words(claim) == "ratio":
        zero = [method for method, scores in named if not statistics.mean(scores)]
        return f"the mean of {' and of '.join(zero)} is 0" if zero else ""
    return ""
