"""Contrastive-curiosity-driven reinforcement learning from pixels (Sun, Qian, Miao, IJCAI 2022).

Importing it is light: what is named here is loaded when it is first used (docs/usage.md).
"""

TYPE_CHECKING = False  # typing's own, but without its import: Ctrl-C may come at any moment

if TYPE_CHECKING:
    from cclf import equations as equations
    from cclf.api import Run as Run
    from cclf.api import load as load
    from cclf.api import results as results
    from cclf.api import train as train
    from cclf.callbacks import BestCheckpoint as BestCheckpoint
    from cclf.callbacks import EarlyStopping as EarlyStopping
    from cclf.errors import ConfigError as ConfigError
    from cclf.errors import StopRun as StopRun
    from cclf.framework import Framework as Framework

__version__ = "0.2.0"

_WHERE = {
    **dict.fromkeys(("train", "load", "results", "Run"), "cclf.api"),
    **dict.fromkeys(("BestCheckpoint", "EarlyStopping"), "cclf.callbacks"),
    **dict.fromkeys(("ConfigError", "StopRun"), "cclf.errors"),
    "Framework": "cclf.framework",
}


if not TYPE_CHECKING:  # which would take any name for known

    def __getattr__(name):
        import importlib

        if name == "equations":
            return importlib.import_module("cclf.equations")
        if name in _WHERE:
            return getattr(importlib.import_module(_WHERE[name]), name)
        raise AttributeError(f"module 'cclf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "equations", *_WHERE]
