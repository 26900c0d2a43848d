"""`cclf play`: a video of a trained agent."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cclf.commands.options import Device, EvaluationSeed, check_writable, output_errors, parse
from cclf.commands.runs import RunOptions, select_run
from cclf.errors import ConfigError, rendering_extras, require_extras
from cclf.validation import Episodes

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class PlayOptions(RunOptions):
    """Write episodes of the agent of a run folder as one video, and print their returns. They are the
    episodes of `cclf evaluate`."""

    out: Path | None = None
    """The video, an .mp4 or .gif file; by default RUN/episode.mp4."""
    episodes: Episodes = 1
    """Number of episodes, one after another."""
    seed: EvaluationSeed = 0
    device: Device = "auto"


def main(arguments: list[str]) -> None:
    options = parse(PlayOptions, "cclf play", arguments)
    run = select_run(options.run, options.last)
    require_extras("cclf play", ("video",))
    from cclf.agents import output_folder
    from cclf.storage import run_folder
    from cclf.storage.atomic_files import output_file
    from cclf.training import devices
    from cclf.training.agent import load_agent
    from cclf.training.seeding import derive
    from cclf.training.video import VIDEO_SUFFIXES, write_video

    out = options.out or output_folder(run, options.run) / "episode.mp4"
    check_writable(out, VIDEO_SUFFIXES)
    require_extras("cclf play", rendering_extras(run_folder.read_config(run).task))
    device = devices.choose_device(options.device)
    agent, _, _ = load_agent(run, device, 1, trust_imports=options.trust_imports)

    def pictures() -> "Iterator[np.ndarray]":
        # Episode by episode: the pictures of one take 100 MB and more.
        for episode in range(options.episodes):
            result = agent.evaluate([derive(options.seed, "evaluate", episode)], True)
            if result.recording_error:
                raise ConfigError(f"cannot render: {result.recording_error}")
            print(
                f"episode {episode + 1}: return {result.mean:.4g} in {len(result.pictures)} steps",
                flush=True,
            )
            yield from result.pictures

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with output_errors(out), output_file(out) as temporary:
            write_video(str(temporary), pictures())
    finally:
        agent.close()
    print(out)
