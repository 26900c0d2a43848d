"""The package from Python: train, load, results (docs/api.md). They share the code of the commands
of these names, and their run folders.

Light until a function is called, so that what PyTorch reads when it starts can be set before.
"""

import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cclf import extras, plugins, presets, validation
from cclf.algorithms.base import DEFAULT_PROFILE
from cclf.commands.options import limit_openmp_spinning
from cclf.config import IMPORTED_OPTIONS, Config, ObservationType
from cclf.console import say
from cclf.envs.registry import require_task_name
from cclf.errors import ConfigError

if TYPE_CHECKING:
    from cclf.trained_agent import TrainedAgent
    from cclf.training.callbacks import EvaluationInfo, StepInfo

PathLike = str | os.PathLike[str]


class Run(NamedTuple):
    """A run that was trained here, and how far it came."""

    folder: Path
    config: Config
    finished: bool  # False where a callback stopped it: the same call goes on

    def results(self, pandas: bool = False) -> Any:
        """Its evaluations as tidy rows, see `cclf.results`; none before the first."""
        _refuse_missing(pandas)
        from cclf.analysis import load

        return _to_records(load.read_runs(self.folder), pandas)

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
    observe: ObservationType = "pixels",
    out: PathLike = "runs",
    on_step: "Callable[[StepInfo], Any] | None" = None,
    on_evaluation: "Callable[[EvaluationInfo], Any] | None" = None,
    **changes: Any,
) -> Run:
    """Train an agent as `cclf train` does, in the same run folder. The same call again goes on.

    `changes` are the options of the command line by their names: `env_steps=2_000`. An `encoder`
    or `curiosity` may also be the function or class itself, which must lie in a module. A callback gets numbers, and may
    raise `cclf.StopRun`. One run at a time trains in a process.
    """
    seed, changes = (
        validation.to_python_number(seed),
        {name: validation.to_python_number(changes[name]) for name in changes},
    )
    require_task_name(task)
    for name, value in (("method", method), ("base", base), ("size", size)):
        validation.validate_value(name, value, str | None)
    validation.validate_value("seed", seed, validation.Seed)
    validation.validate_value("profile", profile, str)
    validation.validate_value("observe", observe, ObservationType)
    folder = _path("out", out).absolute()  # a callback may change the working directory
    for name, callback in (("on_step", on_step), ("on_evaluation", on_evaluation)):
        _refuse_callback(name, callback)
    with _only_run_of_process():
        for option in IMPORTED_OPTIONS:
            if callable(changes.get(option)):
                changes[option] = plugins.qualified_name(option, changes[option])
        defaults = presets.resolve(
            task, method, seed=seed, profile=profile, base_name=base, size=size, observe=observe
        )
        config = presets.with_changes(defaults, changes)
        return _trained(config, folder, on_step, on_evaluation)


def _trained(config: Config, out: Path, on_step: Any, on_evaluation: Any) -> Run:
    limit_openmp_spinning()
    from cclf.storage.run_folder import read_config
    from cclf.training.callbacks import CallbackError, Callbacks
    from cclf.training.signals import STOP_MESSAGE, StopSignal
    from cclf.training.torch_settings import default_settings, restored_settings
    from cclf.training.trainer import train_runs

    stop, error = StopSignal(STOP_MESSAGE), None
    with default_settings(), restored_settings(), stop.installed():
        runs = train_runs([config], out, stop, Callbacks(on_step, on_evaluation))
        with contextlib.closing(runs):
            try:
                outcome = next(runs)
                if outcome.message:
                    say(outcome.message)
            except CallbackError as carrier:
                error, callback = carrier.__cause__, str(carrier)
    if isinstance(error, StopIteration):
        raise ConfigError(
            f"{callback} raised StopIteration: raise cclf.StopRun to stop the run, and give `next` "
            "a second argument where an iterator may end"
        ) from error
    if error is not None:
        raise error
    if outcome.error is not None:
        raise outcome.error
    return Run(outcome.folder, read_config(outcome.folder), outcome.end == "done")


_running = threading.Lock()


def _renew_lock() -> None:
    """A process that was forked during a run, e.g. by a callback, may train runs of its own."""
    global _running
    _running = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


@contextlib.contextmanager
def _only_run_of_process() -> Iterator[None]:
    """Settings of PyTorch hold for all of a process, so two runs there could change each other."""
    lock = _running
    if not lock.acquire(blocking=False):
        raise ConfigError(
            "another cclf.train is running in this process: wait until it returns (a callback of a "
            "run cannot train another one), or use a process for each run"
        )
    try:
        yield
    finally:
        lock.release()


def _refuse_callback(name: str, callback: Any) -> None:
    if callback is not None and (not callable(callback) or inspect.iscoroutinefunction(callback)):
        raise ConfigError(
            f"{name}={validation.short_text(callback)} must be a plain function of one argument"
        )


def _path(name: str, path: Any) -> Path:
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise ConfigError(
            f"{name}={validation.short_text(path)} must be a path: text or a pathlib.Path"
        )
    if not text or "\0" in text:
        raise ConfigError(f"{name}={text!r:.60} is not the name of a file or folder")
    return Path(path)


def load(
    run: PathLike, *, device: str = "auto", seed: int = 0, trust_imports: bool = False
) -> "TrainedAgent":
    """The trained agent of a run folder. `seed`: of actions that are sampled (A2C).

    `trust_imports` allows a task gym/MODULE:ID or an encoder MODULE:FUNCTION of the run folder to
    import that Python module.
    """
    seed, folder = validation.to_python_number(seed), _path("run", run)
    validation.validate_value("device", device, str)
    validation.validate_value("seed", seed, validation.Seed)
    validation.validate_value("trust_imports", trust_imports, bool)
    limit_openmp_spinning()
    from cclf.trained_agent import TrainedAgent

    return TrainedAgent(folder, device, seed, trust_imports)


def results(path: PathLike, pandas: bool = False) -> Any:
    """The evaluations of all runs under a folder, or of results files that `cclf results` wrote: a
    list of dicts, one per evaluation, or with `pandas` a DataFrame."""
    folder = _path("path", path)
    _refuse_missing(pandas)
    from cclf.analysis import load

    return _to_records(load.read(folder), pandas)


def _refuse_missing(pandas: Any) -> None:
    validation.validate_value("pandas", pandas, bool)
    if pandas:
        extras.require_extras("pandas=True", ["pandas"])


def _to_records(rows: Any, pandas: bool) -> Any:
    tidy = [row._asdict() for row in rows]
    if not pandas:
        return tidy
    import pandas as frames

    return frames.DataFrame(tidy)
