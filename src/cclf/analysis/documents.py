"""Marked places of Markdown documents, which `cclf report --markdown` fills with tables:

    <!-- table minigrid/verdicts-minigrid -->
    written by `cclf report results --markdown THIS_FILE`
    <!-- end of table -->

A name is that of the table's CSV file, after the name of its part if a report has several parts.
`verdicts` are the verdict tables of all parts.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from cclf.errors import ConfigError, did_you_mean
from cclf.storage.safe_loading import data_error_context, read_text

END = "<!-- end of table -->"
_BEGIN = re.compile(r"^<!-- table (\S+) -->\n", re.MULTILINE)


def has_placeholders(text: str) -> bool:
    return _BEGIN.search(text) is not None


def fill_placeholders(text: str, tables: Mapping[str, str]) -> str:
    """`text` with the named table in each marked place."""
    before, *places = _BEGIN.split(text)
    filled = [before]
    for name, place in zip(places[::2], places[1::2], strict=True):
        _, end, after = place.partition(END)
        if name not in tables:
            raise ConfigError(
                f"no table is called {name!r} here{did_you_mean(name, tuple(tables))}"
            )
        if not end:
            raise ConfigError(f"the place for table {name} has no end: put {END!r} after it")
        filled.append(f"<!-- table {name} -->\n{tables[name]}{END}{after}")
    return "".join(filled)


def update_document(path: Path, tables: Mapping[str, str]) -> str:
    """The document with its marked places filled; a new document has every table."""
    if not path.exists():
        marked = [f"<!-- table {name} -->\n{text}{END}\n" for name, text in tables.items()]
        return "\n".join(marked)
    with data_error_context(f"cannot read {path}"):
        text = read_text(path)
    if not has_placeholders(text):
        raise ConfigError(f"{path} has no place for a table: mark one with `<!-- table NAME -->`")
    try:
        return fill_placeholders(text, tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
