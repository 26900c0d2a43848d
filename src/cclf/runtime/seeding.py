"""Random numbers as inputs: one seed, many named streams, none of which can disturb another."""

import zlib
from typing import Any

import numpy as np
import torch

STREAMS = ("replay", "augment", "policy", "act")


def derive(seed: int, *path: str | int) -> int:
    """A 63-bit seed for the stream named by `path`, e.g. derive(1, "eval", 10_000, 3)."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    low, high = np.random.SeedSequence([seed, *words]).generate_state(2, np.uint32)
    return int(high) << 31 | int(low) >> 1


class Generators:
    """The torch generators of a run, by name, on the device that uses them."""

    def __init__(self, seed: int, device: torch.device, replay_device: torch.device):
        self.streams = {
            name: torch.Generator(replay_device if name == "replay" else device).manual_seed(
                derive(seed, name)
            )
            for name in STREAMS
        }

    def __getitem__(self, name: str) -> torch.Generator:
        return self.streams[name]

    def state_dict(self) -> dict[str, Any]:
        return {name: generator.get_state() for name, generator in self.streams.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, generator in self.streams.items():
            generator.set_state(state[name].cpu())
