"""`cclf demo`: two agents of the paper on MiniGrid, on a laptop in minutes, and a page that shows
what curiosity did."""

import tempfile
from pathlib import Path

import numpy as np

from cclf import presets
from cclf.analysis import demo_page, load
from cclf.analysis.demo_page import Shown
from cclf.console import warn
from cclf.errors import ConfigError, short_error
from cclf.inspection.records import Gallery
from cclf.storage.atomic_files import write_output
from cclf.sweep.local import LocalBackend
from cclf.sweep.plan import STOPPED, Call, call_of
from cclf.sweep.scheduler import run_all
from cclf.training.signals import StopSignal

TASK = "minigrid/DoorKey-6x6"
METHODS = ("a2c", "cclf")
SEEDS = (1, 2, 3)
PROFILE = "paper"
PAGE = "index.html"
SAMPLES = 512  # transitions among which the most curious are looked for
NEXT_COMMANDS = (
    "cclf train minigrid/DoorKey-8x8 --method re3+cclf\n"
    "cclf train dmc/cartpole-swingup --method cclf\n"
    "cclf methods"
)
OPTIONS = (
    "--eval-every-env-steps",
    "12800",
    "--log-every-agent-steps",
    "3200",
    "--no-tensorboard",
    "--no-video",
)


def run(out: Path, stop: StopSignal) -> Path | None:
    """Train, then write the page; returns its path, or None where it was stopped. Run again, it
    only redraws."""
    names = [(method, seed) for seed in SEEDS for method in METHODS]
    calls = [
        call_of(presets.resolve(TASK, method, seed=seed, profile=PROFILE), out, OPTIONS)
        for method, seed in names
    ]
    for outcome in run_all(calls, LocalBackend(), stop):
        if outcome.exit_code == STOPPED:
            return None
        if outcome.failed:
            raise ConfigError(f"training {outcome.call.label} failed: {outcome.last_line}")
    path = out / PAGE
    write_output(path, _page(out, calls))
    return path


def _page(out: Path, calls: list[Call]) -> str:
    rows = [row for row in load.read_runs(out / TASK) if row.method in METHODS]
    curious = [call for call in calls if call.config.method_name == "cclf"]
    logs = [load.read_train(call.folder, ("curiosity_mean", "bonus_mean")) for call in curious]
    final = {row.seed: row.return_mean for row in rows if row.method == "cclf"}
    best = max(curious, key=lambda call: final[call.config.seed])
    pictures, video = _episode(best)
    commands = f"cclf inspect {best.folder}\n{NEXT_COMMANDS}"
    name = f"the curious agent of seed {best.config.seed}"
    shown = Shown(TASK, rows, logs, name, _gallery(best), pictures, video, commands)
    return demo_page.html(shown)


def _gallery(best: Call) -> Gallery | None:
    """What an agent was curious about; without it a page is better than none: all runs are trained
    by then."""
    import torch

    from cclf.inspection.load import curate

    try:
        return curate(best.folder, SAMPLES, torch.device("cpu"))
    except Exception as error:
        _warn("what the agent was curious about", short_error(error))
        return None


def _episode(best: Call) -> tuple[list[np.ndarray], bytes]:
    """Pictures of one episode of a trained agent, and the same as a film; what cannot be made is a
    warning."""
    pictures, reason = _watch(best.folder)
    film = b""
    if pictures:
        try:
            film = _film(pictures)
        except Exception as error:
            reason = short_error(error)
    if reason:
        _warn("pictures of the agent", reason)
    return pictures, film


def _warn(lacking: str, reason: str) -> None:
    warn(f"the page lacks {lacking}: {reason}")


def _watch(folder: Path) -> tuple[list[np.ndarray], str]:
    """Pictures of one episode of the agent in a run folder, or why there are none."""
    import torch

    from cclf.build import load_agent

    agent, _, _ = load_agent(folder, torch.device("cpu"), episodes=1)
    try:
        result = agent.evaluate([0], True)
        return result.pictures, result.no_pictures
    finally:
        agent.close()


def _film(pictures: list[np.ndarray]) -> bytes:
    from cclf.training.evaluation import write_video

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episode.mp4"
        write_video(str(path), pictures, frames_per_second=6)
        return path.read_bytes()
