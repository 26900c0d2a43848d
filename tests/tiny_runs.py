"""Runs small enough for a test: toy pixels, networks of a few neurons, a few dozen steps."""

import csv
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from cclf import presets
from cclf.algorithms import registry
from cclf.storage import run_folder
from cclf.storage.atomic_files import write_json
from cclf.storage.loggers import RunLog, make_loggers
from cclf.training.loop import TrainingRun, train_loop
from cclf.training.progress import Progress
from cclf.training.signals import StopSignal

CPU = torch.device("cpu")
_SIZES = {
    "sac": {
        "batch_size": 4,
        "hidden_dim": 16,
        "conv_layers": 2,
        "conv_filters": 4,
        "feature_dim": 8,
        "warmup_agent_steps": 20,
    },
    "a2c": {
        "num_envs": 4,
        "rollout_steps": 4,
        "contrastive_hidden_dim": 8,
        "re3_window_observations": 40,
    },
    "rainbow": {},
    "mrq": {
        "batch_size": 4,
        "hidden_dim": 16,
        "encoder_hidden_dim": 16,
        "conv_filters": 4,
        "feature_dim": 8,
        "action_feature_dim": 4,
        "warmup_agent_steps": 20,
        "target_every_updates": 7,
    },
    "drqv2": {
        "batch_size": 4,
        "hidden_dim": 16,
        "conv_layers": 2,
        "conv_filters": 4,
        "feature_dim": 8,
        "warmup_agent_steps": 20,
        "noise_agent_steps": 40,
    },
}
_RUN = {
    "env_steps": 60,
    "eval_every_env_steps": 30,
    "eval_episodes": 2,
    "log_every_agent_steps": 10,
}
_RUN |= {"device": "cpu", "threads": 1, "video": False, "tensorboard": False}


def tiny_config(
    task="toy/reach-1d",
    method="cclf",
    *,
    base=None,
    seed=1,
    observe="pixels",
    env=None,
    algorithm=None,
    **run,
):
    """The preset with its sizes cut down; further keywords go to `run`."""
    config = presets.resolve(task, method, seed=seed, base_name=base, observe=observe)
    sizes = {
        name: size for name, size in _SIZES[config.base].items() if not config.why_inactive(name)
    }
    sizes |= algorithm or {}
    return replace(
        config,
        env=replace(config.env, **env or {}),
        algorithm=replace(config.algorithm, **sizes),
        run=replace(config.run, **_RUN | run),
    )


def tiny_options(config):
    """The same as words of a command line."""
    defaults = presets.resolve(
        config.task, config.method_name, base_name=config.base, observe=config.env.observe
    )
    words = [config.task, "--base", config.base, "--method", config.method_name]
    words += ["--seed", str(config.seed)]
    words += [] if config.env.observe == "pixels" else ["--observe", config.env.observe]
    for group in ("env", "method", "algorithm", "run"):
        ours, theirs = getattr(config, group), getattr(defaults, group)
        for name, value in vars(ours).items():
            if value != getattr(theirs, name):
                option = name.replace("_", "-")
                words += (
                    [f"--{option}" if value else f"--no-{option}"]
                    if isinstance(value, bool)
                    else [f"--{option}", str(value)]
                )
    return words


@contextmanager
def create_run_folder(config, out):
    """The locked folder of a run, with its config."""
    with run_folder.lock_run_folder(config, out) as folder:
        if not (folder / "config.json").exists():
            write_json(folder / "config.json", config.to_dict())
        yield folder


class Killed(BaseException):
    """Like SIGKILL: no code of the package runs after it."""


class StopAt(StopSignal):
    """A stop that asks for itself once the run has reached `env_steps`."""

    def __init__(self, env_steps=None):
        super().__init__()
        self.env_steps = env_steps


class QuietProgress(Progress):
    def __init__(self, total, done, stop):
        super().__init__(total, done, 0)
        self.stop = stop

    def step(self, env_steps, updates):
        super().step(env_steps, updates)
        if self.stop.env_steps is not None and env_steps >= self.stop.env_steps:
            self.stop.requested = True


def make_learners(configs, device=CPU, resume_steps=None):
    """Learners of runs that share one batched update."""
    algorithm, make_env = registry.algorithm_of(configs[0]), registry.make_env
    return algorithm.make_learners(configs, device, make_env, resume_steps or [None] * len(configs))


def make_training(config, folder, device=CPU, learner=None):
    """One run that evaluates in this process: (TrainingRun, learner, agent)."""
    learner = learner or registry.make_learner(config, device)
    agent = registry.make_agent(config, device)
    asynchronous = registry.algorithm_of(config).evaluates_asynchronously(config, device, None)
    training = TrainingRun(config, learner, agent, folder, asynchronous)
    return training, learner, agent


def start(config, training, stop, loggers=()):
    """Open the tables of a run, without progress output."""
    log = RunLog(training.folder, training.learner.metric_names, loggers, training.rows)
    training.start(log, QuietProgress(config.run.env_steps, training.env_steps, stop))


def run(config, folder, stop_at=None, prepare=lambda _: None):
    """Train in `folder`, going on from what is saved there; the learner, and whether it reached the
    end."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    training, learner, agent = make_training(config, folder, CPU)
    prepare(learner)
    training.resume()
    stop = StopAt(stop_at)
    if not training.finished:
        start(config, training, stop, make_loggers(config, folder, training.env_steps))
        for error in train_loop([training], stop).values():
            raise error
        training.log.close()
    agent.close()
    learner.close()
    return learner, training.finished


def flat(state, prefix=""):
    """A nested state as one dict of leaves."""
    if not isinstance(state, dict):
        return {prefix: state}
    return {
        key: leaf
        for name, inner in state.items()
        for key, leaf in flat(inner, f"{prefix}/{name}").items()
    }


def differing(one, two):
    """Names of the leaves in which two states differ."""
    one, two = flat(one), flat(two)
    assert one.keys() == two.keys()

    def equal(a, b):
        return (
            torch.equal(torch.as_tensor(a), torch.as_tensor(b)) if hasattr(a, "shape") else a == b
        )

    return [name for name in one if not equal(one[name], two[name])]


def same_state(one, two):
    """Whether two nested states are equal, also in the types of their values; nan equals nan."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same_state(one[key], two[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and same_state(one.numpy(), two.numpy())
    if isinstance(one, np.ndarray):
        floats = one.dtype.kind == "f"
        same_type = isinstance(two, np.ndarray) and one.dtype == two.dtype
        return same_type and np.array_equal(one, two, equal_nan=floats)
    return one == two and type(two) is type(one.item() if isinstance(one, np.generic) else one)


def rows(path, *without):
    with path.open(newline="") as file:
        return [
            {key: value for key, value in row.items() if key not in without}
            for row in csv.DictReader(file)
        ]


def tables(folder):
    """What a run wrote down, but for the clock on the wall."""
    return rows(folder / "train.csv"), rows(folder / "eval.csv", "wall_seconds")
