"""Settings of all tests: one thread, so that sums have one order; no deadlines of hypothesis; signal
handlers are restored; caches are in a temporary folder."""

import fcntl
import hashlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from browser import Page, browser
from cclf.commands.train import run_training
from cclf.config import Config
from cclf.training.signals import SIGNALS, StopSignal

torch.set_num_threads(1)
CACHES = os.path.join(tempfile.gettempdir(), "cclf-tests")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", CACHES)
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", os.path.join(CACHES, "hypothesis"))
os.environ["CCLF_COMMIT"] = "tests"  # saves two processes of git in each run
settings.register_profile("default", deadline=None, max_examples=20)
settings.register_profile("slow", deadline=None)
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    if "not slow" not in config.option.markexpr:
        settings.load_profile("slow")


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Iterator[object]:
    """Of a test marked `quick("a", "b")` only these parameters run by default and stand for the
    others, which become slow. A test marked `slow("name")` is represented by that one."""
    made = yield
    items = (
        [item for item in made if hasattr(item, "iter_markers")] if isinstance(made, list) else []
    )
    for item in items:
        assert all(mark.args for mark in item.iter_markers("slow")), f"{item}: what stands for it?"
        if mark := item.get_closest_marker("quick"):
            if unknown := set(mark.args) - {other.callspec.id for other in items}:
                raise pytest.UsageError(f"{item.originalname} has no parameters {unknown}")
            if item.callspec.id not in mark.args:
                item.add_marker(pytest.mark.slow(item.originalname))
    return made


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Config], Path]:
    """The folder of a finished run of a config, for reading only. Whichever process asks first
    trains it, as pytest-xdist recommends."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder_of(config: Config) -> Path:
        out = base / f"trained-{hashlib.sha256(repr(config).encode()).hexdigest()[:12]}"
        with out.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not out.exists():
                assert run_training([config], out, StopSignal()) == 0
        return out / config.run_name()

    return folder_of


@pytest.fixture(autouse=True, scope="module")
def signal_handlers() -> Iterator[None]:
    """Training installs handlers; they are restored."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    """A tab of a real browser."""
    with browser() as page:
        yield page
