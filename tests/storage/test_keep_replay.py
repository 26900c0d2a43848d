"""`--no-keep-replay`: a finished run keeps its agent and its tables on disk, but not its replay."""

from dataclasses import replace

import pytest

from cclf.algorithms.rainbow import RainbowAlgorithm
from cclf.storage import checkpoint
from cclf.training import loop
from rainbow_inputs import tiny_cclf
from test_cli import assert_refused, cclf, contents
from tiny_runs import Killed, rows, tables, tiny_config, tiny_options

CONFIGS = {
    "sac": tiny_config(),
    "drqv2": tiny_config(base="drqv2", method="drq-v2+cclf"),
    "rainbow": tiny_cclf(env_steps=36, eval_episodes=1, final_eval_episodes=1),
}


def train(config, out, *words, code=0):
    got, _, err = cclf("train", *tiny_options(config), "--out", out, *words)
    assert got == code, err
    return out / config.run_name()


def frames_on_disk(folder):
    return [*(folder / "checkpoint").glob("frames/*")]


@pytest.mark.quick("sac")
@pytest.mark.parametrize("base", CONFIGS)
def test_run_without_kept_replay_learns_the_same_and_leaves_no_frames(tmp_path, trained, base):
    config = CONFIGS[base]
    kept = trained(config)
    left_out = train(config, tmp_path / "left-out", "--no-keep-replay")
    assert frames_on_disk(kept)
    assert not frames_on_disk(left_out)
    assert tables(left_out) == tables(kept)
    one, other = (checkpoint.load(run / "checkpoint", frames=False) for run in (left_out, kept))
    assert one.pop("replay_kept") is False
    assert one.keys() == other.keys(), "the field is there only where replay is not kept"
    # the agent is there
    assert cclf("evaluate", left_out, "--episodes", 1)[0] == 0


def test_killed_run_keeps_its_replay_and_ends_as_an_uninterrupted_one(
    tmp_path, trained, monkeypatch
):
    config = CONFIGS["sac"]
    uninterrupted = trained(config)
    with monkeypatch.context() as patch:
        step = loop.TrainingRun._step_learner

        def killed(self):
            step(self)
            if self.agent_steps == 40:
                raise Killed

        patch.setattr(loop.TrainingRun, "_step_learner", killed)
        with pytest.raises(Killed):
            train(config, tmp_path / "killed", "--no-keep-replay")
    folder = tmp_path / "killed" / config.run_name()
    assert frames_on_disk(folder), "the checkpoint of step 30 is one to go on from"
    assert tables(train(config, tmp_path / "killed", "--no-keep-replay")) == tables(uninterrupted)
    assert not frames_on_disk(folder)


@pytest.mark.quick("seeds0-1")
@pytest.mark.parametrize(("seeds", "not_kept"), [((1,), 1), ((1, 2), 0)])
def test_kill_in_the_last_evaluation_repeats_only_the_evaluation(
    tmp_path, monkeypatch, seeds, not_kept
):
    """Training has ended, and the checkpoint at the start of the final evaluation has no frames."""
    config = CONFIGS["rainbow"]
    monkeypatch.setattr(RainbowAlgorithm, "evaluates_asynchronously", lambda *_: True)
    words = ("--no-keep-replay", *(("--with-seeds", *seeds[1:]) if len(seeds) > 1 else ()))
    uninterrupted = train(config, tmp_path / "uninterrupted", *words)

    def kill(counters, *rest):
        if counters.env_steps == 36:
            raise Killed
        return make_row(counters, *rest)

    with monkeypatch.context() as patch:
        make_row = loop.evaluation_row
        patch.setattr(loop, "evaluation_row", kill)
        with pytest.raises(Killed):
            train(config, tmp_path / "killed", *words)
    folder = tmp_path / "killed" / config.run_name()
    assert rows(folder / "eval.csv")[-1]["env_steps"] == "24"
    # A command that would keep the replay also resumes: the frames are lost, and zeros do not
    # replace them.
    train(config, tmp_path / "killed", *words[not_kept:])
    for seed in seeds:
        own = replace(config, seed=seed).run_name()
        assert tables(tmp_path / "killed" / own) == tables(tmp_path / "uninterrupted" / own)
        saved = checkpoint.load(tmp_path / "killed" / own / "checkpoint", frames=False)
        assert saved["replay_kept"] is False
        assert not frames_on_disk(tmp_path / "killed" / own)
    assert rows(folder / "final.csv", "wall_seconds") == rows(
        uninterrupted / "final.csv", "wall_seconds"
    )


@pytest.mark.quick("sac")
@pytest.mark.parametrize("base", CONFIGS)
def test_larger_budget_and_inspection_are_refused(tmp_path, base):
    config = CONFIGS[base]
    folder = train(config, tmp_path, "--no-keep-replay")
    before = contents(folder)
    larger = replace(config, run=replace(config.run, env_steps=2 * config.run.env_steps))
    result = cclf("train", *tiny_options(larger), "--out", tmp_path)
    assert_refused(result, "kept no replay (--no-keep-replay), so it cannot go on")
    assert_refused(cclf("inspect", folder), "kept no replay (--no-keep-replay)")
    # the same command finds it done
    train(config, tmp_path)
    assert contents(folder).keys() == before.keys()


def test_option_is_refused_without_a_replay():
    result = cclf("train", "minigrid/Empty-16x16", "--no-keep-replay", "--dry-run")
    assert_refused(result, "keep_replay=False conflicts with a2c, which has no replay")
