"""`cclf export`: a trained policy for other programs."""

from dataclasses import dataclass
from pathlib import Path

from cclf.commands.options import check_writable, output_errors, parse
from cclf.commands.runs import RunOptions, select_run
from cclf.errors import ConfigError


@dataclass(frozen=True)
class ExportOptions(RunOptions):
    """Write the policy of a run folder as one file for other programs: uint8 frames in, action out,
    including crop and scaling. The file is loaded and compared with the policy in an episode of the
    task; it is not kept if they differ."""

    out: Path | None = None
    """A file NAME.pt2 (torch.export) or NAME.onnx; by default RUN/policy.pt2. With --card a folder;
    by default RUN/agent."""
    card: bool = False
    """Write a folder to share instead: the weights as safetensors, the config, and a model card
    (README.md) for model hubs with the results and how to load the agent."""


def main(arguments: list[str]) -> None:
    options = parse(ExportOptions, "cclf export", arguments)
    run = select_run(options.run, options.last)
    from cclf.agents import output_folder

    name = "agent" if options.card else "policy.pt2"
    out = options.out or output_folder(run, options.run) / name
    if options.card:
        _write_card(run, out, options.trust_imports)
        return
    check_writable(out)
    from cclf import export as exports

    with output_errors(out):
        exported = exports.export(run, out, trust_imports=options.trust_imports)
    print(
        f"{exported.input} -> {exported.output}; largest difference "
        f"{exported.largest_difference:.2g} on {exported.frames} observations"
    )
    print(exported.path)


def _write_card(run: Path, out: Path, trust_imports: bool) -> None:
    if out.suffix in (".pt2", ".onnx") or out.is_file():
        raise ConfigError(
            f"--card writes a folder, not the file {out}: remove --card, or name a folder"
        )
    check_writable(out, is_folder=True)
    from cclf import share

    with output_errors(out):
        files = share.write(run, out, trust_imports)
    print(f"{', '.join(path.name for path in files)}; upload them with: hf upload USER/NAME {out}")
    print(out)
