"""Fault injection: `cclf train` processes are killed at random moments and started again by the same
command. They must end as an uninterrupted run does: the same bytes in the CSV files (except wall
times), the same weights, the same replay."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from cclf.cli import main
from cclf.storage import checkpoint
from rainbow_inputs import tiny_cclf
from test_cli import cclf
from tiny_runs import differing, rows, tiny_config, tiny_options

OFTEN = {"eval_every_env_steps": 10, "eval_episodes": 1, "log_every_agent_steps": 5}
RUNS = {
    "sac": tiny_config(
        "toy/reach-1d", "cclf", algorithm={"replay_capacity_transitions": 100}, **OFTEN
    ),
    "sac, workers": tiny_config("toy/reach-1d", "cclf", **OFTEN, eval_workers=1),
    "sac, state": tiny_config(
        "gym/Pendulum-v1",
        "cclf",
        observe="state",
        algorithm={"replay_capacity_transitions": 100},
        **OFTEN,
    ),
    "drqv2": tiny_config(
        "toy/reach-1d",
        "drq-v2+cclf",
        base="drqv2",
        algorithm={"replay_capacity_transitions": 70, "update_every_agent_steps": 2},
        **OFTEN,
    ),
    "a2c": tiny_config("minigrid/DoorKey-5x5", "re3+cclf", **OFTEN | {"eval_every_env_steps": 128}),
    "a2c, predicted": tiny_config(
        "minigrid/DoorKey-5x5", "a2c+rnd", **OFTEN | {"eval_every_env_steps": 128}
    ),
    "rainbow": tiny_cclf(**OFTEN),
    "rainbow, workers": tiny_cclf(**OFTEN, eval_workers=2),
    "rainbow, a stack": tiny_cclf(**OFTEN),
    "rainbow, a stack with workers": tiny_cclf(**OFTEN, eval_workers=2),
    "rainbow, Q*bert": tiny_cclf("atari/Qbert", **OFTEN | {"eval_every_env_steps": 80}),
}
STACKED_SEEDS = [1, 2, 3]
# Long enough for kills in every phase: before the first checkpoint, in evaluations, while files are
# written, at the end.
ENV_STEPS = {
    "default lane": {
        "sac": 60,
        "drqv2": 60,
        "a2c, predicted": 384,
        "rainbow, a stack": 30,
    },
    "slow lane": {
        "sac": 600,
        "sac, workers": 600,
        "sac, state": 600,
        "drqv2": 600,
        "a2c": 3_200,
        "a2c, predicted": 3_200,
        "rainbow": 400,
        "rainbow, workers": 100,
        "rainbow, a stack": 200,
    }
    | {"rainbow, a stack with workers": 100, "rainbow, Q*bert": 1_600},
}
# Workers of Rainbow are new interpreters that import torch, which takes seconds.
SLOW_TO_START = [base for base in RUNS if "rainbow" in base and "workers" in base]


def seeds(base):
    return STACKED_SEEDS if "stack" in base else [1]


def words(base, env_steps, out):
    together = ["--with-seeds", *map(str, seeds(base)[1:])] if len(seeds(base)) > 1 else []
    return [
        "train",
        *tiny_options(RUNS[base]),
        *together,
        "--env-steps",
        str(env_steps),
        "--out",
        str(out),
    ]


def folders(base, out):
    return [out / replace(RUNS[base], seed=seed).run_name() for seed in seeds(base)]


def start_program(words):
    process = subprocess.Popen(
        [sys.executable, "-m", "cclf.cli", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.returncode = 0  # the test waits for it by its number
    return process.pid, process.stderr


def start_fork(words):
    """Start the same command in a forked process, which need not import the packages again: imports
    take most of the time."""
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


def begun(folders):
    """Incomplete checkpoints, each with the time of its last change."""
    found = set()
    for path in (path for folder in folders for path in folder.glob("checkpoint/*.tmp")):
        with contextlib.suppress(FileNotFoundError):
            found.add((path, path.stat().st_mtime_ns))
    return found


def newest_steps(folders):
    return {
        max(checkpoint.Checkpoints(folder / "checkpoint").steps(), default=0) for folder in folders
    }


def killed_after(start, words, seconds, aim_at=()):
    """Start a command, and kill it `seconds` after training began, or when a run in `aim_at` writes
    its next checkpoint. Return whether it was killed before it finished."""
    left_before = begun(aim_at)
    pid, stderr = start(words)
    printed = []
    for line in stderr:
        printed.append(line)
        if line.startswith(("resuming at", "run folder", "finished before")):
            break
    ended = threading.Event()

    def kill():
        ended.wait(seconds)
        while aim_at and not begun(aim_at) - left_before and not ended.wait(0.0002):
            pass
        if not ended.is_set():
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    printed += stderr.readlines()
    stderr.close()
    ended.set()
    killer.join()  # before the number of the process can go to another
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), "".join(printed)
    assert "warning" not in "".join(printed), "a kill must never leave a damaged checkpoint"
    return code != 0


def final_files_and_state(folder):
    state = checkpoint.load(folder / "checkpoint")
    del state["wall_seconds"], state["tables"]["eval"]["sha256"]  # of rows with wall times
    return state


def kill_and_compare(base, env_steps, kills_wanted, tmp_path, rng, longest_seconds, programs_every):
    """Kill and restart runs until there were enough kills. Returns how many kills there were, how many
    while a checkpoint was written (every second one is aimed there), how many that left the runs of
    a batch at different steps, and how many runs were completed."""
    whole = folders(base, tmp_path / "whole")
    # here, so that forks need no imports
    assert cclf(*words(base, env_steps, tmp_path / "whole"))[0] == 0
    kills = in_checkpoint = apart = runs = 0
    while kills < kills_wanted:
        out = tmp_path / f"broken-{runs}"
        broken, killed = folders(base, out), True
        while killed:
            start = start_program if (kills + 1) % programs_every == 0 else start_fork
            seconds = rng.uniform(0, longest_seconds) if kills < kills_wanted else 600
            left_before = begun(broken)
            killed = killed_after(
                start,
                words(base, env_steps, out),
                seconds,
                [rng.choice(broken)] if kills % 2 else (),
            )
            kills += killed
            in_checkpoint += killed and bool(begun(broken) - left_before)
            apart += killed and len(newest_steps(broken)) > 1
        for ours, theirs in zip(broken, whole, strict=True):
            assert (ours / "train.csv").read_bytes() == (theirs / "train.csv").read_bytes()
            for name in ("eval.csv", *(["final.csv"] if "rainbow" in base else [])):
                assert rows(ours / name, "wall_seconds") == rows(theirs / name, "wall_seconds")
            assert differing(final_files_and_state(ours), final_files_and_state(theirs)) == []
        runs += 1
    return kills, in_checkpoint, apart, runs


@pytest.mark.parametrize("base", ENV_STEPS["default lane"])
def test_resume_after_sigkill_is_bitwise_equal(tmp_path, base):
    pytest.importorskip("minigrid")
    steps, rng = ENV_STEPS["default lane"][base], random.Random(1)
    kill_and_compare(base, steps, 1, tmp_path, rng, 0.4, programs_every=100)


@pytest.mark.slow("test_resume_after_sigkill_is_bitwise_equal")
@pytest.mark.parametrize("base", RUNS)
def test_resume_after_many_sigkills_is_bitwise_equal(tmp_path, base):
    pytest.importorskip("minigrid")
    wanted, longest_seconds = (20, 8.0) if base in SLOW_TO_START else (60, 1.0)
    steps, rng = ENV_STEPS["slow lane"][base], random.Random(2)
    kills, in_checkpoint, apart, runs = kill_and_compare(
        base, steps, wanted, tmp_path, rng, longest_seconds, programs_every=10
    )
    print(f"{base}: {kills} kills in {runs} runs, {in_checkpoint} in checkpoints, {apart} apart")
    assert in_checkpoint >= wanted // 6
    assert (apart > 0) == ("stack" in base)
