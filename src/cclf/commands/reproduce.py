"""`cclf reproduce`: train a table of the paper and evaluate its claims."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from cclf.algorithms.base import DEFAULT_PROFILE
from cclf.analysis import experiments
from cclf.commands.options import DryRun, Profile, check_writable, output_errors, parse, print_table
from cclf.commands.sweep import Machine, plan, run_sweep, split_passthrough
from cclf.errors import EXIT_STOPPED, require_extras

if TYPE_CHECKING:
    from cclf.sweep.plan import RunSpec

PAGE = "report.html"


@dataclass(frozen=True)
class ReproduceOptions:
    """Train the runs of a table of the paper, and evaluate each claim: it held, did not hold, or is
    undecided. The same command again resumes what was stopped.

    Options after a bare -- are passed to each `cclf train`: cclf reproduce table1 -- --precision bf16
    """

    table: tyro.conf.Positional[str]
    """A table of the paper: table1, ablation, atari or minigrid; or CCLF and its controls: curiosity,
    curiosity-toy, curiosity-re3 or curiosity-drqv2."""
    machine: Machine
    budget: Literal["small", "paper"] = "small"
    """paper: as many tasks, seeds and steps as in the paper; small: as few as can decide some of its
    claims."""
    seeds: tuple[int, ...] = ()
    """Seeds; by default those of the budget."""
    profile: Profile = DEFAULT_PROFILE
    out: Path | None = None
    """Parent folder of run folders; by default runs/reproduce-TABLE-BUDGET."""
    dry_run: DryRun = False


def main(arguments: list[str]) -> int:
    words, extra = split_passthrough(arguments)
    options = parse(ReproduceOptions, "cclf reproduce", words)
    if not options.dry_run:
        require_extras("the page of cclf reproduce", ("report",))
    table = experiments.find_table(options.table, options.budget)
    profile = "" if options.profile == DEFAULT_PROFILE else f"-{options.profile}"
    out = options.out or Path("runs") / f"reproduce-{options.table}-{options.budget}{profile}"
    specs = plan(
        table.tasks,
        table.methods,
        [options.profile],
        options.seeds or table.seeds,
        out,
        [*table.options, *extra],
    )
    check_writable(out / PAGE)
    print(f"{options.table}: {table.summary}", flush=True)
    specs, exit_code = run_sweep(specs, options.machine, options.dry_run)
    if options.dry_run or exit_code == EXIT_STOPPED:
        return exit_code
    _print_verdicts(options.table, specs, out)
    from cclf.analysis.report import build_report
    from cclf.analysis.report_files import write_report

    report = build_report(out)
    with output_errors(out):
        print(*write_report(report, out / PAGE), sep="\n")
    return exit_code


def _print_verdicts(name: str, specs: "Sequence[RunSpec]", out: Path) -> None:
    from cclf.analysis import load, verdicts

    claims = verdicts.claims(name)
    decidable = verdicts.decidable_claims(claims, [spec.config for spec in specs])
    results = load.read(out)
    rows = []
    for claim in decidable:
        verdict = verdicts.evaluate_claim(claim, results)
        rows.append((claim.text, verdict.state, verdict.text))
    print_table(("claim of the paper", "verdict", "estimate [95 % interval]"), rows)
    remaining = len(claims) - len(decidable)
    if remaining:
        print(f"{remaining} further claims need more tasks, methods or steps than this budget has")
