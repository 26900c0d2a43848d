"""Outputs are written completely or not at all, and folders may change while they are searched."""

import os
import stat
import threading

import pytest

from cclf.commands import runs
from cclf.errors import ConfigError
from cclf.storage import atomic_files


@pytest.fixture
def full_disk(monkeypatch):
    """Every sync to the disk fails, as on a disk that is full."""

    def refuse(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("write", [atomic_files.write_output, atomic_files.write_json])
def test_failed_write_keeps_the_old_file_and_names_it(tmp_path, write):
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(OSError, match="No space left") as raised:
        write(path, "new")
    assert raised.value.errno == 28
    assert raised.value.filename == str(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_output_keeps_mode_and_follows_a_link(tmp_path):
    path, link = tmp_path / "real.csv", tmp_path / "link.csv"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    atomic_files.write_output(link, "new ±")
    assert path.read_text(encoding="utf-8") == "new ±"
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    atomic_files.write_output(tmp_path / "new", "")
    (tmp_path / "other").write_text("")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_output_is_written_into_a_pipe_or_a_device(tmp_path):
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    atomic_files.write_output(pipe, "content")
    reader.join()
    assert received == ["content"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    (tmp_path / "link").symlink_to("/dev/null")
    atomic_files.write_output(tmp_path / "link", "new")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert (tmp_path / "link").is_symlink()


def test_output_of_a_writer_that_fails_stays_as_it_was(tmp_path):
    path = tmp_path / "film.mp4"
    path.write_text("old")

    def write_half():
        with atomic_files.output_file(path) as file:
            assert file.suffix == ".mp4"
            file.write_text("half")
            raise ValueError("no more pictures")

    with pytest.raises(ValueError, match="no more pictures"):
        write_half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["film.mp4"]


@pytest.mark.parametrize("name", ["x" * 251 + ".svg", "ä" * 120 + ".svg"])
def test_output_may_have_the_longest_name(tmp_path, name):
    atomic_files.write_output(tmp_path / name, "new \ud800")
    assert (tmp_path / name).read_text() == "new ?"
    assert os.listdir(tmp_path) == [name]


def test_run_file_replaces_a_link_and_does_not_follow_it(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "failed.json").symlink_to(tmp_path / "precious")
    atomic_files.write_json(tmp_path / "failed.json", {})
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "failed.json").read_text() == "{}\n"


def make_runs(folder, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text("{}")


@pytest.fixture
def pruned(monkeypatch):
    """A folder called `pruned` disappears after its parent was listed."""
    scan = os.scandir

    def scan_after_removal(folder):
        if os.path.basename(os.fspath(folder)) == "pruned":
            raise FileNotFoundError(2, "No such file or directory", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", scan_after_removal)


@pytest.mark.usefixtures("pruned")
def test_find_files_skips_folders_that_disappear_or_are_part_of_a_run(tmp_path):
    make_runs(tmp_path, "a", "a/checkpoint", "a/failure", "b/pruned", "failure/c")
    (tmp_path / "d.csv").mkdir()
    found = atomic_files.find_files(tmp_path, "config.json", "*.csv")
    assert [str(path.relative_to(tmp_path)) for path in found] == [
        "d.csv",  # a folder in place of a file, which the reader refuses
        "a/config.json",
        "failure/c/config.json",  # not a part of a run: a folder of runs has this name
    ]


@pytest.mark.usefixtures("pruned")
def test_select_run_skips_folders_that_disappear(tmp_path):
    make_runs(tmp_path, "runs/a", "runs/a/failure")
    (tmp_path / "runs" / "pruned").mkdir()
    assert runs.select_run(tmp_path, last=False) == tmp_path / "runs" / "a"
    make_runs(tmp_path, "runs/b")
    with pytest.raises(ConfigError, match="contains 2 runs: name one of them"):
        runs.select_run(tmp_path, last=False)
