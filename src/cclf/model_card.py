"""The model card of a trained agent for model hubs: its training, its return, how to load it and how to
train it again. The text is in model_card.md."""

import csv
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cclf import __version__, presets
from cclf.algorithms.base import DEFAULT_PROFILE
from cclf.analysis import load
from cclf.analysis.render import escape_markdown
from cclf.analysis.runs import check_names
from cclf.analysis.statistics import mean_interval
from cclf.config import Config
from cclf.envs.registry import task_kind
from cclf.storage.safe_loading import data_error_context, read_text

_MAX_EVALUATIONS = 12  # rows of the table
_WIDTH = 80  # of a command
# Options that do not affect the result of a run.
_LOCAL = {"device", "threads", "video", "tensorboard", "tracker", "eval_workers"}


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


def command(config: Config) -> list[str]:
    """The command that trains this run, with each active option that differs from the preset."""
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
            if is_default or name in _LOCAL or config.why_inactive(name):
                continue
            option = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{option}" if value else f"--no-{option}")
            else:
                words += [f"--{option}", str(value)]
    return words


def text(
    folder: Path, config: Config, env_steps: int, evaluations: Sequence[CardEvaluation]
) -> str:
    """The model card of a run folder."""
    facts = _facts(folder, config, env_steps, evaluations[-1])
    return render(config, facts, evaluations, _wrapped(command(config)))


def render(
    config: Config,
    facts: Mapping[str, str],
    evaluations: Sequence[CardEvaluation],
    train_command: str,
) -> str:
    from jinja2 import Environment, StrictUndefined

    suite, _, name = config.task.partition("/")
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "cclf", config.method_name]
    tags += [config.base, suite, name]
    modules = dict.fromkeys(config.imported_modules.values())
    returns = evaluations[-1].returns
    # The output is Markdown: `_facts` escapes the texts of other programs.
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
        command=train_command,
        evaluations=_thinned(evaluations),
    )


def _wrapped(words: Sequence[str]) -> str:
    """A command, with one option per line if it is long.

    >>> print(_wrapped(["cclf", "train", "toy/reach", "--method", "drq", "--seed", "1"]))
    cclf train toy/reach --method drq --seed 1
    """
    line = shlex.join(words)
    return line if len(line) <= _WIDTH else line.replace(" --", " \\\n  --")


def _facts(folder: Path, config: Config, env_steps: int, last: CardEvaluation) -> dict[str, str]:
    run, manifest = load.read_runs(folder)[-1], load.read_manifest(folder)
    check_names([run])
    agent_steps = env_steps // config.env.action_repeat
    updates = config.updates_at(agent_steps)
    steps = f"{env_steps:,} environment steps = {agent_steps:,} agent steps, {updates:,} updates"
    episodes = f"{len(last.returns)} episodes at {last.env_steps:,} environment steps"
    method = f"`{config.method_name}` on the base algorithm `{config.base}`"
    version, torch = (
        _plain(manifest.get(*each)) for each in (("cclf", __version__), ("torch", "unknown"))
    )
    return {
        "task": f"`{config.task}`",
        "method": f"{method}, profile `{config.profile}`, seed {config.seed}",
        "observes": _observation(config),
        "trained for": steps,
        "return": f"**{last.interval}** ({episodes})",
        "code": f"cclf {version}, commit {_plain(run.commit)}",
        "trained on": f"{_plain(run.device)}, torch {torch}",
    }


def _observation(config: Config) -> str:
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


def _plain(value: object) -> str:
    return escape_markdown(str(value)[:80])


def _thinned(evaluations: Sequence[CardEvaluation]) -> list[CardEvaluation]:
    """At most _MAX_EVALUATIONS at equal distances, including the last one."""
    step = -(-len(evaluations) // _MAX_EVALUATIONS)
    return list(evaluations[::-1][::step][::-1])
