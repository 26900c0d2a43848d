"""`cclf doctor`: what this machine can do, and what to repair."""

import json
from dataclasses import dataclass

from cclf.commands.options import EXIT_DONE, EXIT_FAILED, parse
from cclf.config import ObservationType
from cclf.errors import ConfigError


@dataclass(frozen=True)
class Doctor:
    """Measure this machine: packages, GPU, what draws the frames and how fast, memory and disk; and
    say what to repair."""

    task: str | None = None
    """Forecast memory and disk of a run of this task."""
    base: str | None = None
    """The base algorithm of that run; unless told the task's own (see: cclf methods)."""
    observe: ObservationType = "pixels"
    """What that run observes."""
    stress: int = 0
    """Render in this many processes at once, a few seconds, each watched: some drivers hang."""
    strict: bool = False
    """Exit with 1 when there is a problem."""
    json: bool = False
    """One JSON document on standard output."""


def main(arguments: list[str]) -> int:
    options = parse(Doctor, "cclf doctor", arguments)
    if not 0 <= options.stress <= 256:
        raise ConfigError(f"--stress {options.stress} must be 0 to 256 processes")
    from cclf import doctor

    if options.base is not None and options.task is None:
        raise ConfigError(f"--base {options.base} forecasts nothing alone: name a --task")
    if options.observe != "pixels" and options.task is None:
        raise ConfigError(f"--observe {options.observe} forecasts nothing alone: name a --task")
    facts = doctor.examine(options.task, options.stress, options.base, options.observe)
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        doctor.show(facts)
    return EXIT_FAILED if options.strict and facts["problems"] else EXIT_DONE
