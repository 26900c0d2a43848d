"""`--no-keep-replay`: a finished run leaves its agent and its tables on disk, not what it learned
from."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from cclf import build
from cclf.envs.make import make_env
from cclf.storage import checkpoint
from cclf.training import loop, trainer
from rainbow_inputs import tiny_cclf
from test_cli import assert_refused, cclf, contents
from tiny_runs import rows, tables, tiny_config, tiny_options

CONFIGS = {
    "sac": tiny_config(),
    "drqv2": tiny_config(base="drqv2", method="drq-v2+cclf"),
    "rainbow": tiny_cclf(env_steps=36, eval_episodes=1, final_eval_episodes=1),
}


class Killed(BaseException):
    pass


def train(config, out, *words, code=0):
    got, _, err = cclf("train", *tiny_options(config), "--out", out, *words)
    assert got == code, err
    return out / config.run_name()


def frames_on_disk(folder):
    return [*(folder / "checkpoint").glob("frames/*")]


@pytest.mark.parametrize("base", CONFIGS)
def test_it_learns_the_same_and_leaves_no_frames(tmp_path, base):
    config = CONFIGS[base]
    kept = train(config, tmp_path / "kept")
    left_out = train(config, tmp_path / "left-out", "--no-keep-replay")
    assert frames_on_disk(kept)
    assert not frames_on_disk(left_out)
    assert tables(left_out) == tables(kept)
    one, other = (checkpoint.load(run / "checkpoint", frames=False) for run in (left_out, kept))
    assert one.pop("replay_kept") is False
    assert one.keys() == other.keys(), "where replay is kept, nothing is said of it"
    # the agent is there
    assert cclf("evaluate", left_out, "--episodes", 1)[0] == 0


def test_a_run_that_is_killed_keeps_all_and_ends_as_if_nothing_had_been(tmp_path, monkeypatch):
    config = CONFIGS["sac"]
    undisturbed = train(config, tmp_path / "undisturbed")
    with monkeypatch.context() as patch:
        step = loop.TrainingRun._step

        def killed(self, log, progress):
            yield from step(self, log, progress)
            if self.agent_steps == 40:
                raise Killed

        patch.setattr(loop.TrainingRun, "_step", killed)
        with pytest.raises(Killed):
            train(config, tmp_path / "killed", "--no-keep-replay")
    folder = tmp_path / "killed" / config.run_name()
    assert frames_on_disk(folder), "the checkpoint of step 30 is one to go on from"
    assert tables(train(config, tmp_path / "killed", "--no-keep-replay")) == tables(undisturbed)
    assert not frames_on_disk(folder)


@pytest.mark.parametrize(("seeds", "not_kept"), [((1,), 1), ((1, 2), 0)])
def test_a_kill_in_the_last_evaluation_costs_that_alone(tmp_path, monkeypatch, seeds, not_kept):
    """It is under way beside others, and the checkpoint of its beginning has no frames."""
    config = CONFIGS["rainbow"]
    monkeypatch.setattr(build, "evaluates_asynchronously", lambda *_: True)
    words = ("--no-keep-replay", *(("--with-seeds", *seeds[1:]) if len(seeds) > 1 else ()))
    undisturbed = train(config, tmp_path / "undisturbed", *words)

    def kill(self, over, *_):
        if over.clocks["env_steps"] == 36:
            raise Killed
        return write(self, over, *_)

    with monkeypatch.context() as patch:
        write = loop.TrainingRun._write_eval_row
        patch.setattr(loop.TrainingRun, "_write_eval_row", kill)
        with pytest.raises(Killed):
            train(config, tmp_path / "killed", *words)
    folder = tmp_path / "killed" / config.run_name()
    assert rows(folder / "eval.csv")[-1]["env_steps"] == "24"
    # Also by a command that would keep it: what is gone is gone, and no zeros stand for it.
    train(config, tmp_path / "killed", *words[not_kept:])
    for seed in seeds:
        own = replace(config, seed=seed).run_name()
        assert tables(tmp_path / "killed" / own) == tables(tmp_path / "undisturbed" / own)
        saved = checkpoint.load(tmp_path / "killed" / own / "checkpoint", frames=False)
        assert saved["replay_kept"] is False
        assert not frames_on_disk(tmp_path / "killed" / own)
    assert rows(folder / "final.csv", "wall_seconds") == rows(
        undisturbed / "final.csv", "wall_seconds"
    )


@pytest.mark.parametrize("base", CONFIGS)
def test_what_needs_the_replay_is_refused(tmp_path, base):
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


def test_it_is_refused_where_there_is_no_replay():
    result = cclf("train", "minigrid/Empty-16x16", "--no-keep-replay", "--dry-run")
    assert_refused(result, "keep_replay=False conflicts with a2c, which has no replay")


# --- room for it
# -----------------------------------------------------------------------------------------------


def free_bytes(monkeypatch, free):
    monkeypatch.setattr(trainer.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


def test_a_disk_that_is_too_small_is_named_before_the_first_step(tmp_path, monkeypatch):
    config = CONFIGS["rainbow"]
    spec = make_env(config, 0).spec
    needed = 2 * build.checkpoint_size(config, spec)
    frames = 36 * spec.frame_shape[1] * spec.frame_shape[2]
    assert frames < needed / 2 < 2 * frames, "frames, and little beside them"
    words = ("train", *tiny_options(config), "--with-seeds", 2, "--out", tmp_path)
    free_bytes(monkeypatch, needed - 1)
    code, _, err = cclf(*words)
    assert code == 0, err
    said = f"cclf: warning: checkpoints of 2 runs will hold about {needed / 1e9:.1f} GB of replay"
    assert said in err
    assert err.index(said) < err.index("36/36")
    assert "make room or add --no-keep-replay" in err
    # what is written already needs no room
    larger = replace(config, run=replace(config.run, env_steps=37))
    words = ("train", *tiny_options(larger), "--with-seeds", 2, "--out", tmp_path)
    assert "warning" not in cclf(*words)[2]


def test_nothing_is_said_where_there_is_room(tmp_path, monkeypatch):
    config = CONFIGS["rainbow"]
    free_bytes(monkeypatch, build.checkpoint_size(config, make_env(config, 0).spec))
    assert "warning" not in cclf("train", *tiny_options(config), "--out", tmp_path)[2]


@pytest.mark.parametrize(("every", "kept"), [(12, 24), (36, 0), (35, 35), (17, 34)])
def test_without_it_frames_are_on_disk_until_the_last_evaluation_before_the_end(every, kept):
    config = CONFIGS["rainbow"]
    run = replace(config.run, eval_every_env_steps=every, keep_replay=False)
    spec = make_env(config, 0).spec
    found = build.checkpoint_size(replace(config, run=run), spec)
    assert found == build.checkpoint_size(config, spec) * kept // 36
