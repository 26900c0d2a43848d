"""The package from Python: train, load, results (docs/api.md). They share the code of the commands
of these names, and their run folders.

Light until a function is called, so that what PyTorch reads when it starts can be set before.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cclf import plugins, presets
from cclf.bases.base import DEFAULT_PROFILE
from cclf.commands.options import let_threads_sleep
from cclf.config import Config, Observe
from cclf.console import say
from cclf.envs.registry import refuse_unnamed
from cclf.errors import ConfigError

if TYPE_CHECKING:
    from cclf.runtime.callbacks import Evaluated, Step
    from cclf.trained_agent import TrainedAgent

Folder = str | os.PathLike[str]


class Run(NamedTuple):
    """A run that was trained here, and how far it came."""

    folder: Path
    config: Config
    finished: bool  # False where a callback stopped it: the same call goes on

    def results(self, pandas: bool = False) -> Any:
        """Its evaluations as tidy rows, see `cclf.results`; none before the first."""
        from cclf.study import load

        return _tidy(load.read_runs(self.folder), pandas)

    def agent(self, device: str = "auto") -> "TrainedAgent":
        """As it was saved last."""
        return load(
            self.folder, device=device, trust_imports=True
        )  # whoever trained named the modules


def train(
    task: str,
    method: str | None = None,
    *,
    base: str | None = None,
    seed: int = 1,
    profile: str = DEFAULT_PROFILE,
    size: str | None = None,
    observe: Observe = "pixels",
    out: Folder = "runs",
    on_step: "Callable[[Step], Any] | None" = None,
    on_evaluation: "Callable[[Evaluated], Any] | None" = None,
    **changes: Any,
) -> Run:
    """Train an agent as `cclf train` does, in the same run folder. The same call again goes on.

    `changes` are the options of the command line by their names: `env_steps=2_000`. An `encoder`
    may also be the function itself, which must lie in a module. A callback gets numbers, and may
    raise `cclf.StopRun`.
    """
    refuse_unnamed(task)
    if callable(changes.get("encoder")):
        changes["encoder"] = plugins.name_of("encoder", changes["encoder"])
    defaults = presets.resolve(
        task, method, seed=seed, profile=profile, base_name=base, size=size, observe=observe
    )
    config = presets.with_changes(defaults, changes)
    let_threads_sleep()
    from cclf.runtime.callbacks import Callbacks
    from cclf.runtime.devices import as_before
    from cclf.runtime.run_folder import read_config
    from cclf.runtime.stop import STOPPING, Stop
    from cclf.training import trained

    stop = Stop(STOPPING)
    with as_before(), stop.listening():
        runs = trained([config], Path(out), stop, Callbacks(on_step, on_evaluation))
        with contextlib.closing(runs):
            outcome = next(runs)
        if outcome.line:
            say(outcome.line)
    if outcome.error is not None:
        raise outcome.error
    return Run(outcome.folder, read_config(outcome.folder), outcome.end == "done")


def load(
    run: Folder, *, device: str = "auto", seed: int = 0, trust_imports: bool = False
) -> "TrainedAgent":
    """The trained agent of a run folder. `seed`: of actions that are sampled (A2C).

    `trust_imports` allows a task gym/MODULE:ID or an encoder MODULE:FUNCTION of the run folder to
    import that Python module.
    """
    let_threads_sleep()
    from cclf.trained_agent import TrainedAgent

    return TrainedAgent(Path(run), device, seed, trust_imports)


def results(path: Folder, pandas: bool = False) -> Any:
    """The evaluations of all runs under a folder, or of results files that `cclf results` wrote: a
    list of dicts, one per evaluation, or with `pandas` a DataFrame."""
    from cclf.study import load

    return _tidy(load.read(Path(path)), pandas)


def _tidy(rows: Any, pandas: bool) -> Any:
    tidy = [row._asdict() for row in rows]
    if not pandas:
        return tidy
    try:
        import pandas as frames
    except ModuleNotFoundError as error:
        raise ConfigError("pandas=True needs the package pandas: pip install pandas") from error
    return frames.DataFrame(tidy)
