"""`cclf demo`: a first agent in minutes."""

from dataclasses import dataclass
from pathlib import Path

from cclf import extras
from cclf.commands.options import EXIT_DONE, EXIT_STOPPED, check_writable, output_errors, parse
from cclf.console import say


@dataclass(frozen=True)
class Demo:
    """Train A2C with and without CCLF on MiniGrid, a few minutes, and write a page that shows what
    curiosity did."""

    out: Path = Path("runs/demo")
    """Folder for the runs and the page."""


def main(arguments: list[str]) -> int:
    options = parse(Demo, "cclf demo", arguments)
    extras.require_extras("the page of cclf demo", ("plots", "video", "minigrid"))
    from cclf.analysis import demo as demonstration
    from cclf.training.signals import StopSignal

    check_writable(options.out / demonstration.PAGE)
    stop = StopSignal()
    stop.install()
    with output_errors(options.out):
        page = demonstration.run(options.out, stop)
    if page is None:
        say("stopped and saved; run the same command to go on")
        return EXIT_STOPPED
    print(page.resolve())
    return EXIT_DONE
