"""Where a figure comes from: the code, the machine and the command."""

import sys
from typing import Any

import torch

from cclf.storage.run_folder import code_version


def finish(device: torch.device) -> None:
    """Wait for what was asked of the device: a clock on the host has seen none of it before."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def header(task: str, precision: str, device: torch.device) -> dict[str, Any]:
    return {"task": task, "precision": precision, **origin(device)}


def origin(device: torch.device) -> dict[str, Any]:
    """Provenance stored with each result."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "commit": code_version(),
        "command": " ".join(["cclf", *sys.argv[1:]]),
    }
