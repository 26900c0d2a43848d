"""`cclf evaluate`, `play`, `inspect` and `export`: what to do with a trained agent."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cclf import extras
from cclf.commands.options import EXIT_DONE, check_output, parse
from cclf.config import ConfigError


def _evaluate_options() -> Any:
    import tyro

    @dataclass(frozen=True)
    class Evaluate:
        """Evaluate the agent of a run folder in fresh episodes: mean action (SAC), sampled (A2C), without noise (Rainbow)."""

        run: tyro.conf.Positional[Path]
        episodes: int = 10
        seed: int = 0
        """Chooses the episodes; it has nothing to do with the seed of the run."""
        device: str = "auto"
        trust_imports: bool = False
        """Allow a task gym/MODULE:ID of the run folder to import that Python module."""
        json: bool = False
        """One JSON document on standard output."""

    return Evaluate


def evaluate(arguments: list[str]) -> int:
    options = parse(_evaluate_options(), "cclf evaluate", arguments)
    if options.episodes < 1 or options.seed < 0:
        raise ConfigError(f"--episodes {options.episodes} must be 1 or more and --seed {options.seed} 0 or more")
    from cclf import devices, run_folder
    from cclf.runtime.seeding import derive

    agent, _, env_steps = run_folder.load_agent(
        options.run, devices.choose_device(options.device), options.episodes, trust_imports=options.trust_imports
    )
    seeds = [derive(options.seed, "evaluate", episode) for episode in range(options.episodes)]
    result = agent.evaluate(seeds, False)
    agent.close()
    facts = {"run": str(options.run), "env_steps": env_steps, "episodes": len(result.returns)}
    facts |= {"return_mean": result.mean, "return_std": result.std, "returns": result.returns}
    if options.json:
        print(json.dumps(facts))
    else:
        print(f"return {result.mean:.4g} ± {result.std:.2g} over {len(result.returns)} episodes at {env_steps:,} env steps")
    return EXIT_DONE


def _play_options() -> Any:
    import tyro

    @dataclass(frozen=True)
    class Play:
        """Show the agent of a run folder: episodes as one mp4, and their returns. The episodes are those of `cclf evaluate`."""

        run: tyro.conf.Positional[Path]
        out: Path = Path("episode.mp4")
        episodes: int = 1
        seed: int = 0
        """Chooses the episodes; it has nothing to do with the seed of the run."""
        device: str = "auto"
        trust_imports: bool = False
        """Allow a task gym/MODULE:ID of the run folder to import that Python module."""

    return Play


def play(arguments: list[str]) -> int:
    options = parse(_play_options(), "cclf play", arguments)
    if options.episodes < 1 or options.seed < 0:
        raise ConfigError(f"--episodes {options.episodes} must be 1 or more and --seed {options.seed} 0 or more")
    if options.out.suffix != ".mp4" or not options.out.parent.is_dir():
        raise ConfigError(f"cannot write the video {options.out}: name an .mp4 in a folder that is there")
    extras.refuse_missing("cclf play", ("video",))
    check_output(options.out)
    from cclf import devices, run_folder
    from cclf.runtime.evaluate import write_video
    from cclf.runtime.seeding import derive

    extras.refuse_missing("cclf play", extras.to_draw(run_folder.read_config(options.run).task))
    device = devices.choose_device(options.device)
    agent, _, _ = run_folder.load_agent(options.run, device, 1, trust_imports=options.trust_imports)

    def pictures() -> Iterator[Any]:
        for episode in range(options.episodes):  # one at a time: an episode's pictures take 100 MB and more
            result = agent.evaluate([derive(options.seed, "evaluate", episode)], True)
            if result.no_pictures:
                raise ConfigError(f"no picture could be drawn: {result.no_pictures}")
            print(f"episode {episode + 1}: return {result.mean:.4g} in {len(result.pictures)} steps", flush=True)
            yield from result.pictures

    try:
        write_video(str(options.out), pictures())
    except OSError as error:
        raise ConfigError(f"cannot write the video {options.out}: {error}") from error
    finally:
        agent.close()
    print(options.out)
    return EXIT_DONE


def _inspect_options() -> Any:
    import tyro

    @dataclass(frozen=True)
    class Inspect:
        """What a run is curious about, as one page: its most and least curious transitions with their views and beliefs, what
        curiosity follows, and how it moved over training. Only reads the folder, also while a run goes on there."""

        run: tyro.conf.Positional[Path]
        out: Path = Path("curiosity.html")
        samples: int = 2_048
        """Transitions to look at, rounded up to whole batches."""
        device: str = "auto"
        json: bool = False
        """One JSON document with the page's numbers on standard output."""

    return Inspect


def inspect(arguments: list[str]) -> int:
    options = parse(_inspect_options(), "cclf inspect", arguments)
    if options.samples < 1:
        raise ConfigError(f"--samples {options.samples} must be 1 or more")
    if options.out.suffix not in (".html", ".htm"):
        raise ConfigError(f"cannot write {options.out}: the name of a page must end in .html")
    extras.refuse_missing("the page of cclf inspect", ("plots",))
    from cclf import devices, run_folder
    from cclf.analysis import gallery_page
    from cclf.gallery.curate import curate

    extras.refuse_missing("the page of cclf inspect", extras.to_draw(run_folder.read_config(options.run).task))
    check_output(options.out)
    gallery = curate(options.run, options.samples, devices.choose_device(options.device))
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(gallery_page.html(gallery), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the page: {error}") from error
    print(json.dumps(gallery_page.facts(gallery) | {"page": str(options.out)}) if options.json else options.out)
    return EXIT_DONE


def _export_options() -> Any:
    import tyro

    @dataclass(frozen=True)
    class Export:
        """Write the policy of a run folder for other programs: uint8 frames in, action out, crop and scaling inside.

        The file is read back and held against the policy on a short rollout of its task before it gets its name.
        """

        run: tyro.conf.Positional[Path]
        out: Path = Path("policy.pt")
        """Ends in .pt for TorchScript, in .onnx for ONNX."""
        trust_imports: bool = False
        """Allow a task gym/MODULE:ID of the run folder to import that Python module."""

    return Export


def export(arguments: list[str]) -> int:
    options = parse(_export_options(), "cclf export", arguments)
    check_output(options.out)
    from cclf import export as exports

    done = exports.export(options.run, options.out, trust_imports=options.trust_imports)
    given, answer = (done.metadata[side] for side in ("input", "output"))
    shapes = " -> ".join(f"{side['name']} {side['dtype']} {tuple(side['shape'])}" for side in (given, answer)).replace("'", "")
    print(f"{shapes}; largest difference {done.largest_difference:.2g} on {done.frames} observations")
    print(done.path)
    return EXIT_DONE
