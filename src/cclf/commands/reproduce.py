"""`cclf reproduce`: a table of the paper, run and judged."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from cclf import extras
from cclf.algorithms.base import DEFAULT_PROFILE
from cclf.analysis import experiments
from cclf.commands.options import (
    EXIT_DONE,
    EXIT_STOPPED,
    check_writable,
    output_errors,
    parse,
    print_table,
)
from cclf.commands.sweep import Where, plan, run_and_report, split, sweeping
from cclf.config import Precision
from cclf.errors import ConfigError

if TYPE_CHECKING:
    from cclf.analysis.reproduce import Kind, Speed
    from cclf.analysis.verdict import Verdict
    from cclf.sweep.plan import Call

PAGE = "report.html"


@dataclass(frozen=True)
class Reproduce:
    """Run a table of the paper, or what is left of it, and say of each of its claims: held, did not
    hold, or undecided.

    What follows a bare -- goes to each `cclf train`: cclf reproduce table1 -- --precision bf16
    """

    table: tyro.conf.Positional[str]
    """table1, ablation, atari, minigrid, cost; or curiosity, curiosity-toy, curiosity-re3 or
    curiosity-drqv2, not of the paper: CCLF against its controls."""
    where: tyro.conf.OmitArgPrefixes[Annotated[Where, tyro.conf.arg(name="machine")]]
    budget: Literal["small", "paper"] = "small"
    """paper: the size of the paper's own experiment; small: the least that can decide some of its
    claims."""
    seeds: tuple[int, ...] = ()
    """Those of the budget, unless given."""
    profile: str = DEFAULT_PROFILE
    """Which reading of the points where the paper and the released code disagree."""
    out: Path | None = None
    """runs/reproduce-TABLE-BUDGET (-PROFILE), unless given."""
    dry_run: bool = False
    """Print the plan and what it will cost, and stop."""


@dataclass(frozen=True)
class CostOptions:
    """What `cclf reproduce cost` takes after a bare --."""

    precision: Precision = "fp32"


def main(arguments: list[str]) -> int:
    words, extra = split(arguments)
    options = parse(Reproduce, "cclf reproduce", words)
    if not options.dry_run:
        extras.require_extras("the page of cclf reproduce", ("plots",))
    if options.table == "cost":
        _refuse_all_but(options, ("table", "budget", "out", "dry_run"))
        return _reproduce_cost(
            options.budget, options.dry_run, options.out or Path("runs") / "reproduce-cost", extra
        )
    table = experiments.find_table(options.table, options.budget, also=("cost",))
    profile = "" if options.profile == DEFAULT_PROFILE else f"-{options.profile}"
    out = options.out or Path("runs") / f"reproduce-{options.table}-{options.budget}{profile}"
    calls = plan(
        table.tasks,
        table.methods,
        [options.profile],
        options.seeds or table.seeds,
        out,
        [*table.options, *extra],
    )
    check_writable(out / PAGE)
    from cclf.analysis import reproduce as reproduction
    from cclf.sweep.plan import is_finished, jobs_of, settled

    with sweeping(options.where) as (backend, stop):
        calls = settled(calls, backend.computes_on_gpus)
        jobs = jobs_of(calls, options.where.seeds_per_process, options.where.games_per_process)
        print(f"{options.table}: {table.summary}", flush=True)
        speeds = reproduction.measure([call for call in calls if not is_finished(call)], stop)
        if stop.requested:
            return EXIT_STOPPED
        _print_forecast(calls, speeds, min(backend.places(job) for job in jobs))
        if options.dry_run:
            return EXIT_DONE
        exit_code = run_and_report(calls, backend, stop, options.where)
    if exit_code == EXIT_STOPPED:
        return exit_code
    _print_verdicts(options.table, calls, out)
    from cclf.analysis import report, report_files

    composed = report.compose(out)
    with output_errors(out):
        print(*report_files.write(composed, out / PAGE), sep="\n")
    return exit_code


def _refuse_all_but(options: Any, used: tuple[str, ...]) -> None:
    """`reproduce cost` trains nothing: seeds, profile and machines of runs would do nothing
    there."""
    plain = parse(type(options), "cclf reproduce", [options.table])
    pairs = [(vars(options), vars(plain)), (vars(options.where), vars(plain.where))]
    for given, default in pairs:
        for name, value in given.items():
            if name not in (*used, "where") and value != default[name]:
                raise ConfigError(
                    f"--{name.replace('_', '-')} conflicts with {options.table}: it would do "
                    "nothing; remove it"
                )


def _print_forecast(calls: "list[Call]", speeds: "dict[Kind, Speed]", places: int) -> None:
    from cclf.analysis import reproduce as reproduction

    found = reproduction.forecast(calls, speeds, places)
    if found.lines:
        header = ("suite and method", "runs", "env steps each", "env steps/s", "each at most")
        rows = [
            (
                " ".join(line.kind),
                str(line.runs_left),
                f"{line.env_steps:,}",
                _rate(line.env_steps_per_second),
                hours(line.seconds),
            )
            for line in found.lines
        ]
        print_table(header, rows)
        measured = next(iter(speeds.values()))
        print(
            f"measured now on {measured.task} ({measured.device}), a second per method; other "
            "tasks are taken as alike,"
        )
        print("evaluations as long as an untrained agent's: the real time is mostly shorter")
    print(
        f"{found.runs} runs, {found.finished} of them finished: about {hours(found.busy_seconds)} "
        "of work, "
        f"{hours(found.wall_seconds)} at {found.places} runs a time",
        flush=True,
    )


def _rate(per_second: float) -> str:
    """
    >>> _rate(32791.8), _rate(0.3239)
    ('32,792', '0.32')
    """
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.2g}"


def hours(seconds: float) -> str:
    """
    >>> hours(42), hours(600), hours(7200)
    ('42 s', '10 min', '2.0 h')
    """
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _print_verdicts(name: str, calls: "list[Call]", out: Path) -> None:
    from cclf.analysis import load, verdict
    from cclf.analysis import reproduce as reproduction

    judged = reproduction.verdicts(name, calls, load.read(out))
    _print_judged([(claim.text, found) for claim, found in judged])
    left = len(verdict.claims(name)) - len(judged)
    if left:
        print(f"{left} further claims need more tasks, methods or steps than this budget has")


def _reproduce_cost(budget: str, dry_run: bool, out: Path, extra: list[str]) -> int:
    """Minutes at most, so nothing of it is resumed."""
    from cclf.analysis import figures
    from cclf.benchmark import cost
    from cclf.storage.atomic_files import write_output
    from cclf.storage.provenance import origin
    from cclf.training import devices

    precision = parse(CostOptions, "cclf reproduce cost --", extra).precision
    numbers, picture = out / "cost.json", out / "cost.svg"
    for path in (numbers, picture):
        check_writable(path)
    device = devices.choose_device("auto")
    batch_size, pairs = (
        (cost.PAPER_BATCH_SIZE, 50) if budget == "paper" or device.type == "cuda" else (32, 10)
    )
    how = f"batch {batch_size}, {precision}"
    print(
        f"{len(cost.METHODS)} methods on {cost.TASK}: {pairs} pairs of updates each, {how}, on "
        f"{device}",
        flush=True,
    )
    if dry_run:
        return EXIT_DONE
    costs = cost.measure(cost.METHODS, str(device), batch_size, pairs, precision)
    megabytes = {name: cost.size_bytes(found) / 1e6 for name, found in costs.items()}
    milliseconds = {name: cost.milliseconds(found) for name, found in costs.items()}
    rows = [
        (
            name,
            f"{costs[name].parameters:,}",
            f"{megabytes[name]:,.1f}",
            f"{milliseconds[name]:,.1f}",
        )
        for name in costs
    ]
    size = f"MB with gradients' needs, batch {cost.PAPER_BATCH_SIZE}"
    print_table(("method", "parameters", size, "ms per update"), rows)
    judged = [(claim, cost.judge(claim, costs)) for claim in cost.claims()]
    _print_judged([(claim.text, found) for claim, found in judged])
    facts = origin(device) | {"task": cost.TASK, "precision": precision, "batch_size": batch_size}
    drawing = figures.bars(
        {size: megabytes, f"ms per update, {facts['device']}, {how}": milliseconds}
    )
    with output_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        write_output(numbers, json.dumps(facts | cost.document(costs), indent=2) + "\n")
        figures.save(drawing, picture)
    print(numbers, picture, sep="\n")
    return EXIT_DONE


def _print_judged(judged: "list[tuple[str, Verdict]]") -> None:
    header = ("claim of the paper", "verdict", "estimate [95 % interval]")
    print_table(header, [(text, found.state, found.text) for text, found in judged])
