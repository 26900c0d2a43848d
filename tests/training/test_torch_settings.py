"""PyTorch settings of the calling program affect neither runs nor agents, and are restored."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cclf
from cclf.config import Config
from cclf.training.devices import default_settings
from test_api import TINY, frames_of, same_end, train

CONTEXTS = {
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "device context": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
# getter, setter, a value other than the default, the default
SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any, Any]] = {
    "dtype": (
        torch.get_default_dtype,
        torch.set_default_dtype,
        torch.float64,
        torch.float32,
    ),
    "device": (
        lambda: torch.get_default_device().type,
        lambda kind: torch.set_default_device(None if kind == "cpu" else kind),
        "meta",
        "cpu",
    ),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled, False, True),
    "deterministic": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        True,
        False,
    ),
    "matmul": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        "medium",
        "highest",
    ),
    "newer matmul": (
        lambda: torch.backends.cuda.matmul.fp32_precision,
        lambda name: setattr(torch.backends.cuda.matmul, "fp32_precision", name),
        "tf32",
        "ieee",
    ),
    "kernels": (
        lambda: torch.backends.mkldnn.enabled,
        lambda on: setattr(torch.backends.mkldnn, "enabled", on),
        False,
        True,
    ),
    "threads": (torch.get_num_threads, torch.set_num_threads, 2, 1),
}


@pytest.fixture(scope="module")
def plain(trained: Callable[[Config], Path]) -> cclf.Run:
    return train(TINY, trained(TINY).parents[3])


@contextlib.contextmanager
def switched(name: str) -> Iterator[None]:
    _, write, other, default = SWITCHES[name]
    write(other)
    try:
        yield
    finally:
        write(default)


def acted(folder: Path) -> tuple[bytes, list[float]]:
    agent = cclf.load(folder, device="cpu")
    return agent.act(frames_of(TINY, 1)[0]).tobytes(), agent.evaluate(1, seed=1).returns


@pytest.mark.quick("inference_mode", "dtype")
@pytest.mark.parametrize("name", [*CONTEXTS, *SWITCHES])
def test_settings_of_the_program_do_not_affect_a_run_or_an_agent(
    name: str, tmp_path: Path, plain: cclf.Run
) -> None:
    of_context = (torch.is_grad_enabled, torch.get_default_device)
    reads = SWITCHES[name][:1] if name in SWITCHES else of_context
    expected = acted(plain.folder)
    with CONTEXTS[name]() if name in CONTEXTS else switched(name):
        before = [read() for read in reads]
        run = train(TINY, tmp_path)
        actions = acted(plain.folder)
        assert [read() for read in reads] == before
    assert same_end(run.folder, plain.folder)
    assert actions == expected


@pytest.mark.quick("dtype")
@pytest.mark.parametrize("name", SWITCHES)
def test_setting_changed_by_a_callback_is_restored_when_it_returns(
    name: str,
    tmp_path: Path,
    plain: cclf.Run,
) -> None:
    read, write, other, default = SWITCHES[name]
    before = read()

    def change(step: Any) -> None:
        if step.agent_steps in (10, 35):
            write(other)

    try:
        run = train(TINY, tmp_path, on_step=change)
        # PyTorch also accepts `none` for the default of this setting.
        assert read() in ((before, "ieee") if name == "newer matmul" else (before,))
    finally:
        write(default)
    assert same_end(run.folder, plain.folder)


def test_settings_of_the_process_are_restored_when_the_last_thread_leaves() -> None:
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with default_settings():
            inside.set()
            leave.wait(10)

    with switched("dtype"):
        thread = threading.Thread(target=stay)
        with default_settings():
            thread.start()
            assert inside.wait(10)
        assert torch.get_default_dtype() == torch.float32, "the other thread still uses it"
        leave.set()
        thread.join()
        assert torch.get_default_dtype() == torch.float64


def test_settings_are_restored_after_an_error() -> None:
    with switched("dtype"):
        with pytest.raises(cclf.ConfigError):
            cclf.load("nowhere")
        with pytest.raises(KeyError), default_settings():
            raise KeyError
        assert torch.get_default_dtype() == torch.float64
    assert np.asarray(torch.zeros(1)).dtype == np.float32
