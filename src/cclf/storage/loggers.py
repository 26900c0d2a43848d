"""Programs that show a run while it goes on. The tables are the truth: mirrors are fed from their
rows, and learn of nothing else."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cclf.config import Config
from cclf.console import warn
from cclf.storage.trackers import EPISODE, make_tracker

_MOST_GIF_FRAMES, _MOST_GIF_PIXELS = 150, 256


class Logger(Protocol):
    name: str
    shown: dict[str, int]
    """By table, the env steps of the last row that is there already; -1 for none."""

    def show(self, table: str, clocks: Mapping[str, int], numbers: Mapping[str, float]) -> None:
        """The numbers of one row, by names such as train/critic_loss."""

    def show_video(self, path: Path, pictures: Sequence[np.ndarray], env_steps: int) -> None: ...
    def close(self) -> None: ...


def make_loggers(
    config: Config, folder: Path, resume_env_steps: int, evaluation_due: bool
) -> list[Logger]:
    """Those that a config asks for, ready to go on from a checkpoint."""
    mirrors: list[Logger] = []
    if config.run.tensorboard:
        try:
            mirrors.append(
                TensorBoard(folder, hyperparameters(config), resume_env_steps, evaluation_due)
            )
        except (ImportError, OSError) as error:
            warn(f"no TensorBoard: {error}")
    if config.run.tracker != "none":
        facts = hyperparameters(config)
        mirrors += make_tracker(config.run.tracker, config, facts, folder, resume_env_steps)
    return mirrors


def hyperparameters(config: Config) -> dict[str, Any]:
    """All that acts in a run, flat: `algorithm.discount`, and the names without a group."""
    values = config.to_dict()
    groups = ("env", "method", "algorithm", "run")
    flat = {name: value for name, value in values.items() if name not in groups}
    for group in groups:
        acting = {
            name: value for name, value in values[group].items() if not config.why_inactive(name)
        }
        flat |= {f"{group}.{name}": value for name, value in acting.items()}
    return {
        name: value if isinstance(value, (bool, int, float, str)) else str(value)
        for name, value in flat.items()
    }


class TensorBoard:
    """Curves, the hyperparameters beside them, and the video, in `RUN/tensorboard`."""

    name = "TensorBoard"

    def __init__(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        resume_env_steps: int,
        evaluation_due: bool = False,
    ):
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        where = folder / "tensorboard"
        # What was shown of the steps from here on is to be forgotten; what the table keeps of this
        # very step is shown again.
        purge_step = resume_env_steps + 1 - evaluation_due
        last = purge_step - 1 if where.exists() else -1
        self.shown = {"train": last, "eval": last}
        self._writer: Any = SummaryWriter(str(where), purge_step=purge_step)
        # Not `add_hparams`, which makes a second run of it, named by the clock.
        values = {name: str(fact) if type(fact) is bool else fact for name, fact in facts.items()}
        described: Any = hparams
        experiment, session, _ = described(values, {"eval/return_mean": 0.0})
        for summary in (experiment, session):
            self._writer.file_writer.add_summary(summary)  # type: ignore[attr-defined]
        self._writer.add_text("config", _markdown(facts), resume_env_steps)

    def show(self, _: str, clocks: Mapping[str, int], numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, clocks["env_steps"])

    def show_video(self, _: Path, pictures: Sequence[np.ndarray], env_steps: int) -> None:
        """As an animated image: TensorBoard plays no mp4."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        height, width, _channels = pictures[0].shape
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=gif(pictures)
        )
        value = Summary.Value(tag=EPISODE, image=image)
        self._writer.file_writer.add_summary(Summary(value=[value]), env_steps)

    def close(self) -> None:
        self._writer.close()


def _markdown(facts: Mapping[str, Any]) -> str:
    return "\n".join(
        ["| option | value |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in facts.items())]
    )


def gif(pictures: Sequence[np.ndarray], frames_per_second: int = 30) -> bytes:
    """As much of an episode as a page should carry: every n-th picture, every n-th pixel."""
    import imageio.v2 as imageio

    nth = -(-len(pictures) // _MOST_GIF_FRAMES)
    step = -(-max(pictures[0].shape[:2]) // _MOST_GIF_PIXELS)
    whole = io.BytesIO()
    frames: list[Any] = [picture[::step, ::step] for picture in pictures[::nth]]
    milliseconds = 1_000 * nth / frames_per_second
    imageio.mimwrite(whole, frames, format="GIF", duration=milliseconds, loop=0)
    return whole.getvalue()
