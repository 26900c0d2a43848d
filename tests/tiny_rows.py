"""Rows and run folders made up for tests."""

import json
from pathlib import Path

from cclf import presets
from cclf.analysis.runs import ResultRow

TASK = "minigrid/DoorKey-6x6"
EVAL_HEADER = "env_steps,agent_steps,updates,return_mean,return_std,episodes,wall_seconds,returns"


def row(
    method: str = "cclf",
    seed: int = 1,
    env_steps: int = 400_000,
    value: float = 0.5,
    *,
    task: str = TASK,
    repeat: int = 1,
    episodes: int = 100,
    seconds: float = 60.0,
    device: str = "cpu x1",
    state: str = "done",
    profile: str = "entropy-0.01",
) -> ResultRow:
    clocks = (env_steps, env_steps // repeat, env_steps // 128)
    return ResultRow(
        task, method, profile, seed, *clocks, value, 0.1, episodes, seconds, device, "abc", state
    )


def runs_of(method: str, values: list[float], **fields: object) -> list[ResultRow]:
    """One final evaluation per seed."""
    return [row(method, seed, value=value, **fields) for seed, value in enumerate(values, 1)]


def write_run(
    out: Path,
    method: str = "re3",
    seed: int = 1,
    *,
    task: str = TASK,
    evaluations: dict[int, float] | None = None,
    failed: bool = False,
    changes: dict[str, dict[str, object]] | None = None,
    train: str = "",
    manifest: dict[str, object] | None = None,
    name: str | None = None,
) -> Path:
    """A folder as a run leaves it; `changes` goes into groups of its config."""
    config = presets.resolve(task, method, seed=seed)
    content = config.to_dict()
    for group, values in (changes or {}).items():
        content[group] |= values
    folder = out / (name or config.run_name())
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "manifest.json").write_text(
        json.dumps({"device": "cpu", "threads": 1, "commit": "abc"} | (manifest or {}))
    )
    repeat = content["env"]["action_repeat"]
    lines = [
        f"{steps},{steps // repeat},{steps // 128},{value},0.1,10,{steps / 1e4},0.2 0.3"
        for steps, value in (evaluations or {}).items()
    ]
    (folder / "eval.csv").write_text("\n".join([EVAL_HEADER, *lines]) + "\n")
    if train:
        (folder / "train.csv").write_text(train)
    if failed:
        (folder / "failure").mkdir()
        (folder / "failure" / "failure.json").write_text('{"metric": "value_loss", "value": "nan"}')
        (folder / "failure" / "config.json").write_text(json.dumps(content))
    return folder
