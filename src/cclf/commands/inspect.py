"""`cclf inspect`: a page about the curiosity of an agent."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cclf.commands.options import (
    Device,
    Json,
    Last,
    RunFolder,
    TrustImports,
    check_writable,
    output_errors,
    parse,
)
from cclf.commands.runs import select_run
from cclf.errors import EXIT_DONE, ConfigError, rendering_extras, require_extras
from cclf.validation import Range


@dataclass(frozen=True)
class InspectOptions:
    """Write a page about the curiosity of a run: the transitions with the highest and lowest
    curiosity, their views and beliefs, correlations of curiosity, and curiosity during training. The
    run may still be training."""

    run: RunFolder
    last: Last = False
    out: Path | None = None
    """The page, an .html file; by default RUN/curiosity.html."""
    samples: Annotated[int, Range(1, 1_000_000)] = 2_048
    """Number of transitions, rounded up to whole batches."""
    device: Device = "auto"
    trust_imports: TrustImports = False
    json: Json = False


def main(arguments: list[str]) -> int:
    options = parse(InspectOptions, "cclf inspect", arguments)
    run = select_run(options.run, options.last, options.json)
    out = options.out or run / "curiosity.html"
    if out.suffix not in (".html", ".htm"):
        raise ConfigError(f"cannot write {out}: the name of a page must end in .html")
    require_extras("the page of cclf inspect", ("report",))
    from cclf.inspection import page
    from cclf.inspection.load import inspect_run
    from cclf.storage import run_folder
    from cclf.storage.atomic_files import write_output
    from cclf.training import devices

    task = run_folder.read_config(run).task
    require_extras("the page of cclf inspect", rendering_extras(task))
    check_writable(out)
    device = devices.choose_device(options.device)
    report = inspect_run(run, options.samples, device, options.trust_imports)
    with output_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_output(out, page.to_html(report))
    print(json.dumps(page.to_json(report) | {"page": str(out)}) if options.json else out)
    return EXIT_DONE
