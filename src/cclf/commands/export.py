"""`cclf export`: a trained policy for other programs."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from cclf.commands.options import EXIT_DONE, check_output, parse


@dataclass(frozen=True)
class Export:
    """Write the policy of a run folder for other programs: uint8 frames in, action out, crop and
    scaling inside.

    The file is read back and held against the policy on a short rollout of its task before it gets
    its name.
    """

    run: tyro.conf.Positional[Path]
    """A run folder, or a folder that holds just one run."""
    out: Path = Path("policy.pt")
    """Ends in .pt for TorchScript, in .onnx for ONNX."""
    trust_imports: bool = False
    """Allow a task gym/MODULE:ID of the run folder to import that Python module."""


def main(arguments: list[str]) -> int:
    options = parse(Export, "cclf export", arguments)
    check_output(options.out)
    from cclf.study import export as exports

    done = exports.export(options.run, options.out, trust_imports=options.trust_imports)
    given, answer = (done.metadata[side] for side in ("input", "output"))
    shapes = " -> ".join(
        f"{side['name']} {side['dtype']} {tuple(side['shape'])}" for side in (given, answer)
    ).replace("'", "")
    print(
        f"{shapes}; largest difference {done.largest_difference:.2g} on {done.frames} observations"
    )
    print(done.path)
    return EXIT_DONE
