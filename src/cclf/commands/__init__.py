"""One module per command, with a function `main`. A module is imported when its command is called,
and imports torch only where it is needed."""

import os

COMMANDS = (
    *(
        "demo",
        "train",
        "runs",
        "evaluate",
        "play",
        "inspect",
        "export",
        "push",
        "sweep",
        "compare",
        "reproduce",
    ),
    *("results", "plot", "report", "bench", "doctor", "methods", "tasks"),
)
DEBUG = "CCLF_DEBUG"  # environment variable: show the traceback of an operating system error


def limit_openmp_spinning() -> None:
    """Let waiting threads of PyTorch sleep after a short time. By default they spin for
    milliseconds, which makes a run thirty times slower if another process uses the cores. OpenMP
    reads this variable when PyTorch starts (docs/performance.md)."""
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
