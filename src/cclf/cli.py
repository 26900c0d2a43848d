"""The command line. Nothing here imports torch until a command needs it, so `cclf --help` answers
at once.

Exit codes: 0 done; 1 a run that cannot go on (numbers no longer finite, disk full), a sweep with
failed runs, or a problem found by `doctor --strict`; 2 bad input, one line on standard error; 75
stopped by a signal after saving, run it again to go on; 130 interrupted (Ctrl-C) where there was
nothing to save.
"""

import importlib
import os
import sys

from cclf import __version__
from cclf.commands import COMMANDS
from cclf.commands.options import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, let_threads_sleep
from cclf.console import say
from cclf.errors import ConfigError, WorkerError, nearest

USAGE = """usage: cclf COMMAND ...

Contrastive-curiosity-driven reinforcement learning from pixels.

  cclf demo            train a first agent and look at it, in minutes
  cclf train TASK      train an agent; the same command again resumes it
  cclf evaluate RUN    evaluate the agent of a run folder
  cclf play RUN        watch it: episodes as an mp4
  cclf inspect RUN     what it was curious about, as a page
  cclf export RUN      its policy as TorchScript or ONNX, checked
  cclf sweep           train methods x tasks x seeds, here or on a Ray cluster
  cclf reproduce TABLE run a table of the paper, and say which claims held
  cclf results RUNS    collect run folders into one CSV per method
  cclf plot RESULTS    draw learning curves from those files
  cclf report RUNS     one page: curves, tables beside the paper's, verdicts
  cclf bench KIND      speed and parity on this machine
  cclf doctor          what this machine can do, and what to repair
  cclf methods         the methods: what each is, and its difference from CCLF
  cclf tasks           the tasks
  cclf completion bash the Tab key of a shell: bash, zsh or fish

A first run:   cclf train toy/reach --method cclf
More options:  cclf COMMAND --help
"""

EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    try:
        return _carry_out(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # while it starts, or in a command that has nothing to save
        say("cclf: interrupted")
        return EXIT_INTERRUPTED


def _carry_out(arguments: list[str]) -> int:
    let_threads_sleep()
    # No interpreter that we or a library start finds modules in the working directory, which may be
    # a run folder.
    os.environ["PYTHONSAFEPATH"] = "1"
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return EXIT_DONE if arguments else EXIT_BAD_INPUT
    if arguments[0] == "--version":
        print(__version__)
        return EXIT_DONE
    name = arguments[0]
    try:
        if name not in COMMANDS:
            raise ConfigError(
                f"unknown command {name!r}{nearest(name, COMMANDS)} (see: cclf --help)"
            )
        exit_code: int = importlib.import_module(f"cclf.commands.{name}").main(arguments[1:])
        return exit_code
    except ConfigError as error:
        # one line, whatever a library said
        say(f"cclf: {' '.join(str(error).split())}")
        return EXIT_BAD_INPUT
    except WorkerError as error:
        print(f"cclf: {error}", error.details, sep="\n", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        sys.stdout = None
        return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
