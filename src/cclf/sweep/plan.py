"""What a sweep runs, and what came of it. A run folder itself says whether it is finished and how
far it is."""

import csv
import errno
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from cclf import presets
from cclf.algorithms.registry import find_algorithm
from cclf.config import Config
from cclf.storage.atomic_files import write_json
from cclf.storage.checkpoint_files import is_complete
from cclf.storage.safe_loading import DATA_ERRORS, open_file

DONE, FAILED, BAD_INPUT, STOPPED = 0, 1, 2, 75  # exit codes of `cclf train`
PROCESS_BYTES = 600 * 2**20  # of one run beside its replay: Python, PyTorch, an environment
FAILURE_MARK = "failed.json"
NOT_STARTED = "not started"  # the last word of a run that a sweep left out when it was stopped
STATES = ("done", "stopped", NOT_STARTED, "failed")
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_TAIL_BYTES = 16_384


@dataclass(frozen=True)
class Call:
    """One run: the words of its `cclf train`, where its folder goes, and what it needs."""

    config: Config
    options: tuple[str, ...]
    """All but --out, which differs between machines."""
    out: Path
    memory_bytes: int = PROCESS_BYTES

    @property
    def folder(self) -> Path:
        return self.out / self.config.run_name()

    @property
    def label(self) -> str:
        return f"{self.config.task} {self.config.method_name} seed {self.config.seed}"

    @property
    def cpus(self) -> int:
        return max(1, self.config.run.threads)

    @property
    def may_use_gpu(self) -> bool:
        """A device chosen by number is the caller's own affair."""
        return find_algorithm(self.config.base).uses_gpu and self.config.run.device in (
            "auto",
            "cuda",
        )

    def arguments(self, out: Path | None = None) -> list[str]:
        return [*self.options, "--out", str(self.out if out is None else out)]


def call_of(config: Config, out: Path, extra: Iterable[str] = (), replay_bytes: int = 0) -> Call:
    """The run of `config`, which names and `extra` options alone must give."""
    names = (
        config.task,
        "--method",
        config.method_name,
        "--profile",
        config.profile,
        "--seed",
        str(config.seed),
    )
    return Call(config, (*names, *extra), out, PROCESS_BYTES + replay_bytes)


def settled(calls: Sequence[Call], gpus: bool) -> list[Call]:
    """The calls of a sweep, their precision named where it was left open. It is one for all, so
    that they can be compared, and chosen by what the machines have, since folders are named after
    it."""
    device = calls[0].config.run.device
    on_gpu = device.startswith("cuda") or (device == "auto" and gpus)
    configs = presets.resolve_precision([call.config for call in calls], calls[0].out, on_gpu)
    return [
        call
        if config == call.config
        else replace(
            call,
            config=config,
            options=(*call.options, "--precision", config.algorithm.precision),
        )
        for call, config in zip(calls, configs, strict=True)
    ]


@dataclass(frozen=True)
class Job:
    """What one process does: a call, or several that differ in their seeds alone; or games x seeds
    of one method."""

    calls: tuple[Call, ...]  # task by task, each with the same seeds

    @property
    def first(self) -> Call:
        return self.calls[0]

    @property
    def memory_bytes(self) -> int:
        return sum(call.memory_bytes for call in self.calls) - PROCESS_BYTES * (len(self.calls) - 1)

    def arguments(self, out: Path) -> list[str]:
        words = self.first.arguments(out)
        for option, names in (("--with-seeds", self.seeds), ("--with-tasks", self.tasks)):
            words += [option, *names[1:]] if names[1:] else []
        return words

    @property
    def seeds(self) -> list[str]:
        return list(dict.fromkeys(str(call.config.seed) for call in self.calls))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(call.config.task for call in self.calls))

    def folders(self, out: Path) -> list[Path]:
        return [out / call.config.run_name() for call in self.calls]


def jobs_of(
    calls: Sequence[Call], seeds_per_process: int = 1, games_per_process: int = 1
) -> list[Job]:
    """Calls in their order, up to `seeds_per_process` seeds of one method on one task together;
    with the same seeds, that many games of Rainbow, which then learn in one call."""
    alike: dict[tuple[Config, Path], list[Call]] = {}
    for call in calls:
        alike.setdefault((replace(call.config, seed=0), call.out), []).append(call)
    groups = [
        group[i : i + seeds_per_process]
        for group in alike.values()
        for i in range(0, len(group), seeds_per_process)
    ]
    place = {call: number for number, call in enumerate(calls)}
    stacks: dict[Any, list[list[Call]]] = {}
    for group in sorted(groups, key=lambda group: place[group[0]]):
        is_game = find_algorithm(group[0].config.base).batches_runs
        but_task = (group[0].options[1:], group[0].out, *(call.config.seed for call in group))
        stacks.setdefault(but_task if is_game else group[0], []).append(group)
    parts = [
        stack[i : i + games_per_process]
        for stack in stacks.values()
        for i in range(0, len(stack), games_per_process)
    ]
    return [
        Job(tuple(call for group in part for call in group))
        for part in sorted(parts, key=lambda part: place[part[0][0]])
    ]


class RunStatus(NamedTuple):
    """How a run stands: its newest row, and the exit code of its process once that has ended."""

    env_steps: int = 0
    train_return: float | None = None
    exit_code: int | None = None
    last_line: str = ""
    updates: int = 0


class Outcome(NamedTuple):
    call: Call
    exit_code: int
    last_line: str

    @property
    def failed(self) -> bool:
        return self.exit_code not in (DONE, STOPPED)

    @property
    def state(self) -> str:
        """One of STATES."""
        if self.exit_code == STOPPED:
            return NOT_STARTED if self.last_line == NOT_STARTED else "stopped"
        return "failed" if self.failed else "done"


def tally(outcomes: Iterable[Outcome], runs: int) -> str:
    """How many of the runs came to what; of a sweep that was stopped, those it never began count
    for themselves."""
    counts = Counter(outcome.state for outcome in outcomes)
    others = [f"{counts[state]} {state}" for state in STATES[1:] if counts[state]]
    return ", ".join([f"{counts['done']} of {runs} runs done", *others])


def progress(folder: Path) -> RunStatus:
    """The last clock reading and training return in a run's train.csv, read from its end."""
    try:
        with open_file(folder / "train.csv") as file:
            header = file.readline()
            start = file.tell()
            end = file.seek(0, 2)
            file.seek(max(start, end - _TAIL_BYTES))
            tail = file.read().decode(errors="replace").splitlines(keepends=True)
        if end - start > _TAIL_BYTES:
            tail = tail[1:]  # its beginning is missing
        whole = [line for line in tail if line.endswith("\n")]
        rows = list(csv.DictReader([header.decode(), *whole]))
        returns = [float(row["episode_return"]) for row in rows if row["episode_return"]]
        return RunStatus(
            int(rows[-1]["env_steps"]),
            returns[-1] if returns else None,
            updates=int(rows[-1].get("updates") or 0),
        )
    except (
        OSError,
        *DATA_ERRORS,
    ):  # there is none yet, or the run itself says what is wrong with it
        return RunStatus()


def is_finished(call: Call) -> bool:
    """As its folder proves, whatever a process said."""
    config = call.config
    return is_complete(
        call.folder, config.run.env_steps, config.env.action_repeat, config.run.final_eval_episodes
    )


def full_disk(out: Path) -> str:
    return f"the disk is full ({out}): free space there, then run the same command"


def mark(outcome: Outcome) -> None:
    """Leave in the run folder that the run failed, for the statistics; take it back once it has
    come to its end.

    A run that was refused (bad input, another process trains there) is no result and leaves
    nothing.
    """
    path = outcome.call.folder / FAILURE_MARK
    if outcome.exit_code == DONE:
        path.unlink(missing_ok=True)
    elif outcome.failed and outcome.exit_code != BAD_INPUT:
        config = outcome.call.config
        facts = {
            "exit_code": outcome.exit_code,
            "last_line": outcome.last_line,
            "env_steps": progress(outcome.call.folder).env_steps,
            "task": config.task,
            "method": config.method_name,
            "profile": config.profile,
            "seed": config.seed,
            "config": config.to_dict(),  # of a run that ended before it wrote its own
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, facts)
