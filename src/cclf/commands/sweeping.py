"""`cclf sweep` and `reproduce`: many runs, on this machine or on a Ray cluster."""

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cclf import extras, paper_tables, presets
from cclf.commands.options import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, check_output, parse, print_table, writing
from cclf.commands.training import train_config
from cclf.config import A2cConfig, Config, ConfigError, Precision

if TYPE_CHECKING:
    from cclf.analysis.verdict import Verdict
    from cclf.reproduce import Kind, Speed
    from cclf.runtime.stop import Stop
    from cclf.sweep.cluster import RayBackend
    from cclf.sweep.local import LocalBackend
    from cclf.sweep.plan import Call, Outcome


@dataclass(frozen=True)
class Where:
    """Which machines, and how many runs at a time."""

    backend: Literal["local", "ray"] = "local"
    address: str | None = None
    """Of the Ray cluster, e.g. 10.0.0.1:6379; Ray is started on this machine when it is left out."""
    jobs: int = 0
    """Processes at a time; 0 is as many as cores, memory and GPUs allow."""
    runs_per_gpu: int = 1
    """Processes that share one GPU."""
    seeds_per_process: int = 1
    """Seeds of a method trained in turns in one process (cclf train --with-seeds): for a GPU that one run fills."""
    games_per_process: int = 1
    """Atari games trained together in one process (cclf train --with-tasks), each with all of its seeds there."""
    shared_files: Literal["detect", "yes", "no"] = "detect"
    """Whether Ray's nodes see OUT under the same path; if not, run folders are copied here."""
    stop_after_seconds: float | None = None
    """Ask all runs to save and stop after this long."""

    def __post_init__(self) -> None:
        if self.backend == "local" and (self.address is not None or self.shared_files != "detect"):
            raise ConfigError("--address and --shared-files clash with --backend local: use --backend ray")
        if self.jobs < 0 or min(self.runs_per_gpu, self.seeds_per_process, self.games_per_process) < 1:
            raise ConfigError("--jobs must be 0 or more, --runs-per-gpu, --seeds- and --games-per-process 1 or more")


def _sweep_options() -> Any:
    import tyro

    @dataclass(frozen=True)
    class Sweep:
        """Train every method on every task with every seed, several at a time. Run it again to finish what was stopped.

        What follows a bare -- goes to each `cclf train`: cclf sweep ... -- --no-video --env-steps 100000
        """

        where: Annotated[Where, tyro.conf.arg(name="")]
        table: str | None = None
        """table1, ablation, minigrid or atari: the methods, tasks, seeds and options of the paper's; those given here win."""
        tasks: tuple[str, ...] = ()
        methods: tuple[str, ...] = ()
        seeds: tuple[int, ...] = ()
        """1 2 3 4 5 without a table."""
        profiles: tuple[str, ...] = (presets.DEFAULT_PROFILE,)
        out: Path = Path("runs")

    return Sweep


def sweep(arguments: list[str]) -> int:
    words, extra = _split(arguments)
    options = parse(_sweep_options(), "cclf sweep", words)
    table = paper_tables.Table("", (), (), (1, 2, 3, 4, 5))
    if options.table is not None:
        table = paper_tables.find_table(options.table, "paper")
    tasks, methods = options.tasks or table.tasks, options.methods or table.methods
    if not tasks or not methods:
        raise ConfigError("sweep needs --tasks and --methods, or a --table (see: cclf sweep --help)")
    calls = plan(tasks, methods, options.profiles, options.seeds or table.seeds, options.out, [*table.options, *extra])
    check_output(options.out, is_folder=True)
    with sweeping(options.where) as (backend, stop):
        return run_and_report(calls, backend, stop, options.where)


# What the command itself decides for each of its runs.
_NOT_FOR_RUNS = {"task", "method", "profile", "seed", "with-seeds", "with-tasks", "out", "dry-run", "no-dry-run", "help"}


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """A command's own words, and those behind a bare -- for each `cclf train`. Those that would make other runs than the
    command's own, or none, are refused."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    extra = arguments[end + 1 :]
    for word in extra:
        name = word.partition("=")[0].replace("_", "-")
        if name == "-h" or (name.startswith("--") and name.removeprefix("--") in _NOT_FOR_RUNS):
            raise ConfigError(f"{word} cannot stand behind --: the command itself sets it for each run; name it before the --")
    return arguments[:end], extra


def plan(
    tasks: Iterable[str],
    methods: Iterable[str],
    profiles: Iterable[str],
    seeds: Iterable[int],
    out: Path,
    extra: list[str],
) -> "list[Call]":
    """The runs, the longest first: no core idles at the end. Bad names and options end it here, before anything runs."""
    from cclf.sweep.plan import call_of

    methods, profiles, seeds = tuple(methods), tuple(profiles), tuple(seeds)
    calls, forecasts = [], dict[str, int]()
    for task in tasks:
        for method in methods:
            for profile in profiles:
                for seed in seeds:
                    names = [task, "--method", method, "--profile", profile, "--seed", str(seed)]
                    config = train_config([*names, *extra]).config
                    if task not in forecasts:
                        forecasts[task] = _replay_bytes(config)
                    calls.append(call_of(config, out, extra, forecasts[task]))
    return sorted(calls, key=lambda call: -call.config.planned_agent_steps)


def _replay_bytes(config: Config) -> int:
    if isinstance(config.algorithm, A2cConfig):
        return 0
    from cclf import build

    return build.replay_forecast_of(config)[1]


@contextlib.contextmanager
def sweeping(where: Where) -> "Iterator[tuple[LocalBackend | RayBackend, Stop]]":
    """The machines, and signals that reach all runs on them."""
    from cclf.runtime.stop import Stop

    with contextlib.closing(_backend(where)) as backend:
        stop = Stop()
        stop.install()  # after Ray, which takes SIGTERM for itself
        yield backend, stop


def _backend(where: Where) -> "LocalBackend | RayBackend":
    if where.backend == "ray":
        from cclf.sweep.cluster import RayBackend

        return RayBackend(where.address, where.jobs, where.runs_per_gpu, where.shared_files)
    from cclf.sweep.local import LocalBackend

    return LocalBackend(where.jobs, where.runs_per_gpu)


def run_and_report(calls: "list[Call]", backend: "LocalBackend | RayBackend", stop: "Stop", where: Where) -> int:
    from cclf.sweep.loop import run_all

    outcomes: list[Outcome] = run_all(
        calls, backend, stop, where.stop_after_seconds, where.seeds_per_process, where.games_per_process
    )
    stopped = [outcome for outcome in outcomes if outcome.exit_code == EXIT_STOPPED]
    failed = [outcome for outcome in outcomes if outcome.failed]
    for outcome in failed:
        command = f"cclf train {' '.join(outcome.call.arguments())}"
        print(f"failed with {outcome.exit_code}: {command}: {outcome.last_line}", file=sys.stderr)
    done = len(outcomes) - len(stopped) - len(failed)
    print(f"{done} of {len(outcomes)} runs done, {len(stopped)} stopped, {len(failed)} failed", file=sys.stderr)
    return EXIT_FAILED if failed else EXIT_STOPPED if stopped else EXIT_DONE


def _reproduce_options() -> Any:
    import tyro

    @dataclass(frozen=True)
    class Reproduce:
        """Run a table of the paper, or what is left of it, and say of each of its claims: held, did not hold, or undecided.

        What follows a bare -- goes to each `cclf train`: cclf reproduce table1 -- --precision bf16
        """

        table: tyro.conf.Positional[str]
        """table1, ablation, atari, minigrid or cost."""
        where: Annotated[Where, tyro.conf.arg(name="")]
        budget: Literal["small", "paper"] = "small"
        seeds: tuple[int, ...] = ()
        """Those of the budget, unless given."""
        profile: str = presets.DEFAULT_PROFILE
        out: Path | None = None
        """runs/reproduce-TABLE-BUDGET (-PROFILE), unless given."""
        dry_run: bool = False
        """Print the plan and what it will cost, and stop."""

    return Reproduce


@dataclass(frozen=True)
class CostOptions:
    """What `cclf reproduce cost` takes after a bare --."""

    precision: Precision = "fp32"


def reproduce(arguments: list[str]) -> int:
    words, extra = _split(arguments)
    options = parse(_reproduce_options(), "cclf reproduce", words)
    if not options.dry_run:
        extras.refuse_missing("the page of cclf reproduce", ("plots",))
    if options.table == "cost":
        _refuse_all_but(options, ("table", "budget", "out", "dry_run"))
        return _reproduce_cost(options.budget, options.dry_run, options.out or Path("runs") / "reproduce-cost", extra)
    table = paper_tables.find_table(options.table, options.budget, also=("cost",))
    profile = "" if options.profile == presets.DEFAULT_PROFILE else f"-{options.profile}"
    out = options.out or Path("runs") / f"reproduce-{options.table}-{options.budget}{profile}"
    calls = plan(table.tasks, table.methods, [options.profile], options.seeds or table.seeds, out, [*table.options, *extra])
    check_output(out, is_folder=True)
    from cclf import reproduce as reproduction
    from cclf.sweep.plan import is_finished, jobs_of

    with sweeping(options.where) as (backend, stop):
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
    from cclf.analysis import report

    for path in report.write(report.compose(out), out / "report.html", None, None, None):
        print(path)
    return exit_code


def _refuse_all_but(options: Any, used: tuple[str, ...]) -> None:
    """`reproduce cost` trains nothing: seeds, profile and machines of runs would do nothing there."""
    plain = parse(type(options), "cclf reproduce", [options.table])
    pairs = [(vars(options), vars(plain)), (vars(options.where), vars(plain.where))]
    for given, default in pairs:
        for name, value in given.items():
            if name not in (*used, "where") and value != default[name]:
                raise ConfigError(f"--{name.replace('_', '-')} clashes with {options.table}: it would do nothing; leave it out")


def _print_forecast(calls: "list[Call]", speeds: "dict[Kind, Speed]", places: int) -> None:
    from cclf import reproduce as reproduction

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
        print(f"measured now on {measured.task} ({measured.device}), a second per method; other tasks are taken as alike,")
        print("evaluations as long as an untrained agent's: the real time is mostly shorter")
    print(
        f"{found.runs} runs, {found.finished} of them finished: about {hours(found.busy_seconds)} of work, "
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
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _print_verdicts(name: str, calls: "list[Call]", out: Path) -> None:
    from cclf import reproduce as reproduction
    from cclf.analysis import load, verdict

    judged = reproduction.verdicts(name, calls, load.read(out))
    _print_judged([(claim.text, found) for claim, found in judged])
    left = len(verdict.claims(name)) - len(judged)
    if left:
        print(f"{left} further claims need more tasks, methods or steps than this budget has")


def _reproduce_cost(budget: str, dry_run: bool, out: Path, extra: list[str]) -> int:
    """Minutes at most, so nothing of it is resumed."""
    from cclf import bench, cost, devices
    from cclf.analysis import figures

    precision = parse(CostOptions, "cclf reproduce cost --", extra).precision
    device = devices.choose_device("auto")
    batch_size, pairs = (cost.PAPER_BATCH_SIZE, 50) if budget == "paper" or device.type == "cuda" else (32, 10)
    how = f"batch {batch_size}, {precision}"
    print(f"{len(cost.METHODS)} SAC methods on {cost.TASK}: {pairs} pairs of updates each, {how}, on {device}", flush=True)
    if dry_run:
        return EXIT_DONE
    check_output(out, is_folder=True)
    costs = cost.measure(cost.METHODS, str(device), batch_size, pairs, precision)
    megabytes = {name: cost.size_bytes(found) / 1e6 for name, found in costs.items()}
    milliseconds = {name: cost.milliseconds(found) for name, found in costs.items()}
    rows = [(name, f"{costs[name].parameters:,}", f"{megabytes[name]:,.1f}", f"{milliseconds[name]:,.1f}") for name in costs]
    size = f"MB with gradients' needs, batch {cost.PAPER_BATCH_SIZE}"
    print_table(("method", "parameters", size, "ms per update"), rows)
    judged = [(claim, cost.judge(claim, costs)) for claim in cost.claims()]
    _print_judged([(claim.text, found) for claim, found in judged])
    facts = bench.origin(device) | {"task": cost.TASK, "precision": precision, "batch_size": batch_size}
    drawing = figures.bars({size: megabytes, f"ms per update, {facts['device']}, {how}": milliseconds})
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / "cost.json").write_text(json.dumps(facts | cost.document(costs), indent=2) + "\n")
        drawing.savefig(out / "cost.svg")
    print(out / "cost.json", out / "cost.svg", sep="\n")
    return EXIT_DONE


def _print_judged(judged: "list[tuple[str, Verdict]]") -> None:
    header = ("claim of the paper", "verdict", "estimate [95 % interval]")
    print_table(header, [(text, found.state, found.text) for text, found in judged])
