"""`cclf inspect`: a page about the curiosity of an agent."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from cclf.commands.options import (
    PAGE_SUFFIXES,
    Device,
    Json,
    check_writable,
    output_errors,
    parse,
    print_json,
    print_table,
)
from cclf.commands.runs import RunOptions, select_run
from cclf.config import CURIOSITIES, CURIOSITY_CONTROLS
from cclf.errors import ConfigError, rendering_extras, require_extras
from cclf.validation import Range


@dataclass(frozen=True)
class InspectOptions(RunOptions):
    """Write a page about the curiosity of a run: the transitions with the highest and lowest
    curiosity, their views and beliefs, correlations of curiosity, and curiosity during training. The
    run may still be training."""

    out: Path | None = None
    """The page, an .html file; by default RUN/curiosity.html."""
    samples: Annotated[int, Range(1, 1_000_000)] = 2_048
    """Number of transitions, rounded up to whole batches."""
    curiosity: tuple[str, ...] = ()
    """Print a table instead of writing the page: how these measures of curiosity (belief, absolute, rnd,
    forward) rank the transitions of the run. Measures that the run was not trained with learn from
    it first. For runs of A2C."""
    follow: Annotated[
        tuple[Literal["rarity", "error", "td", "step"], ...],
        tyro.conf.arg(metavar="[{rarity,error,td,step} ...]"),
    ] = ("rarity", "error", "td")
    """With --curiosity: the quantities whose rank correlation with curiosity is printed. rarity: how
    rarely the same observation is seen; error: the error of predicting the next observation; td: the
    absolute TD error; step: the step in the episode."""
    device: Device = "auto"
    json: Json = False


def main(arguments: list[str]) -> None:
    options = parse(InspectOptions, "cclf inspect", arguments)
    run = select_run(options.run, options.last, options.json)
    if options.curiosity:
        _probe(options, run)
        return
    out = options.out or run / "curiosity.html"
    require_extras("the page of cclf inspect", ("report",))
    from cclf.inspection import page
    from cclf.inspection.load import inspect_run
    from cclf.storage import run_folder
    from cclf.storage.atomic_files import write_output
    from cclf.training import devices

    task = run_folder.read_config(run).task
    require_extras("the page of cclf inspect", rendering_extras(task))
    check_writable(out, PAGE_SUFFIXES)
    device = devices.choose_device(options.device)
    report = inspect_run(run, options.samples, device, options.trust_imports)
    with output_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_output(out, page.to_html(report))
    if options.json:
        print_json(page.to_json(report) | {"page": str(out)})
    else:
        print(out)


PROBE_BATCH_SIZE = 128  # transitions, as in the default rollout of A2C


def _probe(options: InspectOptions, run: Path) -> None:
    known = [name for name in CURIOSITIES if name not in CURIOSITY_CONTROLS]
    if unknown := [name for name in options.curiosity if name not in known]:
        raise ConfigError(f"--curiosity {unknown[0]} is unknown: use {', '.join(known)}")
    from cclf.inspection.load import probe_run
    from cclf.training import devices

    found = probe_run(
        run,
        options.curiosity,
        options.follow,
        max(2, options.samples // PROBE_BATCH_SIZE),
        devices.choose_device(options.device),
        options.trust_imports,
    )
    if options.json:
        print_json(
            {
                measure: {name: each._asdict() for name, each in line.items()}
                for measure, line in found.items()
            }
        )
        return
    rows = [
        (measure, *(f"{each.rank:.2f} [{each.low:.2f}, {each.high:.2f}]" for each in line.values()))
        for measure, line in found.items()
    ]
    print("rank correlations of curiosity: the mean over batches and its 95 % interval")
    print_table(("measure", *options.follow), rows)
