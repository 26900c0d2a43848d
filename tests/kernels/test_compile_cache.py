"""Compiled code is cached, or compiled again where nothing can be cached."""

import os
from pathlib import Path

import pytest

from cclf.kernels.compile_cache import cached, set_compile_cache

NAME = "TORCHINDUCTOR_CACHE_DIR"


def test_compile_cache_is_in_the_user_cache_unless_a_variable_names_another(
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


def test_cached_result_of_the_same_inputs_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(NAME, str(tmp_path / "cache"))
    made = iter([b"first", b"second"])
    assert cached(lambda: next(made), "source", "1.0") == b"first"
    assert cached(lambda: next(made), "source", "1.0") == b"first"
    assert cached(lambda: next(made), "source", "1.1") == b"second"
    assert sorted(path.read_bytes() for path in (tmp_path / "cache" / "cclf").iterdir()) == [
        b"first",
        b"second",
    ]


def test_result_is_computed_again_where_nothing_can_be_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(NAME, str(tmp_path / "file"))
    made = iter([b"first", b"second"])
    assert [cached(lambda: next(made), "source") for _ in range(2)] == [b"first", b"second"]
