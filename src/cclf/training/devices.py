"""The choice of the devices of a run and of its replay, and the PyTorch settings of the process,
which a run changes and then restores for the calling program."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import backends

from cclf.config import Config
from cclf.errors import ConfigError
from cclf.storage import machine


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {name!r}: use cpu, cuda, cuda:N or auto") from error
    if device.type == "cuda" and (
        not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()
    ):
        count = torch.cuda.device_count()
        raise ConfigError(
            f"device {name!r} is not available: PyTorch finds {count} CUDA devices; use --device cpu"
        )
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise ConfigError(f"device {name!r} is not supported: use cpu, cuda, cuda:N or auto")
    return device


def configure_torch(config: Config, device: torch.device) -> None:
    """Apply the settings of `config` that hold for the whole process: the number of CPU threads,
    and those of `set_precision`. With a GPU the default is one thread: the CPU only copies data,
    and several threads would wait for each other on busy cores."""
    threads = config.run.threads or (1 if device.type == "cuda" else 0)
    if threads:
        torch.set_num_threads(threads)
    set_precision(config, device)


def set_precision(config: Config, device: torch.device) -> None:
    """Set the precision of matrix products and convolutions, and whether kernels are deterministic."""
    precision = config.precision
    if precision != "fp32" and device.type != "cuda":
        raise ConfigError(
            f"precision={precision} conflicts with device={device}: it needs a GPU; use "
            "precision=fp32"
        )
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.benchmark = device.type == "cuda" and not config.run.deterministic
    if device.type == "cuda" and config.run.deterministic:
        # read by cuBLAS when CUDA is initialized, which happens later
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.deterministic = True
        # Only a warning, because PyTorch lists `cumsum` (used in replay) as nondeterministic and has
        # no other kernel for it.
        torch.use_deterministic_algorithms(True, warn_only=True)


def synchronize(device: torch.device) -> None:
    """Wait for the work that was launched on the device, so that a clock on the host includes it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def choose_replay_device(wanted: str, device: torch.device, needed_bytes: int) -> torch.device:
    """The GPU if updates run there and the replay fits, otherwise the CPU; 20 % of free GPU memory
    and 10 % of free main memory are reserved. Raises ConfigError if the replay fits in neither
    memory, or not on the device `wanted`."""
    if wanted == "cuda" and device.type != "cuda":
        raise ConfigError(
            f"replay_device=cuda conflicts with device={device}: the update must run on the GPU too"
        )
    if device.type == "cuda" and wanted in ("auto", "cuda"):
        free = torch.cuda.mem_get_info(device)[0]
        if needed_bytes < 0.8 * free:
            return device
        if wanted == "cuda":
            raise ConfigError(_memory_error("GPU", needed_bytes, free))
    free = machine.available_memory_bytes()
    if needed_bytes > 0.9 * free:
        raise ConfigError(_memory_error("main", needed_bytes, free))
    return torch.device("cpu")


def _memory_error(where: str, needed_bytes: int, free_bytes: int) -> str:
    return (
        f"replay needs {needed_bytes / 1e9:.2f} GB of {where} memory, {free_bytes / 1e9:.2f} GB "
        "are free: lower --replay-capacity-transitions or --frame-pixels"
    )


# --- PyTorch settings of the thread and the process that affect results. Runs and agents compute with
# PyTorch's defaults and then restore the settings of the program that called them.

_CPU = torch.device("cpu")


class _Setting(NamedTuple):
    read: Callable[[], object]
    write: Callable[..., object]
    # PyTorch's default and equivalent values. Empty if the setting is restored but never reset.
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
    # Precedes `fp32_precision`, which PyTorch changes when this one is set.
    _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, ("highest",)),
    _attribute(backends.cudnn, "allow_tf32"),
]
if torch.__version__ >= "2.9":
    _PROCESS_SETTINGS += [
        _attribute(attrgetter(owner)(torch), "fp32_precision", *defaults)
        for owner, defaults in (
            ("backends", ("none", "ieee")),
            ("backends.mkldnn.matmul", ("none", "ieee")),
            ("backends.mkldnn.conv", ("none", "ieee")),
            ("backends.cuda.matmul", ()),
            ("backends.cudnn.conv", ()),
        )
    ]
# A run sets these according to its config.
_RUN_SETTINGS = [
    _Setting(torch.get_num_threads, torch.set_num_threads),
    _attribute(backends.cudnn, "benchmark"),
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
    saved = _save([*_THREAD_SETTINGS, *_PROCESS_SETTINGS, *_RUN_SETTINGS, device])
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
            _saved_by_first_user = _save(_PROCESS_SETTINGS)
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
        if setting.defaults and setting.value() not in setting.defaults:
            setting.write(setting.defaults[0])


def _restore(saved: Sequence[tuple[_Setting, object]]) -> None:
    for setting, value in saved:
        if value is not None and setting.value() != value:
            setting.write(value)
