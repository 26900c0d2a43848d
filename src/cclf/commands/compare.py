"""`cclf compare`: two methods with the same seeds, and the paired difference."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import tyro

from cclf.algorithms.base import DEFAULT_PROFILE
from cclf.algorithms.registry import find_algorithm
from cclf.commands.options import (
    FIGURES,
    DryRun,
    Json,
    Profile,
    check_writable,
    output_errors,
    parse,
    print_json,
)
from cclf.commands.sweep import Machine, plan, run_sweep, split_passthrough
from cclf.commands.train import train_config
from cclf.config import CURIOSITY_CONTROLS, split_control
from cclf.console import say
from cclf.errors import EXIT_STOPPED, ConfigError, require_extras
from cclf.validation import Range, Seed

if TYPE_CHECKING:
    from cclf.analysis.paired import PairedDifference
    from cclf.sweep.plan import RunSpec


@dataclass(frozen=True)
class CompareOptions:
    """Train two methods with the same seeds, seed by seed, and print the paired difference of the mean
    return over training with its 95 % interval. The same command again resumes what was stopped.

    Options after a bare -- are passed to each `cclf train`: cclf compare minigrid/DoorKey-6x6 --method cclf
    --against shuffled -- --curiosity my_module:MyMeasure
    """

    tasks: tyro.conf.Positional[tuple[str, ...]]
    """Tasks to train on (see: cclf tasks)."""
    machine: Machine
    method: str
    """The method of interest (see: cclf methods)."""
    against: str = "shuffled"
    """shuffled or even: this control of the method's own curiosity; or the name of another method."""
    seeds: Annotated[int, Range(2, 10_000)] = 20
    """Number of pairs."""
    first_seed: Seed = 1
    """Seed of the first pair; the other pairs have the seeds that follow it."""
    profile: Profile = DEFAULT_PROFILE
    out: Path = Path("runs")
    """Folder for run folders."""
    plot: Path | None = None
    """The figure, an .svg, .png or .pdf file; by default OUT/compare-METHOD-AGAINST.svg."""
    json: Json = False
    dry_run: DryRun = False


def main(arguments: list[str]) -> int:
    words, extra = split_passthrough(arguments)
    options = parse(CompareOptions, "cclf compare", words)
    if not options.tasks:
        raise ConfigError(
            "compare needs a task, e.g. cclf compare minigrid/DoorKey-6x6 --method cclf"
        )
    require_extras("the figure of cclf compare", ("report",))
    figure = options.plot or options.out / f"compare-{options.method}-{options.against}.svg"
    check_writable(figure, FIGURES)
    check_writable(options.out, is_folder=True)

    specs, exit_code = run_sweep(
        plan_pairs(options, extra), options.machine, options.dry_run, print_plan=not options.json
    )
    if options.dry_run:
        return exit_code
    found = _differences(specs)
    if not found:
        say("fewer than two pairs of runs have finished: there is nothing to compare yet")
        return exit_code or EXIT_STOPPED
    from cclf.analysis import paired
    from cclf.analysis.figures import save

    with output_errors(figure):
        save(paired.figure(found), figure)
    if options.json:
        print_json({"comparisons": [each._asdict() for each in found], "figure": str(figure)})
    else:
        _print(found)
        print(figure)
    return exit_code


def plan_pairs(options: CompareOptions, extra: list[str]) -> "list[RunSpec]":
    """The runs in pairs: one of the method, and one of what it is compared with. The seeds of both are
    trained at the same time, with the same drivers and the same load of the machine."""
    against, against_extra = _against(options, extra)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    ours, theirs = (
        [
            spec
            for seed in seeds
            for spec in plan(options.tasks, [method], [options.profile], [seed], options.out, words)
        ]
        for method, words in ((options.method, extra), (against, against_extra))
    )
    if ours[0].folder == theirs[0].folder:
        raise ConfigError(
            f"{options.method} is compared with itself: name another method after --against"
        )
    return [spec for pair in zip(ours, theirs, strict=True) for spec in pair]


def _against(options: CompareOptions, extra: list[str]) -> tuple[str, list[str]]:
    """The other method, and the options of its runs. A control of a curiosity that was named after
    the -- is the same method with another curiosity."""
    if options.against not in CURIOSITY_CONTROLS:
        return options.against, extra
    names = [options.tasks[0], "--method", options.method, "--profile", options.profile]
    config = train_config([*names, *extra]).config
    measure = config.method.curiosity
    is_control = measure in CURIOSITY_CONTROLS or split_control(measure)[1]
    if is_control or not config.method.needs_curiosity:
        raise ConfigError(
            f"--against {options.against} conflicts with {options.method}, which has no curiosity of "
            "its own: name another method"
        )
    named = f"{options.method}-{options.against}"
    preset = find_algorithm(config.base).methods.get(named)
    control = options.against if measure == "belief" else f"{measure}-{options.against}"
    if preset is not None and preset.overrides.get("curiosity") == control:
        return named, extra
    return options.method, [*extra, "--curiosity", control]  # the last one of an option counts


def _differences(specs: "Sequence[RunSpec]") -> "list[PairedDifference]":
    from cclf.analysis import paired

    pairs, env_steps = {}, {}
    for task in dict.fromkeys(spec.config.task for spec in specs):
        arms = [
            [spec for spec in arm if spec.config.task == task] for arm in (specs[0::2], specs[1::2])
        ]
        first, second = (
            paired.Arm(_name(arm[0]), {spec.config.seed: spec.folder for spec in arm})
            for arm in arms
        )
        pairs[task] = first, second
        env_steps[task] = arms[0][0].config.run.env_steps
    return paired.compare(pairs, env_steps)


def _name(spec: "RunSpec") -> str:
    """The method, with its curiosity if that is not the one of the method."""
    name, curiosity = spec.config.method_name, spec.config.method.curiosity
    preset = find_algorithm(spec.config.base).methods[name].overrides.get("curiosity", "belief")
    return name if curiosity == preset else f"{name}, {curiosity}"


def _print(found: "Sequence[PairedDifference]") -> None:
    from cclf.analysis.table import format_interval, format_number

    print(f"mean return over training, {found[0].method} − {found[0].against}, 95 % interval")
    width = max(len(each.task) for each in found)
    for each in found:
        ours, theirs = map(fmean, (each.method_returns, each.against_returns))
        means = f"{format_number(ours)} − {format_number(theirs)}"
        difference = f"{format_number(each.difference)} {format_interval(each.low, each.high)}"
        print(
            f"{each.task:{width}}  {means} = {difference}  {len(each.seeds)} pairs  "
            f"power: {format_number(each.detectable)}  p: {each.p_holm:.2g}"
        )
    print(
        "power: the smallest difference that so many pairs detect four times out of five. p: by\n"
        "flipping the signs of the differences, with Holm's correction for the number of tasks."
    )
