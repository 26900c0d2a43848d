"""`cclf results`: the evaluations of many runs as CSV files."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from cclf.commands.options import check_writable, output_errors, parse


@dataclass(frozen=True)
class ResultsOptions:
    """Collect the evaluations of all runs under a folder into tidy CSV files, one per method. Rows of other
    runs in existing files are kept."""

    runs: tyro.conf.Positional[Path]
    """A folder with runs, at any depth."""
    out: Path = Path("results")
    """Folder of the CSV files."""


def main(arguments: list[str]) -> None:
    options = parse(ResultsOptions, "cclf results", arguments)
    from cclf.analysis import load

    check_writable(options.out, is_folder=True)
    rows = load.merge_results(load.read_source(options.runs).rows, options.out)
    with output_errors(options.out):
        paths = load.write_results(rows, options.out)
    print(*paths, sep="\n")
