"""The Python interface: `train`, `load` and `results` (docs/usage.md). They run the code of the commands
of the same names and share their run folders.

Importing this module does not import torch, which the functions do when they are called. A program
can therefore first set the environment variables that PyTorch reads when it is imported.
"""

import contextlib
import importlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from cclf import plugins, presets
from cclf.algorithms.base import DEFAULT_PROFILE
from cclf.commands import limit_openmp_spinning
from cclf.config import IMPORTED_OPTIONS, Config, ObservationType
from cclf.console import facts_line, facts_table, say
from cclf.envs.registry import to_task_name
from cclf.errors import ConfigError, require_extras
from cclf.validation import Seed, short_text, to_python_number, validate_value

if TYPE_CHECKING:
    import gymnasium
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from cclf.analysis.runs import ResultRow
    from cclf.trained_agent import TrainedAgent
    from cclf.training.callbacks import EvaluationInfo, StepInfo

PathLike = str | os.PathLike[str]
MakeEnv = Callable[[], "gymnasium.Env[Any, Any]"]
OnStep = Callable[["StepInfo"], object]
OnEvaluation = Callable[["EvaluationInfo"], object]
Records = list[dict[str, Any]]  # one dict per evaluation


class Run(NamedTuple):
    """A run that `train` trained.

    >>> run = cclf.train("toy/reach-1d", "cclf")  # doctest: +SKIP
    >>> run.plot().savefig("returns.png")  # doctest: +SKIP
    """

    folder: Path
    config: Config
    finished: bool  # False if a callback stopped it: the same call resumes it

    @overload
    def results(self, pandas: Literal[False] = ...) -> Records: ...
    @overload
    def results(self, pandas: Literal[True]) -> "DataFrame": ...
    def results(self, pandas: bool = False) -> "Records | DataFrame":
        """The evaluations of the run, as `cclf.results` returns them; empty before the first."""
        _require_pandas(pandas)
        from cclf.analysis import load

        return _to_records(load.read_runs(self.folder), pandas)

    def agent(self, device: str = "auto") -> "TrainedAgent":
        """The agent in the newest checkpoint of the run."""
        # The caller of `train` chose the modules that the run imports.
        return load(self.folder, device=device, trust_imports=True)

    def dataframe(self) -> "DataFrame":
        """The evaluations of the run as a pandas DataFrame.

        >>> run.dataframe().plot("env_steps", "return_mean")  # doctest: +SKIP
        """
        return self.results(pandas=True)

    def plot(self) -> "Figure":
        """A matplotlib figure of the mean return of each evaluation over environment steps. A
        notebook displays it.

        >>> run.plot().savefig("returns.png")  # doctest: +SKIP
        """
        require_extras("run.plot()", ["report"])
        from cclf.analysis import curves, figures, load

        rows = load.read_runs(self.folder)
        if not any(row.episodes for row in rows):
            raise ConfigError(f"{self.folder} has no evaluation yet, so there is nothing to plot")
        if "ipykernel" in sys.modules:  # the import makes the notebook display figures
            importlib.import_module("matplotlib_inline.backend_inline")
        return figures.learning_curves(curves.panels(rows))

    def __repr__(self) -> str:
        return f"<cclf.Run {facts_line(self._facts())}>"

    def _repr_html_(self) -> str:
        return facts_table(self._facts())

    def _facts(self) -> dict[str, str]:
        facts = {
            "task": self.config.task,
            "method": self.config.method_name,
            "seed": str(self.config.seed),
            "finished": "yes" if self.finished else "no",
        }
        if evaluations := self.results():
            last = evaluations[-1]
            facts["return"] = f"{last['return_mean']:.4g} at {last['env_steps']:,} env steps"
        return facts | {"folder": str(self.folder)}


def train(
    task: "str | MakeEnv",
    method: str | None = None,
    *,
    base: str | None = None,
    seed: int = 1,
    profile: str = DEFAULT_PROFILE,
    size: str | None = None,
    observe: ObservationType = "pixels",
    out: PathLike = "runs",
    on_step: OnStep | None = None,
    on_evaluation: OnEvaluation | None = None,
    **changes: Any,
) -> Run:
    """Train an agent as `cclf train` does, in the same run folder. The same call resumes a run.

    `task` is the name of a task, or a function without arguments that returns a new Gymnasium
    environment. The run folder stores its name, gym/MODULE:FUNCTION, so it must be defined in a module.
    `changes` are the options of the command line by their names: `env_steps=2_000`. An `encoder` or
    `curiosity` may also be the function or class itself, if another process can import it. Callbacks
    receive numbers and may raise `cclf.StopRun`. A process trains one run at a time.
    """
    seed = to_python_number(seed)
    changes = {name: to_python_number(value) for name, value in changes.items()}
    task = to_task_name(task)
    for name, text in (("method", method), ("base", base), ("size", size)):
        validate_value(name, text, str | None)
    validate_value("seed", seed, Seed)
    validate_value("profile", profile, str)
    validate_value("observe", observe, ObservationType)
    folder = _to_path("out", out).absolute()  # a callback may change the working directory
    _validate_callback("on_step", on_step)
    _validate_callback("on_evaluation", on_evaluation)
    with _one_training_call():
        for option in IMPORTED_OPTIONS:
            if callable(changes.get(option)):
                changes[option] = plugins.qualified_name(option, changes[option])
        defaults = presets.resolve(
            task, method, seed=seed, profile=profile, base_name=base, size=size, observe=observe
        )
        config = presets.with_changes(defaults, changes)
        return _train(config, folder, on_step, on_evaluation)


def _train(
    config: Config, out: Path, on_step: OnStep | None, on_evaluation: OnEvaluation | None
) -> Run:
    limit_openmp_spinning()
    from cclf.storage.run_folder import read_config
    from cclf.training.callbacks import CallbackError, Callbacks
    from cclf.training.devices import default_settings, restored_settings
    from cclf.training.signals import STOP_MESSAGE, StopSignal
    from cclf.training.trainer import train_runs

    stop, error = StopSignal(STOP_MESSAGE), None
    with default_settings(), restored_settings(), stop.installed():
        runs = train_runs([config], out, stop, Callbacks(on_step, on_evaluation))
        with contextlib.closing(runs):
            try:
                result = next(runs)
                if result.message:
                    say(result.message)
            except CallbackError as wrapper:
                error, callback_name = wrapper.__cause__, str(wrapper)
    if isinstance(error, StopIteration):
        raise ConfigError(
            f"{callback_name} raised StopIteration: raise cclf.StopRun to stop the run, and give "
            "`next` a second argument where an iterator may end"
        ) from error
    if error is not None:
        raise error
    if result.error is not None:
        raise result.error
    return Run(result.folder, read_config(result.folder), result.end == "done")


_train_lock = threading.Lock()


def _renew_lock() -> None:
    """A process that was forked during a run, e.g. by a callback, may train runs of its own."""
    global _train_lock
    _train_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


@contextlib.contextmanager
def _one_training_call() -> Iterator[None]:
    """Raise ConfigError if another call of `train` is active in this process: both calls would
    change the same PyTorch settings."""
    lock = _train_lock
    if not lock.acquire(blocking=False):
        raise ConfigError(
            "another cclf.train is running in this process: wait until it returns (a callback of a "
            "run cannot train another one), or use a process for each run"
        )
    try:
        yield
    finally:
        lock.release()


def _validate_callback(name: str, callback: object) -> None:
    if callback is not None and (not callable(callback) or inspect.iscoroutinefunction(callback)):
        raise ConfigError(f"{name}={short_text(callback)} must be a plain function of one argument")


def _to_path(name: str, path: object) -> Path:
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise ConfigError(f"{name}={short_text(path)} must be a path: text or a pathlib.Path")
    if not text or "\0" in text:
        raise ConfigError(f"{name}={text!r:.60} is not the name of a file or folder")
    return Path(text)


def load(
    run: PathLike, *, device: str = "auto", seed: int = 0, trust_imports: bool = False
) -> "TrainedAgent":
    """The trained agent of a run folder. `seed` is used to sample actions (A2C).

    In place of a run folder, `pretrained/NAME` is an agent of this package, and `hf:USER/NAME` one of
    the Hugging Face Hub (extra `hub`); `hf:USER/NAME@REVISION` pins a revision.

    >>> agent = cclf.load("pretrained/DoorKey-6x6")  # doctest: +SKIP
    >>> agent.play("episode.mp4")  # doctest: +SKIP

    `trust_imports` allows importing the Python modules that the run folder names, which runs their
    code: in a task gym/MODULE:ID or gym/MODULE:FUNCTION, or an encoder or a curiosity MODULE:NAME.
    """
    seed, folder = to_python_number(seed), _to_path("run", run)
    validate_value("device", device, str)
    validate_value("seed", seed, Seed)
    validate_value("trust_imports", trust_imports, bool)
    limit_openmp_spinning()
    from cclf.agents import find_agent
    from cclf.trained_agent import TrainedAgent

    return TrainedAgent(find_agent(folder), device, seed, trust_imports)


@overload
def results(path: PathLike, pandas: Literal[False] = ...) -> Records: ...
@overload
def results(path: PathLike, pandas: Literal[True]) -> "DataFrame": ...
def results(path: PathLike, pandas: bool = False) -> "Records | DataFrame":
    """The evaluations of all runs under a folder, or of results files that `cclf results` wrote: a
    list of dicts, one per evaluation, or with `pandas` a DataFrame."""
    folder = _to_path("path", path)
    _require_pandas(pandas)
    from cclf.analysis import load

    return _to_records(load.read(folder), pandas)


def _require_pandas(wanted: bool) -> None:
    validate_value("pandas", wanted, bool)
    if wanted:
        require_extras("pandas=True", ["pandas"])


def _to_records(rows: "Iterable[ResultRow]", pandas: bool) -> "Records | DataFrame":
    records = [row._asdict() for row in rows]
    if not pandas:
        return records
    from pandas import DataFrame

    return DataFrame(records)
