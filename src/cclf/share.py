"""A trained agent as a folder to share: its weights as safetensors, its config, and a model card for
model hubs, whose text is in model_card.md. `cclf.load`, `evaluate` and `play` accept such a folder as
they accept a run folder."""

import csv
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import save as tensors_to_bytes

from cclf import __version__, presets
from cclf.algorithms.base import DEFAULT_PROFILE
from cclf.analysis import load
from cclf.analysis.render import escape_markdown
from cclf.analysis.runs import check_names
from cclf.analysis.statistics import mean_interval
from cclf.config import Config
from cclf.envs.registry import task_kind
from cclf.errors import ConfigError
from cclf.storage.atomic_files import write_output
from cclf.storage.run_folder import WEIGHTS, read_config, read_weights
from cclf.storage.safe_loading import TENSOR_BYTES, data_error_context, read_file, read_text
from cclf.training.agent import evaluation_networks, load_agent

CARD, VIDEO = "README.md", "replay.mp4"  # names that model hubs expect
_MAX_EVALUATIONS = 12  # rows in the table of evaluations
_MAX_COMMAND_CHARACTERS = 80  # a longer command is split into several lines
# Options that do not affect the result of a run.
_IRRELEVANT_OPTIONS = {"device", "threads", "video", "tensorboard", "tracker", "eval_workers"}


def write(folder: Path, out: Path, trust_imports: bool = False) -> list[Path]:
    """Write the agent of a run folder to the folder `out`, which is new, empty, or written by this
    function before."""
    _refuse_other_folder(out)
    evaluations = read_evaluations(folder)
    if not evaluations:
        raise ConfigError(
            f"{folder} has no evaluation yet, which a model card needs: train it first"
        )
    agent, _, env_steps = load_agent(folder, torch.device("cpu"), 1, trust_imports=trust_imports)
    with closing(agent):
        state = evaluation_networks(agent.policy).state_dict()
    if not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ConfigError(
            f"the base algorithm of {folder} has state other than tensors, which a model card cannot hold"
        )
    weights = {name: value.detach().clone().contiguous() for name, value in state.items()}
    header = {"format": "pt", "cclf": __version__, "env_steps": str(env_steps)}
    config = read_config(folder)
    facts = _facts(folder, config, env_steps, evaluations[-1])
    # The weights come first: `_refuse_other_folder` accepts a folder with them after a failure.
    files: dict[str, str | bytes] = {
        WEIGHTS: tensors_to_bytes(weights, metadata=header),
        "config.json": read_file(folder / "config.json"),
        CARD: render_card(config, facts, evaluations),
    }
    videos = sorted(folder.glob("episode-*.mp4"), key=lambda path: (len(path.name), path))
    if videos:
        with data_error_context(f"cannot read {videos[-1]}"):
            files[VIDEO] = read_file(videos[-1], TENSOR_BYTES)
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_output(out / name, content)
    return [out / name for name in sorted(files)]


def _refuse_other_folder(out: Path) -> None:
    """Raise ConfigError unless `out` is new, empty or an exported agent: a project may have its own
    README.md."""
    if (out / "checkpoint").exists():
        raise ConfigError(f"cannot write {out}: it is a run folder; name another one")
    if not out.exists() or not any(out.iterdir()):
        return
    try:
        read_weights(out)
    except ConfigError as error:
        raise ConfigError(
            f"cannot write {out}: it holds files that are not of an exported agent; name a new or "
            "an empty folder"
        ) from error


# The model card


class CardEvaluation(NamedTuple):
    env_steps: int
    updates: int
    returns: np.ndarray  # (episodes,)

    @property
    def interval(self) -> str:
        """
        >>> CardEvaluation(8, 1, np.array([1.0, 1.0])).interval
        '1 [1, 1]'
        """
        if len(self.returns) < 2:
            return f"{self.returns.mean():.4g}"
        mean, low, high = (part[0] for part in mean_interval(self.returns[:, None]))
        return f"{mean:.4g} [{low:.4g}, {high:.4g}]"


def read_evaluations(folder: Path) -> list[CardEvaluation]:
    """The evaluations in the order of their steps. The final evaluation, if there is one, replaces the
    shorter one at its step."""
    rows: dict[int, CardEvaluation] = {}
    for path in (folder / "eval.csv", folder / "final.csv"):
        if path.exists():
            with data_error_context(f"cannot read {path}"):
                for row in csv.DictReader(read_text(path).splitlines()):
                    returns = (row.get("returns") or row["return_mean"]).split()
                    env_steps = int(row["env_steps"])
                    rows[env_steps] = CardEvaluation(
                        env_steps, int(row["updates"]), np.array([float(each) for each in returns])
                    )
    return [rows[env_steps] for env_steps in sorted(rows)]


def train_command(config: Config) -> str:
    """The command that trains this run, with each active option that differs from the preset. A
    long command has an option per line."""
    preset = presets.resolve(
        config.task,
        config.method_name,
        profile=config.profile,
        base_name=config.base,
        observe=config.env.observe,
    )
    words = ["cclf", "train", config.task, "--method", config.method_name, "--base", config.base]
    if config.profile != DEFAULT_PROFILE:
        words += ["--profile", config.profile]
    if config.env.observe != "pixels":
        words += ["--observe", config.env.observe]
    words += ["--seed", str(config.seed)]
    values, defaults = config.to_dict(), preset.to_dict()
    for group in ("env", "method", "algorithm", "run"):
        for name, value in values[group].items():
            is_default = value == defaults[group][name]
            if is_default or name in _IRRELEVANT_OPTIONS or config.why_inactive(name):
                continue
            option = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{option}" if value else f"--no-{option}")
            else:
                words += [f"--{option}", str(value)]
    line = shlex.join(words)
    return line if len(line) <= _MAX_COMMAND_CHARACTERS else line.replace(" --", " \\\n  --")


def render_card(
    config: Config, facts: Mapping[str, str], evaluations: Sequence[CardEvaluation]
) -> str:
    from jinja2 import Environment, StrictUndefined

    suite, _, name = config.task.partition("/")
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "cclf", config.method_name]
    tags += [config.base, suite, name]
    modules = dict.fromkeys(config.imported_modules.values())
    returns, stride = evaluations[-1].returns, -(-len(evaluations) // _MAX_EVALUATIONS)
    # The output is Markdown. `_facts` escapes texts from other programs, such as device names.
    environment = Environment(
        autoescape=False, trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    template = resources.files("cclf").joinpath("model_card.md").read_text("utf-8")
    return environment.from_string(template).render(
        config=config,
        tags=list(dict.fromkeys(tags)),
        mean_reward=f"{returns.mean():.2f} +/- {returns.std():.2f}",
        facts=facts,
        modules=" and ".join(f"`{module}`" for module in modules),
        trust=" --trust-imports" if modules else "",
        command=train_command(config),
        # Every `stride`-th one, counted back from the last one.
        evaluations=evaluations[::-stride][::-1],
    )


def _facts(folder: Path, config: Config, env_steps: int, last: CardEvaluation) -> dict[str, str]:
    run, manifest = load.read_runs(folder)[-1], load.read_manifest(folder)
    check_names([run])
    agent_steps = env_steps // config.env.action_repeat
    updates = config.algorithm.updates_at(agent_steps)
    steps = f"{env_steps:,} environment steps = {agent_steps:,} agent steps, {updates:,} updates"
    episodes = f"{len(last.returns)} episodes at {last.env_steps:,} environment steps"
    method = f"`{config.method_name}` on the base algorithm `{config.base}`"
    version, torch = (
        _escape(manifest.get(name, default))
        for name, default in (("cclf", __version__), ("torch", "unknown"))
    )
    return {
        "task": f"`{config.task}`",
        "method": f"{method}, profile `{config.profile}`, seed {config.seed}",
        "observes": _describe_observation(config),
        "trained for": steps,
        "return": f"**{last.interval}** ({episodes})",
        "code": f"cclf {version}, commit {_escape(run.commit)}",
        "trained on": f"{_escape(run.device)}, torch {torch}",
    }


def _describe_observation(config: Config) -> str:
    env = config.env
    if task_kind(config.task) == "grid":
        text = "MiniGrid's 7 x 7 cells"
    else:
        pixels = f"frames of {env.frame_pixels} x {env.frame_pixels} pixels"
        state = "the state of the environment, as numbers"
        text = f"{pixels if env.observe == 'pixels' else state}, frame stack {env.frame_stack}, "
        text += f"action repeat {env.action_repeat}"
    if "encoder" in config.imported_modules:
        encoder = re.sub(r"[`|\s]", "", config.algorithm.encoder)
        text += f", through `{encoder}`, code that is not in this folder"
    return text


def _escape(value: object) -> str:
    return escape_markdown(str(value)[:80])
