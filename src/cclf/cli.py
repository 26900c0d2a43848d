"""The command line. torch is imported only by the commands that need it, so `cclf --help` is fast.

Exit codes: 0 success; 1 a run failed (values that are not finite, an error of an environment, a full
disk), runs of a sweep failed, or `doctor --strict` found a problem; 2 invalid input or output that
could not be written; 75 stopped by a signal after saving (run the same command to resume); 130
interrupted (Ctrl-C) with nothing to save.
"""

import importlib
import io
import os
import sys
from typing import TextIO, cast

from cclf import __version__
from cclf.commands import COMMANDS, DEBUG, limit_openmp_spinning
from cclf.console import TolerantStream, open_standard_streams, say
from cclf.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_FAILED,
    FULL_DISK,
    ConfigError,
    WorkerError,
    did_you_mean,
)

USAGE = """usage: cclf COMMAND ...

Contrastive-curiosity-driven reinforcement learning from pixels.

  cclf demo            train small agents and write a report, in minutes
  cclf train TASK      train an agent; the same command again resumes the run
  cclf runs DIR        list the runs in a folder
  cclf evaluate RUN    evaluate the agent of a run folder
  cclf play RUN        write a video of its episodes
  cclf inspect RUN     write a page about its curiosity
  cclf export RUN      export its policy as .pt2 (torch.export) or ONNX
  cclf push RUN hf:... upload its agent to the Hugging Face Hub
  cclf sweep           train methods x tasks x seeds, also on a Ray cluster
  cclf compare TASK    train two methods with the same seeds and compare them
  cclf reproduce TABLE train a table of the paper and evaluate its claims
  cclf results RUNS    collect evaluations into one CSV file per method
  cclf plot RESULTS    plot learning curves of results
  cclf report RUNS     write a page: verdicts, learning curves, tables
  cclf bench KIND      measure the speed of training on this machine
  cclf doctor          check this machine and suggest fixes
  cclf methods         list the methods and their differences from CCLF
  cclf tasks           list the tasks

A first run:   cclf train toy/reach --method cclf
More options:  cclf COMMAND --help
"""

EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    open_standard_streams()
    standard_output = sys.stdout
    if isinstance(standard_output, io.TextIOWrapper):
        standard_output.reconfigure(errors="replace")  # "?" for what the encoding cannot represent
    output = TolerantStream(standard_output)
    sys.stdout = cast(TextIO, output)
    try:
        exit_code = _run_and_report_errors(sys.argv[1:] if arguments is None else arguments)
        output.flush()
    finally:
        # None, because the interpreter would flush the stream on exit and fail once more.
        sys.stdout = standard_output if output.usable else None
    if output.error is not None:
        reason = output.error.strerror or output.error
        note = (
            "; the command finished, but its output is incomplete" if exit_code == EXIT_DONE else ""
        )
        say(f"cclf: cannot write to standard output: {reason}{note}")
        return exit_code or EXIT_BAD_INPUT
    return exit_code


def _run_and_report_errors(arguments: list[str]) -> int:
    """Run the command and return its exit code. An error of the user is printed as one line."""
    try:
        return _run_command(arguments)
    except KeyboardInterrupt:  # during startup, or in a command that has nothing to save
        say("cclf: interrupted")
        return EXIT_INTERRUPTED
    except SystemExit as exit_:  # raised by --help and by a second signal
        if isinstance(exit_.code, str):
            say(exit_.code)
            return EXIT_FAILED
        return exit_.code or EXIT_DONE
    except ConfigError as error:
        say(f"cclf: {' '.join(str(error).split())}")  # a library's message may have several lines
        return EXIT_BAD_INPUT
    except WorkerError as error:
        say(f"cclf: {error}\n{error.details}")
        return EXIT_FAILED
    except OSError as error:
        # Without a file name it is an internal error: show the traceback.
        if error.filename is None or DEBUG in os.environ:
            raise
        path = os.fsdecode(error.filename) if not isinstance(error.filename, int) else "a file"
        say(f"cclf: cannot access {path}: {error.strerror or error}")
        return EXIT_FAILED if error.errno in FULL_DISK else EXIT_BAD_INPUT


def _run_command(arguments: list[str]) -> int:
    limit_openmp_spinning()
    # Child interpreters import no modules from the working directory, which may be a run folder.
    os.environ["PYTHONSAFEPATH"] = "1"
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return EXIT_DONE if arguments else EXIT_BAD_INPUT
    name = arguments[0]
    if name == "--version":
        print(__version__)
        return EXIT_DONE
    if name not in COMMANDS:
        raise ConfigError(
            f"unknown command {name!r}{did_you_mean(name, COMMANDS)} (see: cclf --help)"
        )
    exit_code: int | None = importlib.import_module(f"cclf.commands.{name}").main(arguments[1:])
    return exit_code or EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
