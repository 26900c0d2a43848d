"""Fault injection: real `cclf train` processes are killed at random moments, started again by the same command, and must end as
an undisturbed run does: the same bytes in the CSV files (but for the clock on the wall), the same weights, the same replay."""

import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from cclf.cli import main
from cclf.runtime import checkpoint
from tiny_runs import differing, rows, run, tiny_config, tiny_options

OFTEN = {"eval_every_env_steps": 10, "eval_episodes": 1, "log_every_agent_steps": 5}
RUNS = {
    "sac": tiny_config("toy/reach-1d", "cclf", algorithm={"replay_capacity_transitions": 100}, **OFTEN),
    "sac, workers": tiny_config("toy/reach-1d", "cclf", **OFTEN, eval_workers=1),
    "a2c": tiny_config("minigrid/DoorKey-5x5", "re3+cclf", **OFTEN | {"eval_every_env_steps": 128}),
}
# Long enough that kills fall everywhere in it: before the first checkpoint, in evaluations, in writing, at the end.
ENV_STEPS = {
    "default lane": {"sac": 160, "sac, workers": 60, "a2c": 640},
    "slow lane": {"sac": 600, "sac, workers": 600, "a2c": 3_200},
}


def words(base, env_steps, out):
    return ["train", *tiny_options(RUNS[base]), "--env-steps", str(env_steps), "--out", str(out)]


def start_program(words):
    process = subprocess.Popen(
        [sys.executable, "-m", "cclf.cli", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    process.returncode = 0  # the test waits for it by its number
    return process.pid, process.stderr


def start_fork(words):
    """The same command in a process of its own that need not import everything again, which takes longer than all the rest."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(writing, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        code = 99
        try:
            code = main(words)
        finally:
            os._exit(code)
    os.close(writing)
    return pid, os.fdopen(reading)


def being_written(folder):
    return any(folder.glob("checkpoint/*.tmp"))


def killed_after(start, words, seconds, aim_at=None):
    """Start it, kill it `seconds` after it has begun to train, or when the run `aim_at` next writes a checkpoint. Whether it was
    killed, and not done before."""
    pid, stderr = start(words)
    said = []
    for line in stderr:
        said.append(line)
        if line.startswith(("resuming at", "run folder", "finished before")):
            break
    ended = threading.Event()

    def kill():
        ended.wait(seconds)
        while aim_at is not None and not being_written(aim_at) and not ended.wait(0.0002):
            pass
        if not ended.is_set():
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    said += stderr.readlines()
    stderr.close()
    ended.set()
    killer.join()  # before the number of the process can go to another
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), "".join(said)
    assert "warning" not in "".join(said), "a kill must never leave a damaged checkpoint"
    return code != 0


def everything(folder):
    state = checkpoint.load(folder / "checkpoint")
    del state["wall_seconds"]
    return state


def kill_and_compare(base, env_steps, kills_wanted, tmp_path, rng, longest_seconds, programs_every):
    """Runs under fire, one after the other until there were kills enough. How many kills, and how many in the middle of writing a
    checkpoint: every second one is aimed there."""
    config = RUNS[base]
    whole = tmp_path / "whole"
    run(replace(config, run=replace(config.run, env_steps=env_steps)), whole)
    kills = in_checkpoint = runs = 0
    while kills < kills_wanted:
        out = tmp_path / f"broken-{runs}"
        folder, killed = out / config.run_name(), True
        while killed:
            start = start_program if kills % programs_every == 0 else start_fork
            seconds = rng.uniform(0, longest_seconds) if kills < kills_wanted else 600
            killed = killed_after(start, words(base, env_steps, out), seconds, folder if kills % 2 else None)
            kills += killed
            in_checkpoint += killed and being_written(folder)
        assert (folder / "train.csv").read_bytes() == (whole / "train.csv").read_bytes()
        assert rows(folder / "eval.csv", "wall_seconds") == rows(whole / "eval.csv", "wall_seconds")
        assert differing(everything(folder), everything(whole)) == []
        runs += 1
    return kills, in_checkpoint, runs


@pytest.mark.parametrize("base", RUNS)
def test_a_few_kills_change_nothing(tmp_path, base):
    pytest.importorskip("minigrid")
    kill_and_compare(base, ENV_STEPS["default lane"][base], 3, tmp_path, random.Random(1), 0.4, programs_every=3)


@pytest.mark.slow
@pytest.mark.parametrize("base", RUNS)
def test_many_kills_change_nothing(tmp_path, base):
    pytest.importorskip("minigrid")
    kills, in_checkpoint, runs = kill_and_compare(
        base, ENV_STEPS["slow lane"][base], 60, tmp_path, random.Random(2), 1.0, programs_every=10
    )
    print(f"{base}: {kills} kills in {runs} runs survived, {in_checkpoint} of them while a checkpoint was being written")
    assert in_checkpoint >= 10
