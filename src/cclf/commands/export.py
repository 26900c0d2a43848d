"""`cclf export`: a trained policy for other programs."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from cclf.commands.options import EXIT_DONE, check_writable, output_errors, parse
from cclf.errors import ConfigError


@dataclass(frozen=True)
class Export:
    """Write the policy of a run folder for other programs: uint8 frames in, action out, crop and
    scaling inside.

    The file is read back and compared with the policy on a short rollout of its task; it is removed
    if they differ.
    """

    run: tyro.conf.Positional[Path]
    """A run folder, or a folder that holds just one run."""
    out: Path | None = None
    """A file NAME.pt2 (torch.export) or NAME.onnx, by default policy.pt2. With --card a folder, by
    default `agent`."""
    card: bool = False
    """Write a folder to share instead: the weights as safetensors, the config, and a model card
    (README.md) that says what the agent reached and how to load it, as hubs read it."""
    trust_imports: bool = False
    """Allow a task gym/MODULE:ID or an encoder MODULE:FUNCTION of the run folder to import that
    Python module."""


def main(arguments: list[str]) -> int:
    options = parse(Export, "cclf export", arguments)
    if options.card:
        return _share(options.run, options.out or Path("agent"), options.trust_imports)
    out = options.out or Path("policy.pt2")
    check_writable(out)
    from cclf import export as exports

    with output_errors(out):
        done = exports.export(options.run, out, trust_imports=options.trust_imports)
    given, answer = (done.metadata[side] for side in ("input", "output"))
    shapes = " -> ".join(
        f"{side['name']} {side['dtype']} {tuple(side['shape'])}" for side in (given, answer)
    ).replace("'", "")
    print(
        f"{shapes}; largest difference {done.largest_difference:.2g} on {done.frames} observations"
    )
    print(done.path)
    return EXIT_DONE


def _share(run: Path, out: Path, trust_imports: bool) -> int:
    if out.suffix in (".pt2", ".onnx") or out.is_file():
        raise ConfigError(
            f"--card writes a folder, not the file {out}: remove --card, or name a folder"
        )
    check_writable(out, is_folder=True)
    from cclf import share

    with output_errors(out):
        files = share.write(run, out, trust_imports)
    print(f"{', '.join(path.name for path in files)}; upload it with: hf upload USER/NAME {out}")
    print(out)
    return EXIT_DONE
