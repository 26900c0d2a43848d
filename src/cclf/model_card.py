"""The model card of a trained agent, as hubs read it: what it is, what it reached, how to load it
and how to train it again."""

import csv
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

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

_MOST_EVALUATIONS = 12  # of a card's table
_WIDTH = 80  # of a command
# Options of a run that say nothing about its result.
_LOCAL = {"device", "threads", "video", "tensorboard", "tracker", "eval_workers"}


class Evaluated(NamedTuple):
    env_steps: int
    updates: int
    returns: np.ndarray  # of its episodes


def evaluations_of(folder: Path) -> list[Evaluated]:
    """In the order of their steps; at the end the final evaluation, where there is one, in the
    place of the shorter one of that moment."""
    found: dict[int, Evaluated] = {}
    for name in ("eval.csv", "final.csv"):
        path = folder / name
        if path.exists():
            with data_error_context(f"cannot read {path}"):
                for row in csv.DictReader(read_text(path).splitlines()):
                    returns = (row.get("returns") or row["return_mean"]).split()
                    moment = int(row["env_steps"])
                    found[moment] = Evaluated(
                        moment, int(row["updates"]), np.array([float(value) for value in returns])
                    )
    return [found[env_steps] for env_steps in sorted(found)]


def command(config: Config) -> list[str]:
    """The words that train this run, with each option that acts and is not the preset's."""
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
    for group in ("env", "method", "algorithm", "run"):
        for field in fields(getattr(config, group)):
            value = getattr(getattr(config, group), field.name)
            same = value == getattr(getattr(preset, group), field.name)
            if same or field.name in _LOCAL or config.why_inactive(field.name):
                continue
            option = field.name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{option}" if value else f"--no-{option}")
            else:
                words += [f"--{option}", str(value)]
    return words


def text(folder: Path, config: Config, env_steps: int, evaluations: list[Evaluated]) -> str:
    """The model card."""
    curve = [
        "| environment steps | updates | return | episodes |",
        "| --- | --- | --- | --- |",
        *(
            f"| {each.env_steps:,} | {each.updates:,} | {_with_interval(each)} | "
            f"{len(each.returns)} |"
            for each in _some_of(evaluations)
        ),
    ]
    facts = _facts(folder, config, env_steps, evaluations[-1])
    return _CARD.format(
        front="\n".join(front_matter(config, evaluations[-1])),
        method=config.method_name,
        task=config.task,
        facts="\n".join(_rows(facts)),
        evaluations="\n".join(curve),
        load=to_load(config),
        train=to_train(config),
    )


def _rows(facts: Mapping[str, str]) -> list[str]:
    """A table whose first fact stands at its head: Markdown knows none without."""
    first, *others = (f"| {name} | {fact} |" for name, fact in facts.items())
    return [first, "| --- | --- |", *others]


def _lines(words: Sequence[str]) -> str:
    """A command as it is typed, an option to a line where it is long.

    >>> print(_lines(["cclf", "train", "toy/reach", "--method", "drq", "--seed", "1"]))
    cclf train toy/reach --method drq --seed 1
    """
    line = shlex.join(words)
    return line if len(line) <= _WIDTH else line.replace(" --", " \\\n  --")


def _facts(folder: Path, config: Config, env_steps: int, last: Evaluated) -> dict[str, str]:
    made, manifest = load.read_runs(folder)[-1], load.read_manifest(folder)
    check_names([made])
    env, agent_steps = config.env, env_steps // config.env.action_repeat
    sees = "MiniGrid's 7 x 7 cells"
    if task_kind(config.task) != "grid":
        pixels = f"frames of {env.frame_pixels} x {env.frame_pixels} pixels"
        sees = (
            f"{pixels if env.observe == 'pixels' else 'the state of the environment, as numbers'}, "
            f"frame stack {env.frame_stack}, action repeat {env.action_repeat}"
        )
    if "encoder" in config.imported_modules:
        encoder = re.sub(r"[`|\s]", "", config.algorithm.encoder)
        sees += f", through `{encoder}`, code that is not in this folder"
    return {
        "task": f"`{config.task}`",
        "method": f"`{config.method_name}` on the base algorithm `{config.base}`, profile "
        f"`{config.profile}`, seed {config.seed}",
        "sees": sees,
        "trained for": f"{env_steps:,} environment steps = {agent_steps:,} agent steps, "
        f"{config.updates_at(agent_steps):,} updates",
        "return": f"**{_with_interval(last)}** ({len(last.returns)} episodes at "
        f"{last.env_steps:,} environment steps)",
        "code": f"cclf {_plain(manifest.get('cclf', __version__))}, commit {_plain(made.commit)}",
        "trained on": f"{_plain(made.device)}, torch {_plain(manifest.get('torch', 'unknown'))}",
    }


def _plain(value: Any) -> str:
    return escape_markdown(str(value)[:80])


_CARD = """---
{front}
---

# {method} on {task}

An agent trained with the Python package `cclf`: contrastive-curiosity-driven learning (CCLF, Sun,
Qian and Miao, IJCAI 2022) and its baselines.

{facts}

In brackets: the 95 % interval of the mean over the episodes of that evaluation. It is too narrow
for few episodes. And this is one run with one seed: it does not say how other seeds do.

## Load it
{load}

## Train it again
{train}

## Evaluations
{evaluations}
"""


def to_load(config: Config) -> str:
    """A task or encoder that imports a module needs a word that this is wanted."""
    safety, argument = "Weights are safetensors: loading them\nruns no code.", ""
    if config.imported_modules:
        modules = " and ".join(
            f"`{module}`" for module in dict.fromkeys(config.imported_modules.values())
        )
        safety = (
            f"Weights are safetensors.\n\nLoading imports the Python module {modules}, which is "
            "not in this folder, and runs its code:\nget it from whom you trust, and have it where "
            "Python finds it (`PYTHONPATH`)."
        )
        argument = ", trust_imports=True"
    trust = _trust(config)
    return f"""Install `cclf` with the suite of the task, and name this folder. From a hub it is what
`huggingface_hub.snapshot_download("USER/NAME")` returns. {safety}

```python
import cclf

agent = cclf.load("."{argument})  # this folder
print(agent.evaluate(episodes=2).mean)  # agent.act(frame) stacks frames itself
```

`cclf evaluate .{trust}` and `cclf play .{trust}` take the folder, too;
`cclf export .{trust} --out policy.onnx` makes a file that needs neither `cclf` nor torch."""


def to_train(config: Config) -> str:
    return f"""```sh
{_lines(command(config))}
```

`cclf train --from config.json{_trust(config)}` trains the same: it has every number of the run."""


def _trust(config: Config) -> str:
    return " --trust-imports" if config.imported_modules else ""


def front_matter(config: Config, last: Evaluated) -> list[str]:
    """What a hub reads: YAML, whose texts are written as JSON writes them."""
    suite, _, name = config.task.partition("/")
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "cclf", config.method_name]
    tags += [config.base, suite, name]
    mean, std = last.returns.mean(), last.returns.std()
    return [
        "library_name: cclf",
        "pipeline_tag: reinforcement-learning",
        "tags:",
        *(f"- {json.dumps(tag)}" for tag in dict.fromkeys(tags)),
        "model-index:",
        f"- name: {json.dumps(config.method_name)}",
        "  results:",
        "  - task:",
        "      type: reinforcement-learning",
        "      name: reinforcement-learning",
        "    dataset:",
        f"      name: {json.dumps(config.task)}",
        f"      type: {json.dumps(config.task)}",
        "    metrics:",
        "    - type: mean_reward",
        f"      value: {json.dumps(f'{mean:.2f} +/- {std:.2f}')}",
        "      name: mean_reward",
        "      verified: false",
    ]


def _with_interval(evaluated: Evaluated) -> str:
    """
    >>> _with_interval(Evaluated(8, 1, np.array([1.0, 1.0])))
    '1 [1, 1]'
    """
    if len(evaluated.returns) < 2:
        return f"{evaluated.returns.mean():.4g}"
    mean, low, high = (part[0] for part in mean_interval(evaluated.returns[:, None]))
    return f"{mean:.4g} [{low:.4g}, {high:.4g}]"


def _some_of(evaluations: list[Evaluated]) -> list[Evaluated]:
    """Not more than a table should have, the last among them."""
    step = -(-len(evaluations) // _MOST_EVALUATIONS)
    return evaluations[::-1][::step][::-1]
