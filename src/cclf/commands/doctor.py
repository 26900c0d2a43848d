"""`cclf doctor`: facts about this machine and its problems."""

from dataclasses import dataclass

from cclf.commands.options import Json, parse, print_json
from cclf.config import ObservationType
from cclf.errors import EXIT_DONE, EXIT_FAILED, ConfigError


@dataclass(frozen=True)
class DoctorOptions:
    """Report the packages, GPU, renderer, memory and disk of this machine, and how to fix problems."""

    task: str | None = None
    """Forecast the memory and disk of a run of this task."""
    base: str | None = None
    """The base algorithm of that run; by default that of the task (see: cclf methods)."""
    observe: ObservationType = "pixels"
    """The observations of that run."""
    strict: bool = False
    """Exit with 1 when there is a problem."""
    json: Json = False


def main(arguments: list[str]) -> int:
    options = parse(DoctorOptions, "cclf doctor", arguments)
    from cclf import doctor

    if options.base is not None and options.task is None:
        raise ConfigError(f"--base {options.base} needs --task")
    if options.observe != "pixels" and options.task is None:
        raise ConfigError(f"--observe {options.observe} needs --task")
    report = doctor.examine(options.task, options.base, options.observe)
    if options.json:
        print_json(report)
    else:
        doctor.show(report)
    return EXIT_FAILED if options.strict and report["problems"] else EXIT_DONE
