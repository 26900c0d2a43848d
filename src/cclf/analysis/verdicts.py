"""Claims of the paper, and a few of this package, as data, and whether results support them.

    held           the whole 95 % interval is on the claimed side; a claimed size is exceeded or
                   inside the interval, which neither shows it nor rules it out
    did not hold   the whole interval is on the other side, or falls short of the claimed size
    undecided      anything else, and always if there are too few seeds

The rule controls its error: if all methods are equal, at most 2.5 % of claims are held and at most
2.5 % are on the other side (simulated in tests/analysis/test_verdict.py). The intervals are
percentile intervals, expanded for few seeds (`statistics.expanded_tail`).

A claim against several baselines is a claim against the best of them, so the method is compared with
each. A claim holds only if all comparisons do, so the limit on the claimed side is the worst limit
of any comparison at 2.5 %. A single comparison may be on the other side by chance, so the limit on
that side is the worst limit at 2.5 % divided by the number of baselines (Bonferroni).

Wins are counted with an interval of the difference on each task, at 2.5 % divided by the number of
tasks. The lower limit is the number of tasks whose whole interval is above 0, the upper limit the
number of tasks whose interval extends above 0. If two methods are equal, all five seeds of one are
above those of the other in 0.4 % of cases, so a single win among 26 tasks is no evidence with five
seeds; the claims are about three wins or more.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal, NamedTuple, cast

import numpy as np

from cclf.analysis import published, runs, statistics
from cclf.analysis.runs import ResultRow, StepBudget, StepUnit
from cclf.analysis.statistics import Interval
from cclf.analysis.table import format_number
from cclf.config import Config
from cclf.errors import ConfigError

MIN_SEEDS, MIN_SEEDS_SEVERAL_TASKS = 5, 3
RESAMPLES = 20_000  # many, since expanded intervals cut off only about 0.1 % at each end
OF_THIS_PACKAGE = "(asked by this package)"  # these claims compare curiosity with control methods
TABLES = {  # the tables of claims, with their titles; the claims of the first five are the paper's
    "table1": "DeepMind Control",
    "ablation": "the four pieces",
    "atari": "Atari",
    "minigrid": "MiniGrid",
    "cost": "training time",
    "curiosity": f"curiosity and its controls {OF_THIS_PACKAGE}",
    "curiosity-toy": f"curiosity and its controls on a toy {OF_THIS_PACKAGE}",
    "curiosity-re3": f"curiosity and its controls on RE3 {OF_THIS_PACKAGE}",
    "curiosity-drqv2": f"curiosity and its controls on DrQ-v2 {OF_THIS_PACKAGE}",
}
LESS_IS_BETTER = ("steps", "seconds", "below")

ClaimKind = Literal["return", "average", "iqm", "wins", "steps", "seconds", "above", "below"]
VerdictState = Literal["held", "did not hold", "undecided"]


class Claim(NamedTuple):
    """`method` does better than every one of `baselines` on `tasks` at `budget`, by `measure`:

    return    mean return over seeds and tasks, as a difference, or as a ratio if `factor` is claimed
    average   like return, with the mean of all evaluations of a run up to `budget`, on one task
    iqm       interquartile mean of normalized scores over runs and tasks (Atari: 0 is random, 1 is human)
    wins      number of tasks on which its mean return is above that of every baseline; `factor` is the claimed number
    steps     median steps to a return of `threshold`, as a ratio; infinite for a run that never reaches it
    seconds   mean training time, as a ratio
    above     (no baselines) mean return against the fixed `threshold`;  below   the same, claimed to be less
    """

    table: str
    name: str
    text: str
    measure: ClaimKind
    method: str
    baselines: tuple[str, ...]
    tasks: tuple[str, ...]
    budget: StepBudget
    threshold: float | None
    factor: float | None
    source: str

    @property
    def methods(self) -> tuple[str, ...]:
        return (self.method, *self.baselines)


class Verdict(NamedTuple):
    state: VerdictState
    text: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: int = 0  # the number of seeds of the method with the fewest; 0: not evaluated


def claims(table: str) -> list[Claim]:
    """The claims of one of TABLES."""
    if table not in TABLES:
        raise ConfigError(f"unknown table {table!r}: use one of {', '.join(TABLES)}")
    return [
        Claim(
            table,
            line["name"],
            line["text"],
            cast(ClaimKind, line["measure"]),
            line["method"],
            tuple(line["rivals"].split()),
            tuple(line["tasks"].split()),
            StepBudget(cast(StepUnit, line["clock"]), int(line["steps"])),
            float(line["threshold"]) if line["threshold"] else None,
            float(line["factor"]) if line["factor"] else None,
            line["source"],
        )
        for line in published.rows_of("claims")
        if line["table"] == table
    ]


def decidable_claims(claims: Iterable[Claim], configs: Iterable[Config]) -> list[Claim]:
    """The claims whose tasks and methods are all among these runs, trained for as many steps as the
    claim requires."""
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
            steps.get((task, method, claim.budget.unit), 0) >= claim.budget.steps
            for task in claim.tasks
            for method in claim.methods
        )
    ]


def evaluate_claim(claim: Claim, rows: Sequence[ResultRow]) -> Verdict:
    """Whether `rows`, all of one profile, support a claim. Rows of other tasks and methods are
    ignored."""
    rows = [row for row in rows if row.task in claim.tasks and row.method in claim.methods]
    profiles = sorted({row.profile for row in rows})
    if len(profiles) > 1:
        raise ConfigError(
            f"a claim is evaluated on one profile, got {', '.join(profiles)}: select rows first"
        )
    try:
        samples = _samples(claim, rows)
    except ConfigError as error:  # evaluations that cannot be compared
        return Verdict("undecided", str(error))
    seeds = min(len(sample) for sample in samples)
    if seeds == 0:
        absent = [m for m, sample in zip(claim.methods, samples, strict=True) if not len(sample)]
        return Verdict("undecided", f"no results of {', '.join(absent)} at {claim.budget}")
    if claim.measure == "seconds" and len(devices := sorted({row.device for row in rows})) > 1:
        text = f"timed on different machines: {', '.join(devices)}"
        return Verdict("undecided", text, seeds=seeds)
    interval = _interval(claim, samples)
    needed = MIN_SEEDS if len(claim.tasks) == 1 else MIN_SEEDS_SEVERAL_TASKS
    state = "undecided" if seeds < needed else _verdict_state(claim, interval)
    text = _sentence(claim, samples, interval, needed)
    estimate, *limits = interval.floats()
    low, high = limits if seeds > 1 else (None, None)
    return Verdict(state, text, estimate, low, high, seeds)


def _samples(claim: Claim, rows: Sequence[ResultRow]) -> list[np.ndarray]:
    """The measured quantity as one matrix (runs, tasks) per method."""
    if claim.measure in ("steps", "average"):
        runs.check_same_evaluation_steps(runs.runs(rows))
    if claim.measure == "average":
        scores = runs.mean_returns(rows, claim.methods, claim.tasks[0], claim.budget)
    elif claim.measure in ("steps", "seconds"):
        score = partial(_steps if claim.measure == "steps" else _seconds, claim)
        scores = runs.scores_by_method(rows, claim.methods, claim.tasks, score, {})
    else:
        scores = runs.score_matrix(rows, claim.methods, dict.fromkeys(claim.tasks, claim.budget))
    samples = [scores[method] for method in claim.methods]
    if claim.measure == "iqm":
        return [published.normalized(sample, claim.tasks) for sample in samples]
    return samples


def _seconds(claim: Claim, evaluations: Sequence[ResultRow]) -> float | None:
    """The training time of a run up to the budget of the claim; None if it has not reached it."""
    last = runs.evaluation_at(evaluations, claim.budget)
    return None if last is None else last.wall_seconds


def _steps(claim: Claim, evaluations: Sequence[ResultRow]) -> float | None:
    """The steps after which a run reaches the threshold of the claim, or infinity. None for an
    unfinished run that has not reached the budget of the claim."""
    assert claim.threshold is not None, f"the claim {claim.name} has no threshold"
    if evaluations[0].state != "failed" and not runs.evaluation_at(evaluations, claim.budget):
        return None
    limit = claim.budget.steps * 1.01
    until = [row for row in evaluations if claim.budget.steps_of(row) <= limit]
    return runs.steps_to(until, claim.threshold, claim.budget.unit)


def _interval(claim: Claim, samples: Sequence[np.ndarray]) -> Interval:
    """The claimed quantity against the best of the baselines, with the limits that the docstring of
    this module describes."""
    pairs = [[samples[0], theirs] for theirs in samples[1:]] or [[samples[0]]]
    tail = statistics.TAIL / (len(claim.tasks) if claim.measure == "wins" else 1)
    statistic, less = partial(_statistic, claim), claim.measure in LESS_IS_BETTER
    intervals = []
    for pair in pairs:
        seeds = min(map(len, pair))
        claimed, other = (statistics.expanded_tail(seeds, t) for t in (tail, tail / len(pairs)))
        tails = (other, claimed) if less else (claimed, other)
        intervals.append(statistics.bootstrap_statistic(pair, statistic, RESAMPLES, tails=tails))
    worst = Interval(*(np.fmax if less else np.fmin).reduce(intervals))
    if claim.measure == "wins":
        return Interval(*(np.asarray((differences > 0).sum()) for differences in worst))
    if _quantity_name(claim).startswith("ratio"):  # ∞ / ∞ gives a low limit of −∞
        return worst._replace(low=np.maximum(worst.low, 0.0))
    return worst


def _statistic(claim: Claim, samples: Sequence[np.ndarray]) -> np.ndarray:
    """The claimed quantity against one baseline, from scores (runs, tasks) or their resamples
    (..., runs, tasks). For wins, it is the difference on each task (..., tasks)."""
    ours, theirs = samples[0], samples[-1]
    if claim.measure == "wins":
        return np.asarray(ours.mean(axis=-2) - theirs.mean(axis=-2))
    if claim.measure == "steps":
        return np.asarray(np.median(ours, axis=(-2, -1)) / np.median(theirs, axis=(-2, -1)))
    average = statistics.iqm if claim.measure == "iqm" else statistics.mean
    if claim.measure in ("above", "below"):
        return average(ours)
    if _quantity_name(claim) == "difference":
        return np.asarray(average(ours) - average(theirs))
    return np.asarray(average(ours) / average(theirs))


def _quantity_name(claim: Claim) -> str:
    """The name of the quantity that a verdict estimates."""
    names = {
        "wins": f"of {len(claim.tasks)} tasks won",
        "steps": "ratio of steps",
        "seconds": "ratio of seconds",
        "above": "mean",
        "below": "mean",
    }
    return names.get(claim.measure, "difference" if claim.factor is None else "ratio")


def _null_value(claim: Claim) -> float:
    """The value at which neither method does better."""
    if claim.measure in ("above", "below"):
        assert claim.threshold is not None, f"the claim {claim.name} has no threshold"
        return claim.threshold
    if claim.measure == "wins":
        assert claim.factor is not None, f"the claim {claim.name} has no count"
        return claim.factor - 0.5  # so that a count of `factor` tasks is on the claimed side
    return 0.0 if _quantity_name(claim) == "difference" else 1.0


def _side(claim: Claim, interval: Interval, value: float) -> int:
    """Whether the interval is on the claimed side of a value (1), on the other side (-1), or
    contains it (0)."""
    above = int(float(interval.low) > value) - int(float(interval.high) < value)
    return -above if claim.measure in LESS_IS_BETTER else above


def _claimed_size(claim: Claim) -> float | None:
    """The claimed value of a ratio, if any."""
    return None if claim.measure == "wins" else claim.factor


def _verdict_state(claim: Claim, interval: Interval) -> VerdictState:
    side, size = _side(claim, interval, _null_value(claim)), _claimed_size(claim)
    if side < 0 or (size is not None and _side(claim, interval, size) < 0):
        return "did not hold"
    return "held" if side > 0 else "undecided"


def _sentence(claim: Claim, samples: Sequence[np.ndarray], interval: Interval, needed: int) -> str:
    """The text of a verdict: the estimate with its interval and seeds, why a ratio is degenerate,
    and on which side of the null value and of a claimed size the interval is."""
    is_count = claim.measure == "wins"
    estimate, low, high = (_format(float(value), is_count) for value in interval)
    name = _quantity_name(claim)
    value = f"{estimate} {name}" if is_count else f"{name} {estimate}"
    fewest, most = (pick(len(sample) for sample in samples) for pick in (min, max))
    limits = f" [{low}, {high}]" * (fewest > 1)
    seeds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    conclusions = (
        [f"too few to decide, at least {needed} of each are needed"]
        if fewest < needed
        else _interpretation(claim, interval)
    )
    result = f"{value}{limits}, {seeds} seed{'s' * (most != 1)}"
    return "; ".join([result, *_degenerate_reason(claim, samples), *conclusions])


def _format(value: float, is_count: bool) -> str:
    if np.isnan(value):
        return "unknown"
    if np.isinf(value):
        return "−∞" if value < 0 else "∞"
    return f"{value:.0f}" if is_count or value == 0 else format_number(value)


def _interpretation(claim: Claim, interval: Interval) -> list[str]:
    """On which side of the null value and of the claimed size the interval is. The limits belong
    to the interval."""
    null, size = _null_value(claim), _claimed_size(claim)
    side = _side(claim, interval, null)
    if claim.measure == "wins":
        words = {1: "at least the claimed {}", -1: "fewer than the claimed {}"}
        return [words.get(side, "{} is inside the interval").format(f"{claim.factor:g}")]
    is_above = (side > 0) != (claim.measure in LESS_IS_BETTER)
    if claim.measure in ("above", "below"):
        place = f"{'above' if is_above else 'below'} {null:g}"
        return [place if side else f"{null:g} is inside the interval"]
    best = f"the best of {len(claim.baselines)} baselines"
    baseline = claim.baselines[0] if len(claim.baselines) == 1 else best
    verb = f"is {'above' if is_above else 'below'}"
    if claim.measure in ("steps", "seconds"):
        verb = f"needs {'more' if is_above else 'fewer'} {claim.measure} than"
    text = f"{claim.method} {verb} {baseline}"
    parts = [text if side else f"{null:g} (no difference) is inside the interval"]
    if size is not None and side >= 0:
        words = {1: "beyond the claimed {}", -1: "short of the claimed {}"}
        place = words.get(_side(claim, interval, size), "the claimed {} is inside the interval")
        parts.append(place.format(f"{size:g}"))
    return parts


def _degenerate_reason(claim: Claim, samples: Sequence[np.ndarray]) -> list[str]:
    """Why a ratio is 0, infinite or undefined: median runs that never reach the threshold, or means
    of 0. Empty for other ratios."""
    named = list(zip(claim.methods, samples, strict=True))
    if claim.measure == "steps":
        never = [method for method, steps in named if np.isinf(np.median(steps))]
        shares = [f"{method} {np.isfinite(steps).sum()} of {len(steps)}" for method, steps in named]
        verb = f"never reached {claim.threshold:g} (runs that did: {', '.join(shares)})"
        return [f"the median run of {' and of '.join(never)} {verb}"] if never else []
    if _quantity_name(claim) == "ratio":
        zero = [method for method, scores in named if not statistics.mean(scores)]
        return [f"the mean of {' and of '.join(zero)} is 0"] if zero else []
    return []
