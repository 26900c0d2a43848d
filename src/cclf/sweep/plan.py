"""The runs of a sweep, the processes that train them, the progress of each run, which is read from its
folder, and how it ended."""

import csv
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from cclf import presets
from cclf.algorithms.registry import find_algorithm
from cclf.config import Config
from cclf.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_STOPPED, FULL_DISK, ConfigError
from cclf.storage import checkpoint_files
from cclf.storage.atomic_files import write_json
from cclf.storage.safe_loading import DATA_ERRORS, open_file

PROCESS_BYTES = 600 * 2**20  # memory without the replay buffer: Python, PyTorch, an environment
FAILURE_MARK = "failed.json"
NOT_STARTED = "not started"  # a run that had not begun when the sweep was stopped
STATES = ("done", "stopped", NOT_STARTED, "failed")
_TAIL_BYTES = 16_384
T = TypeVar("T")


@dataclass(frozen=True)
class RunSpec:
    """One run: its config, the options of its `cclf train`, its folder, and its memory."""

    config: Config
    options: tuple[str, ...]
    """All options but --out."""
    out: Path
    memory_bytes: int = PROCESS_BYTES
    variant: str = ""
    """The values of `--vary`, such as "learning_rate=1e-4"."""

    @property
    def folder(self) -> Path:
        return self.out / self.config.run_name()

    @property
    def label(self) -> str:
        return f"{self.config.task} {self.method} seed {self.config.seed}"

    @property
    def method(self) -> str:
        return f"{self.config.method_name} {self.variant}".rstrip()

    @property
    def cpus(self) -> int:
        return max(1, self.config.run.threads)

    @property
    def may_use_gpu(self) -> bool:
        """Whether the sweep gives it a GPU. A device with a number is the choice of the user."""
        device = self.config.run.device
        return find_algorithm(self.config.base).uses_gpu and device in ("auto", "cuda")

    @property
    def arguments(self) -> list[str]:
        """The words after `cclf train`."""
        return [*self.options, "--out", str(self.out)]


def make_run_spec(
    config: Config,
    out: Path,
    extra: Iterable[str] = (),
    replay_bytes: int = 0,
    variant: str = "",
) -> RunSpec:
    """The run of `config`. Its `cclf train` gets the names in `config` and the options `extra`."""
    options = [config.task, "--method", config.method_name, "--profile", config.profile]
    options += ["--seed", str(config.seed), *extra]
    return RunSpec(config, tuple(options), out, PROCESS_BYTES + replay_bytes, variant)


def resolve_precision(specs: Sequence[RunSpec], gpus: bool) -> list[RunSpec]:
    """The runs with a precision in place of `auto`. It is part of the names of run folders, so the sweep
    chooses the same one for all runs and machines."""
    device = specs[0].config.run.device
    on_gpu = device.startswith("cuda") or (device == "auto" and gpus)
    configs = presets.resolve_precision([spec.config for spec in specs], specs[0].out, on_gpu)
    return [
        spec
        if config == spec.config
        else replace(
            spec, config=config, options=(*spec.options, "--precision", config.algorithm.precision)
        )
        for spec, config in zip(specs, configs, strict=True)
    ]


@dataclass(frozen=True)
class Job:
    """The runs of one process: one run, or several seeds and games of one method that are trained
    as a batch."""

    specs: tuple[RunSpec, ...]  # task by task, each with the same seeds

    @property
    def first(self) -> RunSpec:
        return self.specs[0]

    @property
    def memory_bytes(self) -> int:
        return sum(spec.memory_bytes for spec in self.specs) - PROCESS_BYTES * (len(self.specs) - 1)

    @property
    def arguments(self) -> list[str]:
        seeds = dict.fromkeys(str(spec.config.seed) for spec in self.specs)
        tasks = dict.fromkeys(spec.config.task for spec in self.specs)
        arguments = self.first.arguments
        for option, names in (("--with-seeds", [*seeds][1:]), ("--with-tasks", [*tasks][1:])):
            arguments += [option, *names] if names else []
        return arguments


def group_into_jobs(
    specs: Sequence[RunSpec], seeds_per_process: int = 1, games_per_process: int = 1
) -> list[Job]:
    """The runs in their order, grouped into processes where the base algorithm trains a batch of
    runs: up to `seeds_per_process` seeds of one task and method, and up to `games_per_process`
    tasks with the same method and seeds."""
    for base in {spec.config.base for spec in specs}:
        if seeds_per_process > 1 and not find_algorithm(base).batches_runs:
            raise ConfigError(
                f"--seeds-per-process {seeds_per_process} conflicts with base {base}, whose runs share "
                "no update: remove it (--runs-per-gpu shares a GPU between processes)"
            )
    place = {spec: number for number, spec in enumerate(specs)}

    def place_of(group: Sequence[RunSpec]) -> int:
        return place[group[0]]

    def method_and_seeds(group: Sequence[RunSpec]) -> object:
        """Equal for the groups that may share a process."""
        first, seeds = group[0], [spec.config.seed for spec in group]
        is_batched = find_algorithm(first.config.base).batches_runs
        return (first.options[1:], first.out, *seeds) if is_batched else first

    by_task = _grouped(
        specs, lambda spec: (replace(spec.config, seed=0), spec.out), seeds_per_process
    )
    by_method = _grouped(sorted(by_task, key=place_of), method_and_seeds, games_per_process)
    jobs = [Job(tuple(spec for group in part for spec in group)) for part in by_method]
    return sorted(jobs, key=lambda job: place_of(job.specs))


def _grouped(items: Iterable[T], key: Callable[[T], object], size: int) -> list[list[T]]:
    """The items with equal keys together, at most `size` of them in a list."""
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [
        group[start : start + size]
        for group in groups.values()
        for start in range(0, len(group), size)
    ]


class JobEnd(NamedTuple):
    """How the process of a job ended."""

    exit_code: int
    message: str


class RunProgress(NamedTuple):
    """The last row of train.csv, and the last training return in it."""

    env_steps: int = 0
    updates: int = 0
    train_return: float | None = None


class RunOutcome(NamedTuple):
    spec: RunSpec
    exit_code: int
    last_line: str

    @property
    def failed(self) -> bool:
        return self.exit_code not in (EXIT_DONE, EXIT_STOPPED)

    @property
    def state(self) -> str:
        """One of STATES."""
        if self.exit_code == EXIT_STOPPED:
            return NOT_STARTED if self.last_line == NOT_STARTED else "stopped"
        return "failed" if self.failed else "done"


def summarize(outcomes: Iterable[RunOutcome], runs: int) -> str:
    """The number of runs in each state, such as "3 of 4 runs done, 1 failed"."""
    counts = Counter(outcome.state for outcome in outcomes)
    others = [f"{counts[state]} {state}" for state in STATES[1:] if counts[state]]
    return ", ".join([f"{counts['done']} of {runs} runs done", *others])


def read_progress(folder: Path) -> RunProgress:
    """The progress of a run, from the end of its train.csv."""
    try:
        with open_file(folder / "train.csv") as file:
            header = file.readline().decode()
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            # The first line is the header or incomplete.
            lines = file.read().decode(errors="replace").splitlines(keepends=True)[1:]
        rows = list(csv.DictReader([header, *(line for line in lines if line.endswith("\n"))]))
        returns = [float(row["episode_return"]) for row in rows if row["episode_return"]]
        updates = int(rows[-1].get("updates") or 0)
        return RunProgress(int(rows[-1]["env_steps"]), updates, returns[-1] if returns else None)
    except (OSError, *DATA_ERRORS):  # it does not exist yet, or `cclf train` reports what is wrong
        return RunProgress()


def is_finished(spec: RunSpec) -> bool:
    """Whether the run folder holds a complete run, whatever the exit code of its process was."""
    run, action_repeat = spec.config.run, spec.config.env.action_repeat
    return checkpoint_files.is_complete(
        spec.folder, run.env_steps, action_repeat, run.final_eval_episodes
    )


def full_disk_message(out: Path) -> str:
    return f"the disk is full ({out}): free space there, then run the same command"


def record_failure(outcome: RunOutcome) -> RunOutcome:
    """Write failed.json, which keeps a failed run in the statistics; remove it when the run is done.
    Returns the outcome; if the file cannot be changed, with the reason.

    A run that was refused (bad input, another process trains there) is not a result and leaves
    nothing.
    """
    spec, config = outcome.spec, outcome.spec.config
    path = spec.folder / FAILURE_MARK
    facts = {
        "exit_code": outcome.exit_code,
        "last_line": outcome.last_line,
        "env_steps": read_progress(spec.folder).env_steps,
        "task": config.task,
        "method": config.method_name,
        "profile": config.profile,
        "seed": config.seed,
        "config": config.to_dict(),  # for a run that ended before it wrote its own
    }
    try:
        if outcome.exit_code == EXIT_DONE:
            path.unlink(missing_ok=True)
        elif outcome.failed and outcome.exit_code != EXIT_BAD_INPUT:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, facts)
    except OSError as error:
        is_full = error.errno in FULL_DISK
        why = full_disk_message(spec.out) if is_full else f"cannot change {path}: {error.strerror}"
        return outcome._replace(last_line=f"{outcome.last_line}; {why}")
    return outcome
