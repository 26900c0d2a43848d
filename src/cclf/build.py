"""The composition root: a config becomes objects here, and only here are all layers imported."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from cclf import __version__
from cclf.algorithms.sac import Sac
from cclf.config import Config, ConfigError
from cclf.framework import Framework
from cclf.replay import Replay
from cclf.runtime.learner import OffPolicyLearner
from cclf.runtime.loop import Plan, Training
from cclf.runtime.seeding import Generators, derive
from cclf.types import Env


def make_env(config: Config, seed: int) -> Env:
    suite, _, name = config.task.partition("/")
    env = config.env
    if suite == "dmc":
        from cclf.envs.dmc import make_dmc

        return make_dmc(name, env.frame_pixels, env.action_repeat, seed)
    if suite == "gym":
        from cclf.envs.gym import GymnasiumPixels

        return GymnasiumPixels(name, env.frame_pixels, env.action_repeat, seed)
    from cclf.envs.toy import make_toy

    return make_toy(name, env.frame_pixels, env.crop_pixels, env.action_repeat, seed)


def make_algorithm(config: Config, action_dim: int, device: torch.device) -> Sac:
    method, sac, env = config.method, config.algorithm, config.env
    with torch.random.fork_rng(devices=[]):  # networks are drawn on the CPU: the same weights on every device
        torch.manual_seed(derive(config.seed, "init"))
        framework = Framework(
            sac.feature_dim,
            learned_views=method.learned_views,
            selection=method.selection,
            prioritisation=method.prioritisation,
            regularisation=method.regularisation,
            reward=method.reward,
            priority_momentum=method.priority_momentum,
            bonus_temperature=method.bonus_temperature,
            bonus_decay_per_env_step=method.bonus_decay_per_env_step,
            contrastive_reduction=method.contrastive_reduction,
            bonus_maxima=method.bonus_maxima,
        )
        return Sac(
            framework,
            device,
            channels=3 * env.frame_stack,
            frame_pixels=env.frame_pixels,
            crop_pixels=env.crop_pixels,
            action_dim=action_dim,
            augmentation=method.augmentation,
            drawn_views=method.drawn_views,
            contrastive=method.contrastive,
            discount=sac.discount,
            learning_rate=sac.learning_rate,
            contrastive_learning_rate=sac.contrastive_learning_rate,
            contrastive_encoder_steps=sac.contrastive_encoder_steps,
            temperature_learning_rate=sac.temperature_learning_rate,
            temperature_beta1=sac.temperature_beta1,
            initial_temperature=sac.initial_temperature,
            q_ema_rate=sac.q_ema_rate,
            encoder_ema_rate=sac.encoder_ema_rate,
            target_every_updates=sac.target_every_updates,
            actor_every_updates=sac.actor_every_updates,
            conv_layers=sac.conv_layers,
            conv_filters=sac.conv_filters,
            feature_dim=sac.feature_dim,
            hidden_dim=sac.hidden_dim,
            log_std_min=sac.log_std_min,
            log_std_max=sac.log_std_max,
            encoder_tanh=sac.encoder_tanh,
            last_crop_offset=sac.last_crop_offset,
            collection_view=sac.collection_view,
        )


def make_learner(config: Config, env: Env, device: torch.device) -> OffPolicyLearner:
    forecast = replay_forecast(config, env)
    replay_device = choose_replay_device(config, device, forecast["bytes"])
    replay = Replay(
        forecast["transitions"],
        env.spec.frame_shape,
        env.spec.action_dim,
        config.env.frame_stack,
        env.spec.max_episode_agent_steps,
        replay_device,
    )
    return OffPolicyLearner(
        make_algorithm(config, env.spec.action_dim, device),
        replay,
        Generators(config.seed, device, replay_device),
        config.algorithm.batch_size,
        config.algorithm.warmup_agent_steps,
        env.spec.action_dim,
    )


def make_training(config: Config, folder: Path, device: torch.device) -> Training:
    env = make_env(config, derive(config.seed, "env"))
    plan = Plan(
        env_steps=config.run.env_steps,
        action_repeat=config.env.action_repeat,
        eval_every_env_steps=config.run.eval_every_env_steps,
        eval_episodes=config.run.eval_episodes,
        log_every_agent_steps=config.run.log_every_agent_steps,
        frame_stack=config.env.frame_stack,
        seed=config.seed,
        video=config.run.video,
    )
    learner = make_learner(config, env, device)
    return Training(plan, env, make_env(config, derive(config.seed, "eval")), learner, folder, device)


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {name!r}: use cpu, cuda, cuda:N or auto") from error
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        count = torch.cuda.device_count()
        raise ConfigError(f"device {name!r} is not there: PyTorch sees {count} CUDA devices; use --device cpu")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name!r} is not supported: use cpu, cuda, cuda:N or auto")
    return device


def replay_forecast(config: Config, env: Env) -> dict[str, int]:
    """How many transitions this run can ever hold, and what they cost. A short run never allocates the whole capacity."""
    transitions = min(config.algorithm.replay_capacity_transitions, max(1, config.planned_agent_steps))
    shape, action_dim, _, max_steps = env.spec
    size = Replay.bytes_needed(transitions, shape, action_dim, config.env.frame_stack, max_steps)
    return {"transitions": transitions, "bytes": size}


def choose_replay_device(config: Config, device: torch.device, needed_bytes: int) -> torch.device:
    """The GPU when the update runs there and the replay fits beside it; refuses what fits nowhere."""
    wanted = config.algorithm.replay_device
    if wanted == "cuda" and device.type != "cuda":
        raise ConfigError(f"replay_device=cuda clashes with device={device}: the update must run on the GPU too")
    if device.type == "cuda" and wanted in ("auto", "cuda"):
        free = torch.cuda.mem_get_info(device)[0]
        if needed_bytes < 0.8 * free:
            return device
        if wanted == "cuda":
            raise ConfigError(_too_large("GPU", needed_bytes, free))
    free = available_memory_bytes()
    if needed_bytes > 0.9 * free:
        raise ConfigError(_too_large("main", needed_bytes, free))
    return torch.device("cpu")


def _too_large(where: str, needed_bytes: int, free_bytes: int) -> str:
    return (
        f"replay needs {needed_bytes / 1e9:.2f} GB of {where} memory, {free_bytes / 1e9:.2f} GB are free: "
        "lower --replay-capacity-transitions or --frame-pixels"
    )


def available_memory_bytes() -> int:
    """What this process may still take: the machine's free memory, or less where a container sets a limit."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        available = min(available, int(limit.read_text()) - int(used.read_text()))
    return available


def manifest(config: Config, training: Training) -> dict[str, Any]:
    """The facts about code and machine that a result must carry."""
    versions = {name: _version(name) for name in ("numpy", "mujoco", "dm_control", "gymnasium", "minigrid")}
    renderer_name = getattr(training.env, "renderer_name", None)
    return {
        "cclf": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **versions,
        "machine": platform.machine(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(training.device) if training.device.type == "cuda" else "cpu",
        "renderer": renderer_name() if renderer_name else None,
        "env_steps_per_agent_step": config.env.action_repeat,
    }


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit this code runs from, with `-dirty` where files differ; None for an installed package."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def claim_folder(config: Config, out: Path) -> Path:
    """The run's folder, made or found. Refuses one that holds another config, and one that cannot be written."""
    folder = out / config.run_name()
    known = folder / "config.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if known.exists():
            before = Config.from_dict(json.loads(known.read_text())).learning_values()
            now = config.learning_values()
            differing = [f"{key} ({before.get(key)} there, {now[key]} now)" for key in now if before.get(key) != now[key]]
            if differing:
                raise ConfigError(f"{folder} holds a run of another config: {', '.join(differing)}; use another --out")
        known.write_text(json.dumps(config.to_dict(), indent=2) + "\n")
    except (OSError, json.JSONDecodeError, TypeError, KeyError) as error:
        raise ConfigError(f"cannot use the run folder {folder}: {error}") from error
    return folder
