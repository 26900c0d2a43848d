"""PyTorch settings of the thread and the process that affect results. Runs and agents compute with
PyTorch's defaults and then restore the settings of the program that called them."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import backends

_CPU = torch.device("cpu")


class _Setting(NamedTuple):
    read: Callable[[], object]
    write: Callable[[Any], object]
    # PyTorch's default first, then equivalent values. Empty: saved and restored, but never reset.
    defaults: tuple[object, ...] = ()


def _attribute(owner: object, name: str, *defaults: object) -> _Setting:
    return _Setting(partial(getattr, owner, name), partial(setattr, owner, name), defaults)


def _precision(module: object, operation: str, *defaults: object) -> _Setting:
    return _attribute(getattr(module, operation, None), "fp32_precision", *defaults)


def _set_deterministic(mode: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])


def _value(setting: _Setting) -> object:
    """The value; None if PyTorch raises because an older and a newer precision setting conflict."""
    try:
        return setting.read()
    except RuntimeError:
        return None


def _available(*settings: _Setting) -> tuple[_Setting, ...]:
    """The settings that this version of PyTorch has."""
    available = []
    for setting in settings:
        with suppress(AttributeError):
            _value(setting)
            available.append(setting)
    return tuple(available)


_THREAD_SETTINGS = _available(
    _Setting(torch.is_grad_enabled, torch.set_grad_enabled, (True,)),
    *(
        _Setting(
            partial(torch.is_autocast_enabled, device),
            partial(torch.set_autocast_enabled, device),
            (False,),
        )
        for device in ("cpu", "cuda")
    ),
)
_PROCESS_SETTINGS = _available(
    _Setting(torch.get_default_dtype, torch.set_default_dtype, (torch.float32,)),
    _Setting(
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        _set_deterministic,
        ((False, False),),
    ),
    _attribute(backends.mkldnn, "enabled", True),
    _attribute(backends.cudnn, "deterministic", False),
    # Older precision settings come first: writing one changes newer ones.
    _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, ("highest",)),
    _attribute(backends, "fp32_precision", "none", "ieee"),
    _precision(backends.mkldnn, "matmul", "none", "ieee"),
    _precision(backends.mkldnn, "conv", "none", "ieee"),
    _precision(backends.mkldnn, "rnn", "none", "ieee"),
)
# Settings that a run writes according to its config: saved and restored, but not reset.
_PRECISION_ON_GPU = _available(
    _attribute(backends.cudnn, "allow_tf32"),
    _precision(backends.cuda, "matmul"),
    _precision(backends.cudnn, "conv"),
    _precision(backends.cudnn, "rnn"),
)
_RUN_SETTINGS = (
    _Setting(torch.get_num_threads, torch.set_num_threads),
    _attribute(backends.cudnn, "benchmark"),
)


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
        stack.callback(_write, _values(_THREAD_SETTINGS))
        _write_defaults(_THREAD_SETTINGS)
        stack.enter_context(_default_process_settings())
        yield


@contextmanager
def restored_settings() -> Iterator[None]:
    """Restore all settings on exit, except the environment variable CUBLAS_WORKSPACE_CONFIG that
    `deterministic` sets: cuBLAS reads it only once."""
    before = _values((*_THREAD_SETTINGS, *_PROCESS_SETTINGS, *_PRECISION_ON_GPU, *_RUN_SETTINGS))
    device = torch.get_default_device()
    try:
        yield
    finally:
        _write(before)
        if torch.get_default_device() != device:
            torch.set_default_device(device)


# Runs and agents in several threads share the settings of the process: the first one resets them, and
# the last one restores them.
_lock = threading.RLock()
_users = 0
_saved_process_settings: list[tuple[_Setting, object]] = []
# A process forked while another thread holds the lock could never acquire it.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


@contextmanager
def _default_process_settings() -> Iterator[None]:
    global _users, _saved_process_settings
    with _lock:
        if _users == 0:
            before = _values((*_PROCESS_SETTINGS, *_PRECISION_ON_GPU))
            _saved_process_settings = before if _write_defaults(_PROCESS_SETTINGS) else []
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _write(_saved_process_settings)


def _write_defaults(settings: Iterable[_Setting]) -> bool:
    """Reset the settings that differ from their default. Returns whether any did."""
    changed = [setting for setting in settings if _value(setting) not in setting.defaults]
    for setting in changed:
        if _value(setting) not in setting.defaults:  # writing an earlier one may have reset it
            setting.write(setting.defaults[0])
    return bool(changed)


def _values(settings: Iterable[_Setting]) -> list[tuple[_Setting, object]]:
    return [(setting, _value(setting)) for setting in settings]


def _write(values: Iterable[tuple[_Setting, object]]) -> None:
    for setting, value in values:
        if value is not None and _value(setting) != value:
            setting.write(value)
