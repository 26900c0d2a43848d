"""Runs of sweeps, and Python programs in the place of their `cclf train`."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cclf import presets
from cclf.sweep import child
from cclf.sweep.plan import RunSpec, make_run_spec

POPEN = subprocess.Popen
GRID = "minigrid/DoorKey-5x5"


def spec(
    out: Path, seed: int = 1, task: str = GRID, method: str = "cclf", memory: int = 0, **run: int
) -> RunSpec:
    config = presets.resolve(task, method, seed=seed)
    settings = {"threads": 1, "final_eval_episodes": 0} | run
    return make_run_spec(replace(config, run=replace(config.run, **settings)), out, (), memory)


def becomes(monkeypatch: pytest.MonkeyPatch, program: str, *arguments: str) -> None:
    """Every child process of a sweep runs this program."""
    command = [sys.executable, "-c", program, *arguments]
    monkeypatch.setattr(child.subprocess, "Popen", lambda _, **options: POPEN(command, **options))


def save(run: RunSpec, agent_steps: int, evaluation_due: bool = False, serial: int = 1) -> None:
    """The part of a checkpoint by which a sweep sees whether a run is finished."""
    path = run.folder / f"checkpoint/{serial:08d}/state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"agent_steps": agent_steps, "evaluation_due": evaluation_due}))


def finishing(run: RunSpec) -> str:
    """A program that leaves the folder of `run` as a finished one."""
    state = run.folder / "checkpoint/00000001/state.json"
    facts = json.dumps({"agent_steps": run.config.run.env_steps, "evaluation_due": False})
    return (
        f"import pathlib, sys; p = pathlib.Path({str(state)!r}); p.parent.mkdir(parents=True); "
        f"p.write_text({facts!r}); "
    )
