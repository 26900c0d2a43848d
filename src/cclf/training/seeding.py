"""Independent random number streams, by name, derived from the seed of a run."""

import os
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from cclf.types import StateDict

STREAMS = ("replay", "augment", "policy", "act")


def derive(seed: int, *path: str | int) -> int:
    """A 63-bit seed for the stream named by `path`, e.g. derive(1, "eval", 10_000, 3)."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    low, high = np.random.SeedSequence([seed, *words]).generate_state(2, np.uint32)
    return int(high) << 31 | int(low) >> 1


# PyTorch samples weights from the global generator, so only one thread at a time may seed it.
_lock = threading.RLock()
# A process forked while another thread holds the lock could never acquire it.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Networks created in this context get initial weights that depend on `seed` only. They are
    sampled on the CPU, so they are the same on every device."""
    with _lock, torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "init"))
        yield


class Generators:
    """The `torch.Generator`s of a run, by name. The one of replay is on the device of the replay."""

    def __init__(self, seed: int, device: torch.device, replay_device: torch.device):
        self.streams = {
            name: torch.Generator(replay_device if name == "replay" else device).manual_seed(
                derive(seed, name)
            )
            for name in STREAMS
        }

    def __getitem__(self, name: str) -> torch.Generator:
        return self.streams[name]

    def state_dict(self) -> StateDict:
        return {name: generator.get_state() for name, generator in self.streams.items()}

    def load_state_dict(self, state: StateDict) -> None:
        for name, generator in self.streams.items():
            generator.set_state(state[name].cpu())
