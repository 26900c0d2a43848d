"""PyTorch settings of the thread and the process that affect results. Runs and agents compute with
PyTorch's defaults and then restore the settings of the program that called them."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import backends

_CPU = torch.device("cpu")


class _Setting(NamedTuple):
    read: Callable[[], object]
    write: Callable[..., object]
    # PyTorch's default, then equivalent values. Empty: saved and restored, but never reset.
    defaults: tuple[object, ...] = ()

    def value(self) -> object:
        """None if PyTorch raises because an older and a newer precision setting conflict."""
        try:
            return self.read()
        except RuntimeError:
            return None


def _attribute(owner: object, name: str, *defaults: object) -> _Setting:
    return _Setting(partial(getattr, owner, name), partial(setattr, owner, name), defaults)


def _set_deterministic(mode: int) -> None:
    """1: warn about operations without a deterministic kernel. 2: raise."""
    torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)


_THREAD_SETTINGS = [
    _Setting(torch.is_grad_enabled, torch.set_grad_enabled, (True,)),
    *(
        _Setting(
            partial(torch.is_autocast_enabled, device),
            partial(torch.set_autocast_enabled, device),
            (False,),
        )
        for device in ("cpu", "cuda")
    ),
]
_PROCESS_SETTINGS = [
    _Setting(torch.get_default_dtype, torch.set_default_dtype, (torch.float32,)),
    _Setting(torch.get_deterministic_debug_mode, _set_deterministic, (0,)),
    _attribute(backends.mkldnn, "enabled", True),
    _attribute(backends.cudnn, "deterministic", False),
    # Before the newer precision settings, which change with this one.
    _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, ("highest",)),
]
# A run sets these according to its config.
_RUN_SETTINGS = [
    _Setting(torch.get_num_threads, torch.set_num_threads),
    _attribute(backends.cudnn, "benchmark"),
]
_GPU_PRECISION = [_attribute(backends.cudnn, "allow_tf32")]
if torch.__version__ >= "2.9":
    _PROCESS_SETTINGS += [
        _attribute(attrgetter(owner)(torch), "fp32_precision", "none", "ieee")
        for owner in ("backends", "backends.mkldnn.matmul", "backends.mkldnn.conv")
    ]
    _GPU_PRECISION += [
        _attribute(attrgetter(owner)(torch), "fp32_precision")
        for owner in ("backends.cuda.matmul", "backends.cudnn.conv")
    ]


@contextmanager
def default_settings() -> Iterator[None]:
    """Reset PyTorch to its defaults: float32, tensors on the CPU, gradients enabled, inference mode and
    autocast disabled, full precision. The previous settings are restored on exit."""
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        # Only if needed: an active device context makes every PyTorch call slower.
        if torch.get_default_device() != _CPU:
            stack.enter_context(_CPU)
        stack.callback(_restore, _save(_THREAD_SETTINGS))
        _reset(_THREAD_SETTINGS)
        stack.enter_context(_default_process_settings())
        yield


@contextmanager
def restored_settings() -> Iterator[None]:
    """Restore all settings on exit, except the environment variable CUBLAS_WORKSPACE_CONFIG that
    `deterministic` sets: cuBLAS reads it only once."""
    device = _Setting(torch.get_default_device, torch.set_default_device)
    saved = _save([*_THREAD_SETTINGS, *_PROCESS_SETTINGS, *_GPU_PRECISION, *_RUN_SETTINGS, device])
    try:
        yield
    finally:
        _restore(saved)


# Runs and agents in several threads share the settings of the process: the first one resets them, and
# the last one restores them.
_lock = threading.RLock()
_users = 0
_saved_by_first_user: list[tuple[_Setting, object]] = []
# A process forked while another thread holds the lock could never acquire it.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


@contextmanager
def _default_process_settings() -> Iterator[None]:
    global _users, _saved_by_first_user
    with _lock:
        if _users == 0:
            _saved_by_first_user = _save([*_PROCESS_SETTINGS, *_GPU_PRECISION])
            _reset(_PROCESS_SETTINGS)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _restore(_saved_by_first_user)


def _save(settings: Sequence[_Setting]) -> list[tuple[_Setting, object]]:
    return [(setting, setting.value()) for setting in settings]


def _reset(settings: Sequence[_Setting]) -> None:
    for setting in settings:
        if setting.value() not in setting.defaults:
            setting.write(setting.defaults[0])


def _restore(saved: Sequence[tuple[_Setting, object]]) -> None:
    for setting, value in saved:
        if value is not None and setting.value() != value:
            setting.write(value)
