"""Trackers keep many runs, here or at a service: trackio and Weights & Biases. Their packages are
imported only when one is asked for.

`RUN/tracker.json` says which of the tracker's runs this one is, and which rows are there already.
So a resumed run goes on in the same one, nothing is shown twice, and rows that were missed (the
tracker failed, or was asked for later) follow from the tables.
"""

import contextlib
import contextvars
import io
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cclf.config import Config
from cclf.console import say, warn
from cclf.errors import ConfigError, short_error
from cclf.storage.atomic_files import atomic_write
from cclf.storage.safe_loading import DATA_ERRORS, check_data, open_file, read_text

FILE = "tracker.json"
PROJECT = "cclf"
EPISODE = "eval/episode"  # what the video is called
_NOTHING = {"train": -1, "eval": -1}


class TrackedRun(Protocol):
    """A run of a tracker, begun or gone on with."""

    where: str  # how a person sees it

    def log(self, clocks: Mapping[str, int], values: Mapping[str, Any]) -> None: ...
    def video(self, path: Path) -> Any: ...
    def finish(self) -> None: ...


class TrackioRun:
    """In trackio's own folder on this machine (`TRACKIO_DIR`): no account, no network."""

    def __init__(self, config: Config, facts: Mapping[str, Any], identity: str):
        import trackio

        self._video = trackio.Video
        # A context of its own: trackio ends the run that is current when another one begins.
        # It writes to standard output, which is for the run folder alone.
        with contextlib.redirect_stdout(io.StringIO()):
            self._run = contextvars.copy_context().run(
                trackio.init,
                project=PROJECT,
                name=f"{config.run_name()}-{identity}",  # it finds a run by its name
                group=_group(config),
                config=dict(facts),
                resume="allow",
                embed=False,
            )
        self.where = f"trackio show --project {PROJECT}"

    def log(self, clocks: Mapping[str, int], values: Mapping[str, Any]) -> None:
        self._run.log(dict(values), step=clocks["env_steps"])

    def video(self, path: Path) -> Any:
        return self._video(str(path), format="mp4")

    def finish(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()


class WandbRun:
    """At Weights & Biases, or with `WANDB_MODE=offline` in a folder for `wandb sync`."""

    def __init__(self, config: Config, facts: Mapping[str, Any], identity: str):
        import wandb

        self._video = wandb.Video
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            id=identity,
            name=config.run_name(),
            group=_group(config),
            config=dict(facts),
            resume="allow",
            reinit="create_new",  # others of this process go on
            settings=wandb.Settings(console="off", quiet=True),
        )
        # Rows are told by their clocks: W&B's own counter would drop an evaluation that ends after
        # a later row of training.
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")
        kept = f"offline, for wandb sync {Path(self._run.dir).parent}"
        self.where = kept if self._run.offline else self._run.url

    def log(self, clocks: Mapping[str, int], values: Mapping[str, Any]) -> None:
        self._run.log({**clocks, **values})

    def video(self, path: Path) -> Any:
        return self._video(str(path), format="mp4")

    def finish(self) -> None:
        self._run.finish()


def _group(config: Config) -> str:
    """What seeds of one method on one task share."""
    return f"{config.task} {config.method_name}"


_KINDS: dict[str, Callable[[Config, Mapping[str, Any], str], TrackedRun]] = {
    "trackio": TrackioRun,
    "wandb": WandbRun,
}


class Tracker:
    """A mirror that is a run of a tracker."""

    def __init__(
        self, name: str, folder: Path, run: TrackedRun, identity: str, shown: dict[str, int]
    ):
        self.name, self.shown = name, shown
        self._path, self._run, self._identity = folder / FILE, run, identity

    def show(self, table: str, clocks: Mapping[str, int], numbers: Mapping[str, float]) -> None:
        self._run.log(clocks, numbers)
        self.shown[table] = clocks["env_steps"]
        self._write()

    def show_video(self, path: Path, _: Sequence[np.ndarray], env_steps: int) -> None:
        self._run.log({"env_steps": env_steps}, {EPISODE: self._run.video(path)})

    def close(self) -> None:
        self._run.finish()

    def _write(self) -> None:
        """Not synced, there may be many rows a second: what is lost with the power is shown
        twice."""
        temporary = self._path.with_name(f"{FILE}.tmp")
        with open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW) as file:
            file.write(_text(self.name, self._identity, self.shown))
        os.replace(temporary, self._path)


def make_tracker(
    name: str, config: Config, facts: Mapping[str, Any], folder: Path, resume_env_steps: int
) -> list[Tracker]:
    """One, or none where it fails at a resume: a run that was trained for days goes on without it.
    At the beginning that is refused, while nothing is lost."""
    identity, shown = _known(folder / FILE, name) if resume_env_steps else _new()
    try:
        run = _KINDS[name](config, facts, identity)
    except Exception as error:  # whatever a library raises that looks for a service
        line = f"{name} did not start: {short_tracker_error(error)}"
        if not resume_env_steps:
            raise ConfigError(f"{line}; mend it, or remove --tracker {name}") from error
        warn(f"{line}; the run goes on without it")
        return []
    atomic_write(folder / FILE, _text(name, identity, shown))
    say(f"tracked by {name}: {run.where}")
    return [Tracker(name, folder, run, identity, shown)]


def short_tracker_error(error: Exception) -> str:
    """In a part of a line: some services answer with pages."""
    return short_error(error)[:300].rstrip(".")


def _new() -> tuple[str, dict[str, int]]:
    return secrets.token_hex(4), dict(_NOTHING)


def _known(path: Path, name: str) -> tuple[str, dict[str, int]]:
    """The tracker's run that this folder belongs to, and its last rows; a new one where there is
    none, or where the file says nothing that can be used."""
    try:
        facts = json.loads(read_text(path))
        identity, shown = facts["id"], {table: facts["shown"][table] for table in _NOTHING}
        check_data(facts["tracker"] == name, "another tracker's")
        check_data(re.fullmatch("[0-9a-f]{8}", identity), "an identity that was not made here")
        check_data(all(type(step) is int for step in shown.values()), "no steps")
    except (OSError, *DATA_ERRORS):
        return _new()
    return identity, shown


def _text(name: str, identity: str, shown: Mapping[str, int]) -> bytes:
    return (json.dumps({"tracker": name, "id": identity, "shown": dict(shown)}) + "\n").encode()
