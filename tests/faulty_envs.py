"""Objects for worker processes, in a module that these can import: environments that fail on
demand, and others."""

import ctypes
import mmap
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from cclf.config import EnvConfig
from cclf.envs.toy import make
from cclf.errors import ConfigError

REACH = partial(
    make, "reach-1d", EnvConfig(frame_pixels=20, crop_pixels=16, frame_stack=1, action_repeat=1), 0
)


class Faulty:
    """The toy environment with a fault in call number `at_call` of the method `place`. `once` is a
    file that the fault creates; if it exists, there is no further fault."""

    def __init__(self, fault, place, at_call=1, once=None, make=REACH):
        self.env = make()
        self.spec, self.fault, self.place, self.at_call = self.env.spec, fault, place, at_call
        self.once, self.calls = once and Path(once), 0

    def _perhaps_fail(self, place):
        if place != self.place:
            return
        self.calls += 1
        if self.calls != self.at_call or (self.once and self.once.exists()):
            return
        if self.once:
            self.once.touch()
        FAULTS[self.fault]()

    def reset(self, seed=None):
        self._perhaps_fail("reset")
        return self.env.reset(seed)

    def step(self, action):
        self._perhaps_fail("step")
        return self.env.step(action)

    def notify(self):
        self._perhaps_fail("notify")

    def close(self):
        self._perhaps_fail("close")

    def __getattr__(self, name):
        return getattr(self.env, name)

    def modules(self):
        return sorted(sys.modules)

    def process(self):
        return os.getpid()


def crash():
    print("the driver said goodbye", file=sys.stderr, flush=True)
    os._exit(3)


def hang():
    time.sleep(600)


def hang_in_driver():
    ctypes.PyDLL(None).sleep(600)  # with the GIL: no other thread of Python can run


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)  # not even a watchdog in the process can end it


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def throw():
    raise RuntimeError("a joint\nbroke")


FAULTS = {
    "crash": crash,
    "hang": hang,
    "hang in driver": hang_in_driver,
    "stop": stop,
    "kill": kill,
    "raise": throw,
}


class FaultyPlayer:
    """An episode returns its seed times the weight of the agent. The fault occurs once, in the
    episode of seed 3."""

    def __init__(self, fault=None, once=None):
        self.fault, self.once = fault, once and Path(once)

    def play(self, name, weight, seed):  # noqa: ARG002
        if self.fault and seed == 3 and not self.once.exists():
            self.once.touch()
            FAULTS[self.fault]()
        return float(seed * weight)

    def close(self):
        pass


class Renderer:
    """An environment with the calls of `cclf doctor`."""

    fault = None

    def __init__(self, *_):
        pass

    def reset(self, seed):
        pass

    def renderer_facts(self, count):
        if self.fault:
            FAULTS[self.fault]()
        return {"count": count}

    def close(self):
        pass


class HangingRenderer(Renderer):
    fault = "hang"


class CrashingRenderer(Renderer):
    fault = "crash"


class RaisingRenderer(Renderer):
    fault = "raise"


class UnusableRenderer(Renderer):
    def __init__(self, *_):
        raise ConfigError("MuJoCo cannot open a headless renderer")


class Adder:
    """Adds the first two numbers of a shared file, and writes the third."""

    def attach(self, descriptor):
        self.numbers = np.frombuffer(mmap.mmap(descriptor, 24), np.int64)

    def total(self):
        return int(self.numbers[2])

    def notify(self):
        self.numbers[2] = self.numbers[0] + self.numbers[1]
        return "not sent"

    def close(self):
        pass
