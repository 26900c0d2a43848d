"""Compiled code is made once and found again, or made each time where nothing can be kept."""

import os
from pathlib import Path

import pytest

from cclf.kernels.compile_cache import cached, set_compile_cache

NAME = "TORCHINDUCTOR_CACHE_DIR"


def test_the_folder_is_the_users_cache_unless_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for home, folder in (("file", None), ("home", tmp_path / "home" / "cclf" / "compiled")):
        monkeypatch.delenv(NAME, raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / home))
        assert set_compile_cache() == folder
        assert os.environ.get(NAME) == (folder and str(folder))
    monkeypatch.setenv(NAME, "elsewhere")
    assert set_compile_cache() == Path("elsewhere")
    assert os.environ[NAME] == "elsewhere"


def test_what_was_made_of_the_same_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(NAME, str(tmp_path / "cache"))
    made = iter([b"first", b"second"])
    assert cached(lambda: next(made), "source", "1.0") == b"first"
    assert cached(lambda: next(made), "source", "1.0") == b"first"
    assert cached(lambda: next(made), "source", "1.1") == b"second"
    assert sorted(path.read_bytes() for path in (tmp_path / "cache" / "cclf").iterdir()) == [
        b"first",
        b"second",
    ]


def test_it_is_made_each_time_where_nothing_can_be_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(NAME, str(tmp_path / "file"))
    made = iter([b"first", b"second"])
    assert [cached(lambda: next(made), "source") for _ in range(2)] == [b"first", b"second"]
