"""A run's folder: whose it is, what is written there about config, code and machine, and what is read back from it."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cclf import machine
from cclf.build import Agent, AnyLearner, make_agent
from cclf.config import Config, ConfigError, RainbowConfig
from cclf.config_kinds import refuse_wrong_kinds
from cclf.from_disk import read_text, refuse_unlike, refused_as
from cclf.runtime import checkpoint
from cclf.runtime.evaluate import EvaluationStoppedError
from cclf.runtime.evaluators import Evaluators
from cclf.runtime.files import only_process, replace_file
from cclf.runtime.metrics import EVAL_COLUMNS, Table
from cclf.runtime.seeding import derive


@contextmanager
def claimed_folder(config: Config, out: Path) -> Iterator[Path]:
    """The run's folder, made or found, for this process alone. Refuses one that holds another config, one that another process
    works in, and one that cannot be written."""
    folder = out / config.run_name()
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(only_process(folder))
            _claim(config, folder)
        except OSError as error:
            raise ConfigError(f"cannot use the run folder {folder}: {error}") from error
        yield folder


def _claim(config: Config, folder: Path) -> None:
    known = folder / "config.json"
    if not known.exists():
        replace_file(known, (json.dumps(config.to_dict(), indent=2) + "\n").encode())
        return
    before = read_config(folder).learning_values()
    now = config.learning_values()
    differing = [f"{key} ({before.get(key)} there, {now[key]} now)" for key in now if before.get(key) != now[key]]
    if differing:
        raise ConfigError(f"{folder} holds a run of another config: {', '.join(differing)}; use another --out")


def read_config(folder: Path) -> Config:
    known = folder / "config.json"
    if not known.exists():
        raise ConfigError(f"{folder} is not a run folder: it holds no config.json")
    try:
        with refused_as(f"cannot read {known}"):
            config = Config.from_dict(json.loads(read_text(known)))
            refuse_wrong_kinds(config)
            return config
    except ConfigError as error:  # what a config refuses does not name its file
        line = str(error)
        raise ConfigError(line if str(known) in line else f"cannot read {known}: {line}") from error


def read_checkpoint(folder: Path, frames: bool = True) -> dict[str, Any]:
    """The newest good state of a run; without `frames` those of a replay, nearly all of its bytes, are not read."""
    saved = checkpoint.load(folder / "checkpoint", frames)
    if saved is None:
        raise ConfigError(f"{folder} holds no checkpoint yet: train it first")
    with refused_as(f"the checkpoint in {folder} is not that of a run"):
        refuse_unlike(0, saved["agent_steps"], "agent_steps")
        refuse_unlike(0, saved["learner"]["updates"], "updates")
    return saved


def record(config: Config, learner: AnyLearner, device: torch.device, folder: Path) -> None:
    """Write down what runs in `folder`, and where."""
    for name, facts in (("config.json", config.to_dict()), ("manifest.json", manifest(config, learner, device))):
        replace_file(folder / name, (json.dumps(facts, indent=2) + "\n").encode())


def manifest(config: Config, learner: AnyLearner, device: torch.device) -> dict[str, Any]:
    """The facts about code and machine that a result must carry."""
    renderer = getattr(learner.env, "renderer", None)
    return {
        "commit": code_version(),
        **machine.facts(),
        "torch": torch.__version__,  # with the build's +cu or +cpu, which the package's metadata leaves out
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        **(renderer(frames=5) if renderer else {"renderer": None}),
        "env_steps_per_agent_step": config.env.action_repeat,
    }


def code_version() -> str | None:
    """The commit this code runs from, `-dirty` where files differ; CCLF_COMMIT says it where code travels without its history."""
    if "CCLF_COMMIT" in os.environ:
        return os.environ["CCLF_COMMIT"]
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def resume_points(configs: Sequence[Config], out: Path) -> list[int | None]:
    """The agent steps from which runs that take turns in one process go on; None is the newest there is."""
    if len(configs) == 1 or not isinstance(configs[0].algorithm, RainbowConfig):
        return [None] * len(configs)
    return [*checkpoint.resume_points([out / config.run_name() / "checkpoint" for config in configs])]


def load_agent(
    folder: Path, device: torch.device, episodes: int, evaluators: Evaluators | None = None
) -> tuple[Agent, Config, int]:
    """The trained agent of a run folder, its config, and the environment steps it has seen; evaluates `episodes` at a time."""
    config = read_config(folder)
    config = replace(config, run=replace(config.run, eval_episodes=episodes))
    saved = read_checkpoint(folder, frames=False)
    with ExitStack() as made, refused_as(f"cannot make the agent of {folder}"):
        agent = made.enter_context(closing(make_agent(config, device, evaluators=evaluators)))
        load_part(agent.policy, saved["learner"]["algorithm"], "algorithm")
        made.pop_all()
    return agent, config, saved["agent_steps"] * config.env.action_repeat


def load_part(target: Any, saved: Any, name: str) -> None:
    """Into a part of a learner; a ValueError where it is not the state of such a part."""
    refuse_unlike(target.state_dict(), saved, name)
    target.load_state_dict(saved)


def final_evaluation(
    folder: Path, device: torch.device, stopped: Callable[[], bool], evaluators: Evaluators | None = None
) -> bool:
    """The last word on a finished run: its final agent in many episodes, a row of final.csv. Whether that is there now.

    It reads the last checkpoint, so it may come at any time later, and leaves nothing behind when `stopped()`.
    """
    episodes = read_config(folder).run.final_eval_episodes
    if not episodes:
        return True
    agent, config, env_steps = load_agent(folder, device, episodes, evaluators)
    path = folder / "final.csv"
    with refused_as(f"cannot read {path}"):
        done = [line.partition(",")[0] for line in read_text(path).splitlines()] if path.exists() else []
    with closing(agent):
        if str(env_steps) in done:
            return True
        started = time.monotonic()
        try:
            result = agent.evaluate([derive(config.seed, "final", episode) for episode in range(episodes)], False, stopped)
        except EvaluationStoppedError:
            return False
    row = {
        "env_steps": env_steps,
        "agent_steps": env_steps // config.env.action_repeat,
        "updates": config.updates_at(env_steps // config.env.action_repeat),
        "return_mean": result.mean,
        "return_std": result.std,
        "episodes": episodes,
        "wall_seconds": round(time.monotonic() - started, 3),
        "returns": " ".join(f"{value:.8g}" for value in result.returns),
    }
    with closing(Table(path, EVAL_COLUMNS, env_steps - 1)) as table:
        table.write(row)
    return True
