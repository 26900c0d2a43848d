"""Interrupted runs of a batch: kills between checkpoints, signals, non-finite losses."""

import contextlib
import shutil
from dataclasses import replace

import pytest

from cclf.algorithms.rainbow.learner import BatchedLearner
from cclf.storage import atomic_files, checkpoint
from cclf.storage.atomic_files import folder_lock
from cclf.training import loop, trainer
from rainbow_inputs import tiny_cclf
from test_cli import cclf, contents
from test_reliability import signalled
from tiny_runs import Killed, differing, rows, tiny_options

CONFIG = tiny_cclf(env_steps=36, eval_episodes=1, final_eval_episodes=1)
SEEDS = (1, 2)


def kill(*_, **__):
    raise Killed


def train(out, *words, seeds=SEEDS):
    together = ("--with-seeds", *seeds[1:]) if len(seeds) > 1 else ()
    return cclf(
        "train", *tiny_options(replace(CONFIG, seed=seeds[0])), *together, "--out", out, *words
    )


def folder(out, seed=1):
    return out / replace(CONFIG, seed=seed).run_name()


def tables_and_state(out, seed=1):
    """The tables of a run without wall-clock times, and the state of its learner."""
    own = folder(out, seed)
    tables = [rows(own / f"{name}.csv", "wall_seconds") for name in ("train", "eval", "final")]
    return tables, checkpoint.load(own / "checkpoint")["learner"]


def assert_same_end(out, undisturbed, seeds=SEEDS):
    for seed in seeds:
        (tables, state), (expected, expected_state) = (
            tables_and_state(out, seed),
            tables_and_state(undisturbed, seed),
        )
        assert tables == expected
        assert differing(state, expected_state) == []


def at_call(number, original, then):
    """A wrapper of `original` that calls `then` instead in call number `number`."""
    calls = []

    def wrapped(*args, **kwargs):
        calls.append(1)
        return (then if len(calls) == number else original)(*args, **kwargs)

    return wrapped


def newest(out, seed):
    return checkpoint.load(folder(out, seed) / "checkpoint")["agent_steps"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    assert train(out)[0] == 0
    return out


# --- a batch is killed between the checkpoints of its runs
# ---------------------------------------------------------------

# number of the save before which the process is killed -> newest checkpoints of both runs, and the
# step from which they resume
BETWEEN = {2: (12, 0, 0), 4: (24, 12, 12), 6: (36, 24, 24)}


@pytest.mark.quick("4")
@pytest.mark.parametrize("save", BETWEEN)
def test_resume_after_a_kill_between_two_checkpoints_is_bitwise_equal(
    tmp_path, undisturbed, monkeypatch, save
):
    first, second, resumed = BETWEEN[save]
    with monkeypatch.context() as patch:
        patch.setattr(
            checkpoint.Checkpoints, "save", at_call(save, checkpoint.Checkpoints.save, kill)
        )
        with pytest.raises(Killed):
            train(tmp_path)
    assert newest(tmp_path, 1) == first
    assert second == 0 or newest(tmp_path, 2) == second
    code, _, err = train(tmp_path)
    assert code == 0, err
    assert f"goes back to {resumed} agent steps" in err
    assert_same_end(tmp_path, undisturbed)


def test_corrupt_checkpoint_rewinds_all_runs_of_the_batch(tmp_path, undisturbed):
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    path = max((folder(tmp_path, 2) / "checkpoint").glob("frames/*-00000003-*"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    final = folder(tmp_path, 2) / "final.csv"
    # these returns are those of another agent, so the evaluation must be repeated
    final.write_text(final.read_text().rstrip() + "9\n")
    (folder(tmp_path, 2) / "final.json").unlink()
    assert rows(final) != rows(folder(undisturbed, 2) / "final.csv")
    code, _, err = train(tmp_path)
    assert code == 0, err
    assert err.count("goes back to 24 agent steps") == 2
    assert_same_end(tmp_path, undisturbed)


def test_runs_without_a_common_checkpoint_resume_separately(tmp_path, undisturbed):
    """A seed is added later, when the first run has finished."""
    shutil.copytree(folder(undisturbed, 1), folder(tmp_path, 1))
    before = (folder(tmp_path, 1) / "train.csv").stat().st_mtime_ns
    code, _, err = train(tmp_path)
    assert code == 0, err
    assert "goes back" not in err
    assert (folder(tmp_path, 1) / "train.csv").stat().st_mtime_ns == before, "it was finished"
    assert rows(folder(tmp_path, 2) / "eval.csv")[-1]["env_steps"] == "36"
    assert len(rows(folder(tmp_path, 2) / "final.csv")) == 1


def test_a_larger_budget_continues_finished_runs_as_a_batch(tmp_path, undisturbed, monkeypatch):
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    batches, inner = [], BatchedLearner.step
    monkeypatch.setattr(
        BatchedLearner,
        "step",
        lambda self, *rest: batches.append(len(self.runs)) or inner(self, *rest),
    )
    code, _, err = train(tmp_path, "--env-steps", "40")
    assert code == 0, err
    assert batches == [2] * 4
    assert [newest(tmp_path, seed) for seed in SEEDS] == [40, 40]


def rewind(checkpoints, agent_steps):
    checkpoints.load(agent_steps=agent_steps)
    checkpoints.discard_later(agent_steps)


def test_files_of_discarded_checkpoints_are_removed(tmp_path, undisturbed):
    """They may be hard links of files in a copy, which must not change."""
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    own = checkpoint.Checkpoints(folder(tmp_path) / "checkpoint")
    chunk = max(own.folder.glob("frames/*-00000003-*"))
    rewind(own, 24)
    assert own.steps() == {24: 2}
    assert not chunk.exists()
    rewind(own, 12)
    assert own.steps() == {24: 2}, "that one was pruned before: nothing happens"


# --- signals
# -------------------------------------------------------------------------------------------------------------

# owner, function and call number that gets the signal, and the step at which each run is saved
PHASES = {
    "before the first step": (trainer, "make_agent", 1, 0, 0),
    "warm-up": (BatchedLearner, "act", 5, 5, 5),
    "an update": (BatchedLearner, "learn", 20, 20, 20),
    "the evaluation of the first run": (loop.TrainingRun, "_start_evaluation", 1, 12, 12),
    "the evaluation of the second run": (loop.TrainingRun, "_start_evaluation", 2, 12, 12),
    "the last evaluation of the second run": (loop.TrainingRun, "_start_evaluation", 6, 36, 36),
    "a checkpoint": (checkpoint, "index_bytes", 3, 24, 24),
    "the final evaluation of the first run": (trainer, "final_evaluation", 1, None, None),
    "the final evaluation of the second run": (trainer, "final_evaluation", 2, None, None),
}


@pytest.mark.quick("the evaluation of the second run")
@pytest.mark.parametrize("phase", PHASES)
def test_resume_after_a_signal_in_any_phase_is_bitwise_equal(
    tmp_path, undisturbed, monkeypatch, phase
):
    owner, name, number, *saved = PHASES[phase]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, signalled(getattr(owner, name), number))
        code, _, err = train(tmp_path)
    assert code == 75
    reported_steps = [
        int(line.split()[2]) for line in err.splitlines() if line.startswith("stopped at")
    ]
    assert reported_steps == [steps for steps in saved if steps is not None]
    assert ("stopped in the final evaluation" in err) == (None in saved)
    code, _, err = train(tmp_path)
    assert code == 0, err
    assert "goes back" not in err, "a signal loses nothing"
    assert_same_end(tmp_path, undisturbed)


def test_a_run_stopped_in_its_evaluation_stays_in_the_batch(tmp_path, undisturbed, monkeypatch):
    """It resumes from the checkpoint at which its evaluation began, the others from later steps."""
    save_before_stop = loop.TrainingRun.save_before_stop
    with monkeypatch.context() as patch:
        patch.setattr(BatchedLearner, "learn", signalled(BatchedLearner.learn, 17))
        patch.setattr(
            loop.TrainingRun,
            "save_before_stop",
            lambda self, *rest: None if self.learner.index else save_before_stop(self, *rest),
        )
        assert train(tmp_path)[0] == 75
    assert (newest(tmp_path, 1), newest(tmp_path, 2)) == (17, 12)
    assert train(tmp_path)[0] == 0
    assert_same_end(tmp_path, undisturbed)


# --- numbers that are no longer finite
# -----------------------------------------------------------------------------------


def poisoned(patch, updates, run=0):
    """Set the weights of one run to NaN before this update."""
    inner = BatchedLearner.learn

    def learn(self, *rest):
        if self.runs[run].updates == updates:
            self.algorithm.rows["online"].data[run] = float("nan")
        return inner(self, *rest)

    patch.setattr(BatchedLearner, "learn", learn)


def test_a_failed_run_leaves_the_batch_and_can_resume_later(tmp_path, undisturbed, monkeypatch):
    with monkeypatch.context() as patch:
        poisoned(patch, 5)
        code, stdout, err = train(tmp_path)
    assert code == 1
    assert "q_loss is nan at 20 env steps" in err
    assert stdout.split() == [str(folder(tmp_path, 2))]
    assert_same_end(tmp_path, undisturbed, (2,))
    code, stdout, err = train(tmp_path)
    assert (code, stdout.split()) == (1, [str(folder(tmp_path, 2))]), err
    assert (
        f"warning: run skipped: this run failed before, see {folder(tmp_path) / 'failure'}" in err
    )
    shutil.rmtree(folder(tmp_path) / "failure")
    code, _, err = train(tmp_path)
    assert code == 0, err
    assert_same_end(tmp_path, undisturbed)


# --- one of the runs is refused
# ------------------------------------------------------------------------------------------


def files_of(out):
    return {path: content for path, content in contents(out).items() if not path.endswith("/lock")}


def locked(own):
    return folder_lock(own)


@contextlib.contextmanager
def without_a_good_checkpoint(own):
    for path in own.glob("checkpoint/0*/index.json"):
        path.write_text("{}")
    yield


@contextlib.contextmanager
def of_another_config(own):
    path = own / "config.json"
    path.write_text(path.read_text().replace('"seed": 2', '"seed": 7'))
    yield


@contextlib.contextmanager
def without_its_evaluations(own):
    (own / "eval.csv").unlink()
    yield


REFUSED = {
    "is training in": locked,
    "no checkpoint in": without_a_good_checkpoint,
    "holds a run of another config": of_another_config,
    "cannot go on with": without_its_evaluations,
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_batch_refused_for_one_run_changes_no_files(tmp_path, undisturbed, monkeypatch, why):
    """Seed 1 is one checkpoint ahead of seed 2, so it would go back; seed 3 is new."""
    monkeypatch.setattr(atomic_files, "LOCK_GRACE_SECONDS", 0.0)
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    rewind(checkpoint.Checkpoints(folder(tmp_path, 2) / "checkpoint"), 24)
    with REFUSED[why](folder(tmp_path, 2)):
        before = files_of(tmp_path)
        for seeds in ((1, 2), (3, 1, 2)):
            code, _, err = train(tmp_path, seeds=seeds)
            assert (code, err.count("Traceback")) == (2, 0), err
            assert why in err.splitlines()[-1]
            assert "goes back" not in err
            assert files_of(tmp_path) == before
