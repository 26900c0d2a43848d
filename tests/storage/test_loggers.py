"""Programs that show a run: what they get, that a resumed run goes on in the same place, and that
none of it can change a run or end it."""

import importlib.machinery
import json
import sqlite3
import sys
import types

import pytest

import rainbow_inputs
from cclf.errors import ConfigError
from cclf.storage.loggers import TRACKER_FILE, RunLog, hyperparameters, make_loggers
from cclf.storage.tables import rows_to_keep
from test_cli import assert_refused, cclf
from tiny_runs import rows, run, tables, tiny_config, tiny_options


class Stand:
    """Stands for trackio or wandb: keeps what it is given, by the name or id of the run."""

    def __init__(self):
        self.runs, self.begun, self.finished, self.fails_at = {}, [], 0, None

    def init(self, *, name, config, **options):
        print("* a line for people")
        identity = options.get("id", name)
        self.begun.append({"name": name, "config": config, **options})
        return StandRun(self, self.runs.setdefault(identity, []))


class StandRun:
    offline, dir = True, "/somewhere/offline-run/files"

    def __init__(self, stand, shown):
        self.stand, self.shown, self.metrics = stand, shown, []

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))

    def log(self, values, step=None):
        if self.stand.fails_at is not None and len(self.shown) >= self.stand.fails_at:
            raise ConnectionError("the service is\nnot there")
        self.shown.append((values["env_steps"] if step is None else step, values))

    def finish(self):
        self.stand.finished += 1


@pytest.fixture
def stand(monkeypatch):
    """Both packages, as if they were installed."""
    stand = Stand()
    for name in ("trackio", "wandb"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.init, module.Video = stand.init, lambda path, format: (path, format)
        module.Settings = dict
        monkeypatch.setitem(sys.modules, name, module)
    return stand


def write(config, folder, since=0, until=60, killed=False):
    """What a run writes that goes on after `since`, and is killed or stops after `until`."""
    kept = rows_to_keep(folder, since, False, {})
    log = RunLog(folder, ("loss",), make_loggers(config, folder, since), kept)
    for step in range(since + 10, until + 1, 10):
        clocks = {"env_steps": step, "agent_steps": step, "updates": step}
        log.write("train", clocks | {"episodes": 1, "loss": step / 7})
        if step % 30 == 0:
            log.write("eval", clocks | {"return_mean": 1.5, "episodes": 1, "returns": "1.5"})
    if not killed:
        log.close()


def steps(shown, name):
    return [step for step, values in shown if name in values]


TRAIN, EVAL = "train/episodes", "eval/return_mean"


def test_a_tracker_gets_the_rows_of_a_run_and_changes_none(tmp_path, stand):
    """Stopped on the way, and gone on with."""
    plain, tracked = tmp_path / "plain", tmp_path / "tracked"
    run(tiny_config(), plain)
    config = tiny_config(tracker="trackio", video=True)
    assert not run(config, tracked, stop_at=35)[1]
    assert run(config, tracked)[1]
    assert (tracked / "train.csv").read_bytes() == (plain / "train.csv").read_bytes()
    assert tables(tracked) == tables(plain)
    ((shown),) = stand.runs.values()
    assert steps(shown, TRAIN) == [10, 20, 30, 40, 50, 60]
    assert steps(shown, EVAL) == [30, 60]
    losses = [values["train/critic_loss"] for _, values in shown if "train/critic_loss" in values]
    said = [float(row["critic_loss"]) for row in rows(plain / "train.csv") if row["critic_loss"]]
    assert losses == pytest.approx(said, rel=1e-6)
    assert steps(shown, "speed/env_steps_per_second") == [20, 30, 50, 60], "since the row before"
    assert steps(shown, "eval/episode") == [60]
    assert dict(shown)[60]["eval/episode"] == (str(tracked / "episode-60.mp4"), "mp4")
    assert [begun["config"] for begun in stand.begun] == [hyperparameters(config)] * 2
    assert stand.begun[0]["config"]["algorithm.hidden_dim"] == 16
    assert stand.begun[0]["project"] == "cclf"
    assert config.run_name() in stand.begun[0]["name"]
    assert stand.finished == 2


def test_weights_and_biases_draws_over_environment_steps(tmp_path, stand):
    """Its own counter must grow, and an evaluation beside training ends after later rows."""
    config = tiny_config(tracker="wandb")
    (logger,) = make_loggers(config, tmp_path, 0)
    assert logger._run.metrics == [("env_steps", None), ("*", "env_steps")]
    logger.log({"env_steps": 40, "agent_steps": 20, "updates": 3}, {"train/x": 1.0})
    logger.log({"env_steps": 30, "agent_steps": 15, "updates": 2}, {"eval/x": 1.0})
    (shown,) = stand.runs.values()
    assert shown[1][1] == {"env_steps": 30, "agent_steps": 15, "updates": 2, "eval/x": 1.0}
    assert stand.begun[0]["reinit"] == "create_new", "runs of one process do not end each other"


def assert_each_row_once(stand):
    (shown,) = stand.runs.values()
    assert steps(shown, TRAIN) == [10, 20, 30, 40, 50, 60]
    assert steps(shown, EVAL) == [30, 60]
    assert [values["train/loss"] for _, values in shown if TRAIN in values] == pytest.approx(
        [step / 7 for step in steps(shown, TRAIN)]
    )


@pytest.mark.parametrize("tracker", ["trackio", "wandb"])
def test_a_stopped_run_goes_on_in_the_same_tracked_run(tmp_path, stand, tracker):
    config = tiny_config(tracker=tracker)
    write(config, tmp_path, until=30)
    write(config, tmp_path, since=30)
    assert [begun["resume"] for begun in stand.begun] == ["allow", "allow"]
    assert_each_row_once(stand)


@pytest.mark.parametrize("tracker", ["trackio", "wandb"])
def test_run_resumed_after_a_kill_goes_on_in_the_same_tracked_run(tmp_path, stand, tracker):
    """Rows after the checkpoint of step 30 are written again, with the same values."""
    config = tiny_config(tracker=tracker)
    write(config, tmp_path, until=50, killed=True)
    write(config, tmp_path, since=30)
    ((shown),) = stand.runs.values()
    assert steps(shown, TRAIN) == [10, 20, 30, 40, 50, 40, 50, 60]


def test_a_run_that_begins_again_is_another_tracked_run(tmp_path, stand):
    """Without a checkpoint its code may have changed: two runs must not share a curve."""
    config = tiny_config(tracker="trackio")
    write(config, tmp_path, until=20, killed=True)
    write(config, tmp_path)
    first, second = stand.runs.values()
    assert steps(first, TRAIN) == [10, 20]
    assert steps(second, TRAIN) == [10, 20, 30, 40, 50, 60]


def test_tracker_that_fails_is_dropped_until_the_next_start(tmp_path, stand, capsys):
    config = tiny_config(tracker="trackio")
    stand.fails_at = 2
    write(config, tmp_path, until=40)
    why = "ConnectionError: the service is not there"
    line = f"cclf: warning: trackio failed, the run goes on without it: {why}\n"
    assert capsys.readouterr().err.endswith(line)
    assert len(rows(tmp_path / "train.csv")) == 4
    stand.fails_at = None
    write(config, tmp_path, since=40)
    ((shown),) = stand.runs.values()
    assert steps(shown, TRAIN) == [10, 20, 50, 60]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("logger", ["wandb", "tensorboard"])
def test_logger_that_is_added_later_begins_at_the_checkpoint(tmp_path, stand, logger, killed):
    write(tiny_config(), tmp_path, until=50 if killed else 30, killed=killed)
    if logger == "wandb":
        write(tiny_config(tracker="wandb"), tmp_path, since=30)
        ((shown),) = stand.runs.values()
        found = steps(shown, TRAIN)
    else:
        write(tiny_config(tensorboard=True), tmp_path, since=30)
        found = steps_in_tensorboard(tmp_path, TRAIN)
    assert found == [40, 50, 60]


def test_a_tracker_that_cannot_finish_does_not_fail_a_run(tmp_path, stand, monkeypatch, capsys):
    def finish(_):
        raise TimeoutError("too late")

    monkeypatch.setattr(StandRun, "finish", finish)
    write(tiny_config(tracker="wandb"), tmp_path)
    assert "wandb failed, the run goes on without it: TimeoutError" in capsys.readouterr().err
    assert_each_row_once(stand)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '{"tracker": "trackio", "id": "../../x"}',
        '{"tracker": "wandb", "id": "0123abcd"}',
        '{"tracker": "trackio", "id": 1}',
    ],
)
def test_a_file_that_names_no_tracked_run_of_ours_is_replaced(tmp_path, stand, text):
    (tmp_path / TRACKER_FILE).write_text(text)
    make_loggers(tiny_config(tracker="trackio"), tmp_path, 30)
    written = json.loads((tmp_path / TRACKER_FILE).read_text())
    assert written["id"] != "0123abcd"
    assert stand.begun[0]["name"].endswith(written["id"])


def raising(**_):
    raise ConnectionError("no network")


@pytest.mark.usefixtures("stand")
@pytest.mark.parametrize("tracker", ["trackio", "wandb"])
def test_a_tracker_that_does_not_start_is_refused_before_the_first_step(tmp_path, tracker):
    sys.modules[tracker].init = raising
    with pytest.raises(ConfigError, match=f"{tracker} did not start: ConnectionError: no network"):
        make_loggers(tiny_config(tracker=tracker), tmp_path, 0)


@pytest.mark.usefixtures("stand")
def test_a_tracker_that_does_not_start_again_does_not_keep_a_run_from_going_on(tmp_path, capsys):
    sys.modules["wandb"].init = raising
    assert make_loggers(tiny_config(tracker="wandb"), tmp_path, 30) == []
    assert "cclf: warning: wandb did not start: ConnectionError" in capsys.readouterr().err


@pytest.mark.parametrize("tracker", ["trackio", "wandb"])
def test_a_tracker_whose_package_is_missing_is_one_line(tmp_path, monkeypatch, tracker):
    monkeypatch.setitem(sys.modules, tracker, None)
    result = cclf("train", *tiny_options(tiny_config(tracker=tracker)), "--out", tmp_path)
    assert_refused(result, f"--tracker {tracker} needs {tracker}: pip install 'cclf[{tracker}]'")
    assert not list(tmp_path.iterdir())


def test_seeds_of_one_process_are_tracked_apart_and_only_folders_are_printed(tmp_path, stand):
    config = rainbow_inputs.tiny_cclf(tracker="trackio", env_steps=30, log_every_agent_steps=10)
    words = ["train", *tiny_options(config), "--with-seeds", "2", "--out", tmp_path]
    code, out, err = cclf(*words)
    assert code == 0, err
    assert len(out.splitlines()) == 2
    assert "a line for people" not in out
    assert err.count("tracked by trackio: trackio show --project cclf\n") == 2
    assert [steps(shown, TRAIN) for shown in stand.runs.values()] == [[10, 20, 30]] * 2
    assert stand.finished == 2


def test_nothing_is_imported_that_was_not_asked_for(tmp_path, monkeypatch):
    for name in ("trackio", "wandb", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    assert make_loggers(tiny_config(), tmp_path, 0) == []


# --- TensorBoard


def tensorboard_events(folder):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("torch.utils.tensorboard")
    board = events.EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    return board


def steps_in_tensorboard(folder, name):
    return [event.step for event in tensorboard_events(folder).Scalars(name)]


@pytest.mark.parametrize("killed", [False, True])
def test_tensorboard_shows_each_row_once_after_a_resume(tmp_path, killed):
    config = tiny_config(tensorboard=True)
    pytest.importorskip("tensorboard")
    write(config, tmp_path, until=50 if killed else 30)  # flushed, also if rows are to be lost
    write(config, tmp_path, since=30)
    assert steps_in_tensorboard(tmp_path, "train/loss") == [10, 20, 30, 40, 50, 60]
    assert steps_in_tensorboard(tmp_path, EVAL) == [30, 60]


def test_tensorboard_shows_options_and_speed(tmp_path):
    pytest.importorskip("tensorboard")
    config = tiny_config(tensorboard=True)
    write(config, tmp_path)
    board = tensorboard_events(tmp_path)
    text = board.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| algorithm.hidden_dim | 16 |" in text
    speed = board.Scalars("speed/env_steps_per_second")
    assert [event.step for event in speed] == [20, 30, 40, 50, 60], "since the row before"
    assert all(0 < event.value < 1e6 for event in speed)


def test_options_that_do_nothing_are_no_hyperparameters():
    assert "method.bonus_temperature" in hyperparameters(tiny_config())
    assert "method.bonus_temperature" not in hyperparameters(tiny_config(method="drq"))


# --- the packages themselves, where they are installed


def test_trackio_itself_goes_on_with_a_run(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    # it reads its folder when it is imported
    for name in [name for name in sys.modules if name.split(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    config = tiny_config(tracker="trackio")
    write(config, tmp_path, until=30)
    write(config, tmp_path, since=30)
    (database,) = (tmp_path / "trackio").glob("cclf.db")
    found = (
        sqlite3.connect(database).execute("SELECT run_id, step, metrics FROM metrics").fetchall()
    )
    assert len({identity for identity, _, _ in found}) == 1
    assert sorted(step for _, step, text in found if TRAIN in json.loads(text)) == [
        10,
        20,
        30,
        40,
        50,
        60,
    ]
    assert sorted(step for _, step, text in found if EVAL in json.loads(text)) == [30, 60]


def test_trackio_itself_keeps_two_runs_of_one_process_going(tmp_path, monkeypatch):
    """It ends the run that is current when another begins."""
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    from trackio.run import Run

    ended = []
    monkeypatch.setattr(Run, "finish", lambda run: ended.append(run))
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        make_loggers(tiny_config(tracker="trackio", seed=seed), tmp_path / str(seed), 0)
    assert not ended


def test_wandb_itself_goes_on_with_a_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    config = tiny_config(tracker="wandb")
    write(config, tmp_path, until=30)
    write(config, tmp_path, since=30)
    identity = json.loads((tmp_path / TRACKER_FILE).read_text())["id"]
    found = sorted(path.name for path in (tmp_path / "wandb").glob("offline-run-*"))
    assert len(found) == 2
    assert all(name.endswith(identity) for name in found)
