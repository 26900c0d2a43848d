"""Fault injection: real `cclf train` processes are killed at random moments, started again by the same command, and must end as
an undisturbed run does: the same bytes in the CSV files (but for the clock on the wall), the same weights, the same replay."""

import os
import random
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from cclf.runtime import checkpoint
from tiny_runs import differing, rows, run, tiny_config, tiny_options

OFTEN = {"eval_every_env_steps": 20, "eval_episodes": 1, "log_every_agent_steps": 5}
RUNS = {
    "sac": tiny_config("toy/reach-1d", "cclf", algorithm={"replay_capacity_transitions": 100}, **OFTEN),
    "a2c": tiny_config("minigrid/DoorKey-5x5", "re3+cclf", **OFTEN | {"eval_every_env_steps": 128}),
}
# Long enough that kills of one second's spacing fall everywhere in it.
ENV_STEPS = {"default lane": {"sac": 160, "a2c": 640}, "slow lane": {"sac": 3_000, "a2c": 10_000}}


def command(base, env_steps, out):
    return [
        sys.executable,
        "-m",
        "cclf.cli",
        "train",
        *tiny_options(RUNS[base]),
        "--env-steps",
        str(env_steps),
        "--out",
        str(out),
    ]


def killed_after(words, seconds):
    """Start it, kill it `seconds` after it has begun to train. Its exit code: that of a kill, unless it was done before."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith(("resuming at", "run folder", "finished before")):
            break
    killer = threading.Timer(seconds, process.kill)
    killer.start()
    said.append(process.stderr.read())
    code = process.wait(timeout=120)
    killer.cancel()
    assert code in (0, -9), "".join(said)
    assert "warning" not in "".join(said), "a kill must never leave a damaged checkpoint"
    return code


def everything(folder):
    state = checkpoint.load(folder / "checkpoint")
    del state["wall_seconds"]
    return state


def kill_and_compare(base, env_steps, kills_wanted, tmp_path, rng, longest_seconds):
    """How often it was killed, and how often in the middle of writing a checkpoint."""
    config = RUNS[base]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(replace(config, run=replace(config.run, env_steps=env_steps)), whole)
    folder = broken / config.run_name()
    kills = in_checkpoint = 0
    code = -9
    while code == -9:
        code = killed_after(command(base, env_steps, broken), rng.uniform(0, longest_seconds) if kills < kills_wanted else 600)
        kills += code == -9
        in_checkpoint += code == -9 and any(folder.glob("checkpoint/*.tmp"))
    assert (folder / "train.csv").read_bytes() == (whole / "train.csv").read_bytes()
    assert rows(folder / "eval.csv", "wall_seconds") == rows(whole / "eval.csv", "wall_seconds")
    assert differing(everything(folder), everything(whole)) == []
    return kills, in_checkpoint


@pytest.mark.parametrize("base", RUNS)
def test_a_few_kills_change_nothing(tmp_path, base):
    pytest.importorskip("minigrid")
    kills, _ = kill_and_compare(base, ENV_STEPS["default lane"][base], 2, tmp_path, random.Random(1), 0.6)
    assert kills >= 1


@pytest.mark.slow
@pytest.mark.parametrize("base", RUNS)
def test_many_kills_change_nothing(tmp_path, base):
    wanted = int(os.environ.get("CCLF_KILLS", "60"))
    kills, in_checkpoint = kill_and_compare(base, ENV_STEPS["slow lane"][base], wanted, tmp_path, random.Random(2), 1.5)
    print(f"{base}: {kills} kills survived, {in_checkpoint} of them while a checkpoint was being written")
    assert kills >= wanted - 5, "the run was done before: make it longer"
    assert in_checkpoint >= 1
