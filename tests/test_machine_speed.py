"""Runs with the same seed write the same rows and weights on a slow and on a fast machine."""

import time

import pytest

from cclf.cli import main
from cclf.envs import minigrid, toy
from cclf.storage import checkpoint
from cclf.training import loop
from rainbow_inputs import tiny_cclf
from tiny_runs import differing, tables, tiny_config, tiny_options

RUNS = {
    "sac": tiny_config(method="rad"),
    "sac, evaluated in workers": tiny_config(eval_workers=2),
    "a2c": tiny_config("minigrid/DoorKey-5x5", "re3+cclf", env_steps=256, eval_every_env_steps=128),
    "rainbow": tiny_cclf(),
    "rainbow, evaluated in workers": tiny_cclf(eval_workers=2),
}
DELAY_SECONDS = 0.002


def slow(function):
    def delayed(*args, **kwargs):
        time.sleep(DELAY_SECONDS)
        return function(*args, **kwargs)

    return delayed


def slow_environment(monkeypatch):
    for env in (toy.Reach, toy.Catch, minigrid.VectorMiniGrid):
        monkeypatch.setattr(env, "step", slow(env.step))


def slow_saving(monkeypatch):
    monkeypatch.setattr(checkpoint, "fsync_write", slow(checkpoint.fsync_write))


def slow_evaluation(monkeypatch):
    """Results of an evaluation arrive late: training continues for many more steps."""
    original, calls = loop.poll, []

    def poll(steps, timeout_seconds):
        calls.append(steps)
        late = len([call for call in calls if call is steps]) > 12
        return original(steps, timeout_seconds) if late or timeout_seconds else None

    monkeypatch.setattr(loop, "poll", poll)


def immediate_evaluation(monkeypatch):
    """An evaluation has finished before the next step of the training."""
    original = loop.poll

    def poll(steps, _):
        while (result := original(steps, 0.1)) is None:
            pass
        return result

    monkeypatch.setattr(loop, "poll", poll)


SPEEDS = {
    "slow environment": slow_environment,
    "slow saving": slow_saving,
    "slow evaluation": slow_evaluation,
    "immediate evaluation": immediate_evaluation,
}


def tables_and_state(folder):
    return tables(folder), checkpoint.load(folder / "checkpoint")["learner"]


@pytest.mark.quick("sac-slow saving")
@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("name", RUNS)
def test_run_on_slow_or_fast_machine_writes_the_same(tmp_path, monkeypatch, trained, name, speed):
    config = RUNS[name]
    expected_tables, expected_state = tables_and_state(trained(config))
    SPEEDS[speed](monkeypatch)
    assert main(["train", *tiny_options(config), "--out", str(tmp_path)]) == 0
    written, state = tables_and_state(tmp_path / config.run_name())
    assert written == expected_tables
    assert differing(state, expected_state) == []
