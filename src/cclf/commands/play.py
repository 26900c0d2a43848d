"""`cclf play`: watch a trained agent."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from cclf.commands.options import EXIT_DONE, check_writable, output_errors, parse
from cclf.errors import ConfigError, rendering_extras, require_extras
from cclf.validation import Episodes, Seed


@dataclass(frozen=True)
class Play:
    """Show the agent of a run folder: episodes as one mp4, and their returns. The episodes are
    those of `cclf evaluate`."""

    run: tyro.conf.Positional[Path]
    """A run folder, or a folder that holds just one run."""
    out: Path = Path("episode.mp4")
    """The video, an .mp4 in a folder that is there."""
    episodes: Episodes = 1
    """How many to show, one after another."""
    seed: Seed = 0
    """Chooses the episodes; it has nothing to do with the seed of the run."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU when there is one."""
    trust_imports: bool = False
    """Allow a task gym/MODULE:ID or an encoder MODULE:FUNCTION of the run folder to import that
    Python module."""


def main(arguments: list[str]) -> int:
    options = parse(Play, "cclf play", arguments)
    if options.out.suffix != ".mp4" or not options.out.parent.is_dir():
        raise ConfigError(
            f"cannot write the video {options.out}: name an .mp4 in a folder that is there"
        )
    require_extras("cclf play", ("video",))
    check_writable(options.out)
    from cclf.storage import run_folder
    from cclf.storage.atomic_files import output_file
    from cclf.training import devices
    from cclf.training.agent import load_agent
    from cclf.training.seeding import derive
    from cclf.training.video import write_video

    require_extras("cclf play", rendering_extras(run_folder.read_config(options.run).task))
    device = devices.choose_device(options.device)
    agent, _, _ = load_agent(options.run, device, 1, trust_imports=options.trust_imports)

    def pictures() -> Iterator[Any]:
        # one at a time: an episode's pictures take 100 MB and more
        for episode in range(options.episodes):
            result = agent.evaluate([derive(options.seed, "evaluate", episode)], True)
            if result.recording_error:
                raise ConfigError(f"no picture could be drawn: {result.recording_error}")
            print(
                f"episode {episode + 1}: return {result.mean:.4g} in {len(result.pictures)} steps",
                flush=True,
            )
            yield from result.pictures

    try:
        with output_errors(options.out), output_file(options.out) as temporary:
            write_video(str(temporary), pictures())
    finally:
        agent.close()
    print(options.out)
    return EXIT_DONE
