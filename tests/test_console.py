"""Standard streams that are closed or full, Ctrl-C at the start, and paths that cannot be used."""

import io
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from cclf import __main__, console
from cclf.cli import main
from rainbow_inputs import tiny_cclf
from tiny_runs import rows, tiny_config, tiny_options


class FullDisk(io.StringIO):
    def write(self, _):
        raise OSError(28, "No space left on device")

    def flush(self):
        raise OSError(28, "No space left on device")

    def isatty(self):
        raise OSError(5, "Input/output error")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


def without_reader():
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", buffering=1)


def absent():
    return None


BROKEN = [FullDisk, closed, without_reader, absent]


@pytest.mark.parametrize("stream", BROKEN)
def test_message_to_broken_standard_error_is_dropped(monkeypatch, capsys, stream):
    monkeypatch.setattr(sys, "stderr", stream())
    console.say("dropped")
    console.warn("dropped")
    messages = console.message_stream()
    assert messages.write("dropped\n") == 8
    messages.flush()
    assert not messages.isatty()
    assert capsys.readouterr().out == ""  # and it does not land on standard output


@pytest.mark.quick("FullDisk")
@pytest.mark.parametrize("stream", BROKEN)
def test_training_with_broken_standard_error_is_complete(tmp_path, monkeypatch, stream):
    config = tiny_config("toy/reach-1d", "drq")
    monkeypatch.setattr(sys, "stderr", stream())
    assert main(["train", *tiny_options(config), "--out", str(tmp_path)]) == 0
    folder = tmp_path / config.run_name()
    assert [row["env_steps"] for row in rows(folder / "eval.csv")] == ["30", "60"]
    assert (folder / "checkpoint").is_dir()


@pytest.mark.quick("without_reader-0", "FullDisk-2")
@pytest.mark.parametrize(("stream", "exit_code"), [(without_reader, 0), (FullDisk, 2), (absent, 2)])
def test_training_with_broken_standard_output_concludes_all_runs(
    tmp_path, monkeypatch, capsys, stream, exit_code
):
    config = tiny_cclf()
    monkeypatch.setattr(sys, "stdout", stream())
    words = [*tiny_options(config), "--with-seeds", "2", "--out", str(tmp_path)]
    assert main(["train", *words]) == exit_code
    for seed in (1, 2):
        assert rows(tmp_path / replace(config, seed=seed).run_name() / "final.csv")
    lost = "cclf: cannot write to standard output: "
    message = capsys.readouterr().err
    assert (
        (lost in message)
        == ("the command finished, but its output is incomplete" in message)
        == (exit_code == 2)
    )


def test_results_that_cannot_be_written_are_reported(monkeypatch, capsys):
    """The interpreter must not try to write them again when it ends."""
    monkeypatch.setattr(sys, "stdout", FullDisk())
    assert main(["tasks"]) == 2
    assert capsys.readouterr().err == (
        "cclf: cannot write to standard output: No space left on device; the command finished, but its output is incomplete\n"
    )
    assert sys.stdout is None


def test_help_that_cannot_be_written_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", FullDisk())
    assert main(["train", "--help"]) == 2
    assert "cannot write to standard output" in capsys.readouterr().err


def test_sign_outside_the_encoding_is_replaced(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr("cclf.cli._run_command", lambda _: print("3.2 ± 0.1") or 0)
    assert main([]) == 0
    assert written.getvalue() == b"3.2 ? 0.1\n"


def run_in_shell(command, tmp_path):
    """Exit code and standard error of a command in which `cclf` is this program."""
    program = f"cclf() {{ '{sys.executable}' -P -m cclf \"$@\"; }}; {command}"
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.slow("test_results_that_cannot_be_written_are_reported")
def test_process_with_standard_output_on_a_full_disk_says_it_in_one_line(tmp_path):
    reason = "No space left on device; the command finished, but its output is incomplete"
    line = f"cclf: cannot write to standard output: {reason}\n"
    assert run_in_shell("cclf methods --json > /dev/full", tmp_path) == (2, line)


@pytest.mark.slow("test_training_with_broken_standard_output_concludes_all_runs")
def test_process_whose_reader_leaves_trains_to_the_end(tmp_path):
    words = " ".join(tiny_options(tiny_config("toy/reach-1d", "drq")))
    command = f"(cclf train {words} 2>&1; echo $? > exit_code) | head -1; cat exit_code >&2"
    assert run_in_shell(command, tmp_path) == (0, "0\n")
    assert [row["env_steps"] for row in rows(*tmp_path.glob("runs/toy/*/*/*/eval.csv"))][-1] == "60"


def test_files_never_take_the_number_of_a_closed_standard_stream():
    """Otherwise libraries that print to standard error would print into them."""
    check = "import os; assert os.fstat(2).st_rdev == os.stat(os.devnull).st_rdev"
    program = f"import os; os.close(2); from cclf.cli import main; main(['--version']); {check}"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


# --- errors of the system, and Ctrl-C
# -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        *("evaluate", "inspect", "report", "plot", "export --out x.pt2", "play --out x.mp4"),
        "train --dry-run --from",
    ],
)
def test_folder_that_may_not_be_entered_is_one_line(tmp_path, monkeypatch, capsys, words):
    def refuse(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pathlib.Path.stat", refuse)
    assert main([*words.split(), "private/run"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("cclf: ")
    assert "Permission denied" in message
    assert message.count("\n") == 1


def test_working_directory_that_was_removed_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    assert main(["train", "toy/reach-1d", "--dry-run"]) == 2
    assert "the working directory was removed" in capsys.readouterr().err


def test_name_that_is_too_long_is_one_line(tmp_path, capsys):
    assert main(["train", "toy/reach-1d", "--out", str(tmp_path / ("a" * 300))]) == 2
    message = capsys.readouterr().err
    assert "File name too long" in message
    assert message.count("\n") == 1


def test_interrupt_before_anything_is_imported_is_one_line(monkeypatch, capfd):
    original = __import__

    def interrupted(name, *words):
        if name == "cclf.cli":
            raise KeyboardInterrupt
        return original(name, *words)

    monkeypatch.setattr("builtins.__import__", interrupted)
    assert __main__.main() == 130
    assert capfd.readouterr().err == "cclf: interrupted\n"


def test_package_is_imported_without_other_modules():
    """Ctrl-C may come at any moment of the start; the package itself cannot handle it."""
    program = "import sys; before = set(sys.modules); import cclf.__main__; print(*set(sys.modules) - before)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert set(out.stdout.split()) == {"cclf", "cclf.__main__"}


@pytest.mark.parametrize(
    "words",
    [
        ["train", "toy/reach-1d", "--out", ""],
        ["train", "--from", ""],
        ["results", ""],
        ["report", "x", "--pdf="],
        ["report", "x", "--markdown", ""],
        ["export", "run", "--out", ""],
    ],
)
def test_empty_path_is_refused(capsys, words):
    assert main(words) == 2
    assert "the path is empty: name a file or folder, or . for" in capsys.readouterr().err
