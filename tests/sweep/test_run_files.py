"""Run folders copied between machines: all that is new, nothing outside, plain files alone."""

import os
from pathlib import Path

import pytest

from cclf.errors import ConfigError
from cclf.sweep import run_files
from cclf.sweep.run_files import ARRIVING, RunFiles, copy


def fill(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


class Counting(RunFiles):
    """Remembers what was read."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.read_names: list[str] = []

    def read(self, name: str, start: int) -> bytes:
        self.read_names.append(name)
        return super().read(name, start)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    fill(
        tmp_path / "there",
        {
            "train.csv": "a\n1\n",
            "checkpoint/00000001/index.json": "{}",
            "checkpoint/frames/f": "frames",
        },
    )
    return tmp_path / "there"


def test_a_second_copy_brings_what_is_new_and_drops_what_is_gone(here: Path, there: Path) -> None:
    known = copy(RunFiles(there), RunFiles(here), {})
    assert contents(here) == contents(there)
    fill(there, {"train.csv": "a\n1\n2\n", "checkpoint/00000002/index.json": "{}"})
    (there / "checkpoint/00000001/index.json").unlink()
    source = Counting(there)
    copy(source, RunFiles(here), known)
    assert contents(here) == contents(there)
    assert set(source.read_names) == {"train.csv", "checkpoint/00000002/index.json"}
    assert not (here / "checkpoint/00000001").exists()


def test_files_larger_than_a_piece_arrive_whole(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "PIECE_BYTES", 4)
    fill(there, {"eight": "12345678", "nine": "123456789", "none": ""})
    copy(RunFiles(there), RunFiles(here), {})
    assert contents(here) == contents(there)


def test_the_lock_and_unfinished_files_stay_behind(here: Path, there: Path) -> None:
    fill(
        there, {"lock": "7", "train.csv.tmp": "half", "checkpoint/00000002.tmp/state.json": "half"}
    )
    copy(RunFiles(there), RunFiles(here), {})
    assert set(contents(here)) == {
        "train.csv",
        "checkpoint/00000001/index.json",
        "checkpoint/frames/f",
    }


def test_nothing_comes_into_place_before_all_has_arrived(here: Path, there: Path) -> None:
    class Breaks(Counting):
        def read(self, name: str, start: int) -> bytes:
            if len(self.read_names) == 2:
                raise FileNotFoundError(name)  # the last of three
            return super().read(name, start)

    fill(here, {"train.csv": "old"})
    with pytest.raises(FileNotFoundError):
        copy(Breaks(there), RunFiles(here), {})
    assert {
        name: text for name, text in contents(here).items() if not name.startswith(ARRIVING)
    } == {"train.csv": "old"}
    copy(RunFiles(there), RunFiles(here), {})
    assert contents(here) == contents(there)


@pytest.mark.parametrize(
    "name", ["../evil", "/tmp/evil", "a/../../evil", "..", "", ".", "a\0b", "checkpoint/../../evil"]
)
def test_no_name_leads_out_of_the_folder(here: Path, name: str) -> None:
    before = set(here.parent.rglob("*"))
    with pytest.raises(ConfigError, match="refused the file name"):
        RunFiles(here).write(name, 0, b"evil")
    with pytest.raises(ConfigError, match="refused the file name"):
        RunFiles(here).read(name, 0)
    assert set(here.parent.rglob("*")) == before


@pytest.mark.parametrize("kind", ["link to a file", "link to a folder", "pipe"])
def test_what_is_no_plain_file_is_refused(
    here: Path, there: Path, tmp_path: Path, kind: str
) -> None:
    fill(tmp_path / "secret", {"key": "secret"})
    odd = there / "odd"
    if kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to(tmp_path / ("secret/key" if kind == "link to a file" else "secret"))
    with pytest.raises(ConfigError, match="neither a plain file nor a folder"):
        copy(RunFiles(there), RunFiles(here), {})
    assert not contents(here)


def test_a_device_is_refused() -> None:
    assert Path("/dev/null").is_char_device()
    with pytest.raises(ConfigError, match="neither a plain file nor a folder"):
        RunFiles(Path("/dev")).listing()


def test_a_link_in_the_target_is_not_written_through(
    here: Path, there: Path, tmp_path: Path
) -> None:
    fill(tmp_path / "outside", {"f": "mine"})
    (here / "checkpoint").mkdir()
    (here / "checkpoint/frames").symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match="is a link"):
        copy(RunFiles(there), RunFiles(here), {})
    assert contents(tmp_path / "outside") == {"f": "mine"}
    with pytest.raises(ConfigError, match="is a link"):
        RunFiles(here).read("checkpoint/frames/f", 0)
