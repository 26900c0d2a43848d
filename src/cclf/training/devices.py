"""Where a run computes, where its replay lies, and what of PyTorch it sets for the whole
process."""

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
            f"device {name!r} is not there: PyTorch sees {count} CUDA devices; use --device cpu"
        )
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise ConfigError(f"device {name!r} is not supported: use cpu, cuda, cuda:N or auto")
    return device


def configure_torch(config: Config, device: torch.device) -> None:
    """All that a run sets for its process."""
    set_threads(config, device)
    set_precision(config, device)


def set_threads(config: Config, device: torch.device) -> None:
    """CPU threads of this process. Beside a GPU the host only copies: many threads for that wait
    for each other on busy cores."""
    threads = config.run.threads or (1 if device.type == "cuda" else 0)
    if threads:
        torch.set_num_threads(threads)


def set_precision(config: Config, device: torch.device) -> None:
    """Process-wide switches of PyTorch that `precision` asks for."""
    # not every base algorithm has a choice; whoever left it open has settled it by now
    precision = getattr(config.resolve_precision(gpu=False).algorithm, "precision", "fp32")
    if precision != "fp32" and device.type != "cuda":
        raise ConfigError(
            f"precision={precision} conflicts with device={device}: it is made for GPUs; use "
            "precision=fp32"
        )
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.benchmark = device.type == "cuda" and not config.run.deterministic
    if device.type == "cuda" and config.run.deterministic:
        # read when CUDA starts, which it does later
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.deterministic = True
        # Only a warning: running sums (`cumsum`, in replay) are on PyTorch's list of what may
        # differ, and have no other kernel.
        torch.use_deterministic_algorithms(True, warn_only=True)


def choose_replay_device(wanted: str, device: torch.device, needed_bytes: int) -> torch.device:
    """The GPU when the update runs there and the replay fits beside it; refuses what fits
    nowhere."""
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
        "are free: "
        "lower --replay-capacity-transitions or --frame-pixels"
    )
