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
    FIGURE_SUFFIXES,
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
    """Another method, or a control of the curiosity of METHOD: shuffled or even."""
    seeds: Annotated[int, Range(2, 10_000)] = 20
    """Number of pairs: with each seed, one run of either method."""
    first_seed: Seed = 1
    """Seed of the first pair. The others have the integers that follow it."""
    profile: Profile = DEFAULT_PROFILE
    out: Path = Path("runs")
    """Folder for run folders."""
    plot: Path | None = None
    """The figure, an .svg, .png or .pdf file; by default OUT/compare-METHOD-AGAINST.svg."""
    json: Json = False
    dry_run: DryRun = False


def main(arguments: list[str]) -> int:
    own_arguments, train_options = split_passthrough(arguments)
    options = parse(CompareOptions, "cclf compare", own_arguments)
    if not options.tasks:
        raise ConfigError(
            "compare needs a task, e.g. cclf compare minigrid/DoorKey-6x6 --method cclf"
        )
    require_extras("the figure of cclf compare", ("report",))
    figure = options.plot or options.out / f"compare-{options.method}-{options.against}.svg"
    check_writable(figure, FIGURE_SUFFIXES)
    check_writable(options.out, is_folder=True)

    specs, exit_code = run_sweep(
        plan_pairs(options, train_options),
        options.machine,
        options.dry_run,
        print_plan=not options.json,
    )
    if options.dry_run:
        return exit_code
    differences = _differences(specs)
    if not differences:
        say("fewer than two pairs of runs have finished: there is nothing to compare yet")
        return exit_code or EXIT_STOPPED
    from cclf.analysis import paired
    from cclf.analysis.figures import save

    with output_errors(figure):
        save(paired.figure(differences), figure)
    if options.json:
        print_json({"comparisons": [each._asdict() for each in differences], "figure": str(figure)})
    else:
        _print_table(differences)
        print(figure)
    return exit_code


def plan_pairs(options: CompareOptions, train_options: list[str]) -> "list[RunSpec]":
    """The runs of the method and of the one it is compared with, alternately, so that the two runs of
    a pair train at about the same time, with the same drivers and a similar load of the machine."""
    against, against_options = _resolve_against(options, train_options)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    method_specs, against_specs = (
        [
            spec
            for seed in seeds
            for spec in plan(options.tasks, [method], [options.profile], [seed], options.out, extra)
        ]
        for method, extra in ((options.method, train_options), (against, against_options))
    )
    if method_specs[0].folder == against_specs[0].folder:
        raise ConfigError(
            f"{options.method} is compared with itself: name another method after --against"
        )
    return [spec for pair in zip(method_specs, against_specs, strict=True) for spec in pair]


def _resolve_against(options: CompareOptions, train_options: list[str]) -> tuple[str, list[str]]:
    """The method that `--against` names, and the options of its runs. A control without a preset is
    the method itself with another `--curiosity`."""
    if options.against not in CURIOSITY_CONTROLS:
        return options.against, train_options
    first_task = [options.tasks[0], "--method", options.method, "--profile", options.profile]
    config = train_config([*first_task, *train_options]).config
    measure = config.method.curiosity
    is_control = measure in CURIOSITY_CONTROLS or split_control(measure)[1]
    if is_control or not config.method.needs_curiosity:
        raise ConfigError(
            f"--against {options.against} conflicts with {options.method}, which has no curiosity of "
            "its own: name another method"
        )
    control_method = f"{options.method}-{options.against}"
    preset = find_algorithm(config.base).methods.get(control_method)
    control = options.against if measure == "belief" else f"{measure}-{options.against}"
    if preset is not None and preset.overrides.get("curiosity") == control:
        return control_method, train_options
    # A repeated option has its last value.
    return options.method, [*train_options, "--curiosity", control]


def _differences(specs: "Sequence[RunSpec]") -> "list[PairedDifference]":
    from cclf.analysis import paired

    pairs, env_steps = {}, {}
    for task in dict.fromkeys(spec.config.task for spec in specs):
        arms = [
            [spec for spec in arm if spec.config.task == task] for arm in (specs[0::2], specs[1::2])
        ]
        first, second = (
            paired.Arm(_label(arm[0]), {spec.config.seed: spec.folder for spec in arm})
            for arm in arms
        )
        pairs[task] = first, second
        env_steps[task] = arms[0][0].config.run.env_steps
    return paired.compare(pairs, env_steps)


def _label(spec: "RunSpec") -> str:
    """The name of the method, with the curiosity if it is not that of the method's preset."""
    name, curiosity = spec.config.method_name, spec.config.method.curiosity
    preset = find_algorithm(spec.config.base).methods[name].overrides.get("curiosity", "belief")
    return name if curiosity == preset else f"{name}, {curiosity}"


def _print_table(differences: "Sequence[PairedDifference]") -> None:
    from cclf.analysis.table import format_interval, format_number

    print(
        f"mean return over training, {differences[0].method} − {differences[0].against}, 95 % interval"
    )
    width = max(len(each.task) for each in differences)
    for each in differences:
        method_mean, against_mean = map(fmean, (each.method_returns, each.against_returns))
        means = f"{format_number(method_mean)} − {format_number(against_mean)}"
        difference = f"{format_number(each.difference)} {format_interval(each.low, each.high)}"
        print(
            f"{each.task:{width}}  {means} = {difference}  {len(each.seeds)} pairs  "
            f"detectable: {format_number(each.detectable)}  p: {each.p_holm:.2g}"
        )
    print(
        "detectable: the smallest difference that this number of pairs detects with 80 % power.\n"
        "p: of the sign-flip test, with Holm's correction for the number of tasks."
    )
