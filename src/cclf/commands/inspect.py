"""`cclf inspect`: what an agent was curious about, as a page."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from cclf import extras
from cclf.commands.options import EXIT_DONE, check_output, parse
from cclf.errors import ConfigError


@dataclass(frozen=True)
class Inspect:
    """What a run is curious about, as one page: its most and least curious transitions with their
    views and beliefs, what curiosity follows, and how it moved over training. Only reads the
    folder, also while a run goes on there."""

    run: tyro.conf.Positional[Path]
    out: Path = Path("curiosity.html")
    samples: int = 2_048
    """Transitions to look at, rounded up to whole batches."""
    device: str = "auto"
    json: bool = False
    """One JSON document with the page's numbers on standard output."""


def main(arguments: list[str]) -> int:
    options = parse(Inspect, "cclf inspect", arguments)
    if options.samples < 1:
        raise ConfigError(f"--samples {options.samples} must be 1 or more")
    if options.out.suffix not in (".html", ".htm"):
        raise ConfigError(f"cannot write {options.out}: the name of a page must end in .html")
    extras.refuse_missing("the page of cclf inspect", ("plots",))
    from cclf.runtime import devices, run_folder
    from cclf.study import gallery_page
    from cclf.study.inspect import curate

    extras.refuse_missing(
        "the page of cclf inspect", extras.to_draw(run_folder.read_config(options.run).task)
    )
    check_output(options.out)
    gallery = curate(options.run, options.samples, devices.choose_device(options.device))
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(gallery_page.html(gallery), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the page: {error}") from error
    print(
        json.dumps(gallery_page.facts(gallery) | {"page": str(options.out)})
        if options.json
        else options.out
    )
    return EXIT_DONE
