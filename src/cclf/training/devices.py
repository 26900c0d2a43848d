"""The device of a run and of its replay, and the PyTorch settings that a run makes for its process."""

import os

import torch

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
    """Make the settings of `config` that hold for the whole process."""
    set_threads(config, device)
    set_precision(config, device)


def set_threads(config: Config, device: torch.device) -> None:
    """Set the number of CPU threads. With a GPU the default is one: the CPU only copies data, and
    several threads would wait for each other on busy cores."""
    threads = config.run.threads or (1 if device.type == "cuda" else 0)
    if threads:
        torch.set_num_threads(threads)


def set_precision(config: Config, device: torch.device) -> None:
    """Set the precision of matrix products and convolutions, and whether kernels are deterministic."""
    precision = config.resolve_precision(gpu=False).algorithm.precision
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


def choose_replay_device(wanted: str, device: torch.device, needed_bytes: int) -> torch.device:
    """The GPU if updates run there and the replay fits, otherwise the CPU. Raises ConfigError if it
    fits in neither, or not where it is `wanted`."""
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
