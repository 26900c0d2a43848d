"""Loggers: the rows that they receive, resumed runs, and errors of loggers, which neither change
nor end a run."""

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

TRAIN, EVAL = "train/episodes", "eval/return_mean"


class Service:
    """Takes the place of trackio and wandb: `runs` maps the name or id of a run to its rows (step,
    values)."""

    def __init__(self):
        self.runs, self.inits, self.finished, self.fails_at = {}, [], 0, None

    def init(self, *, name, config, **options):
        print("a line of the library")
        self.inits.append({"name": name, "config": config, **options})
        return ServiceRun(self, self.runs.setdefault(options.get("id", name), []))


class ServiceRun:
    offline, dir = True, "/somewhere/offline-run/files"

    def __init__(self, service, logged):
        self.service, self.logged, self.metrics = service, logged, []

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))

    def log(self, values, step=None):
        if self.service.fails_at is not None and len(self.logged) >= self.service.fails_at:
            raise ConnectionError("the service is\nnot there")
        self.logged.append((values["env_steps"] if step is None else step, values))

    def finish(self):
        self.service.finished += 1


@pytest.fixture
def service(monkeypatch):
    """Both packages, as if they were installed."""
    service = Service()
    for name in ("trackio", "wandb"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.init, module.Video = service.init, lambda path, format: (path, format)
        module.Settings = dict
        monkeypatch.setitem(sys.modules, name, module)
    return service


def write(config, folder, since=0, until=60, killed=False):
    """The rows of a run that resumes at `since`, and is killed or stops after `until`."""
    kept = rows_to_keep(folder, since, False, {})
    log = RunLog(folder, ("loss",), make_loggers(config, folder, since), kept)
    for step in range(since + 10, until + 1, 10):
        counters = {"env_steps": step, "agent_steps": step, "updates": step}
        log.write("train", counters | {"episodes": 1, "loss": step / 7})
        if step % 30 == 0:
            log.write("eval", counters | {"return_mean": 1.5, "episodes": 1, "returns": "1.5"})
    if not killed:
        log.close()


def steps(logged, name):
    return [step for step, values in logged if name in values]


def tensorboard_events(folder):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = events.EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    return board


def steps_in_tensorboard(folder, name):
    return [event.step for event in tensorboard_events(folder).Scalars(name)]


def test_tracker_gets_the_rows_of_a_stopped_and_resumed_run_and_changes_none(tmp_path, service):
    plain, tracked = tmp_path / "plain", tmp_path / "tracked"
    run(tiny_config(), plain)
    config = tiny_config(tracker="trackio", video=True)
    assert not run(config, tracked, stop_at=35)[1]
    assert run(config, tracked)[1]
    assert (tracked / "train.csv").read_bytes() == (plain / "train.csv").read_bytes()
    assert tables(tracked) == tables(plain)
    (logged,) = service.runs.values()
    assert steps(logged, TRAIN) == [10, 20, 30, 40, 50, 60]
    assert steps(logged, EVAL) == [30, 60]
    losses = [values["train/critic_loss"] for _, values in logged if "train/critic_loss" in values]
    written = [float(row["critic_loss"]) for row in rows(plain / "train.csv") if row["critic_loss"]]
    assert losses == pytest.approx(written, rel=1e-6)
    assert steps(logged, "speed/env_steps_per_second") == [20, 30, 50, 60], "since the row before"
    assert dict(logged)[60]["eval/episode"] == (str(tracked / "episode-60.mp4"), "mp4")
    assert [each["config"] for each in service.inits] == [hyperparameters(config)] * 2
    first = service.inits[0]
    assert (first["config"]["algorithm.hidden_dim"], first["project"]) == (16, "cclf")
    assert config.run_name() in first["name"]
    assert service.finished == 2


def test_wandb_plots_over_environment_steps(tmp_path, service):
    """The counter of wandb must grow, but an evaluation that runs during training ends after later
    rows."""
    (logger,) = make_loggers(tiny_config(tracker="wandb"), tmp_path, 0)
    assert logger._run.metrics == [("env_steps", None), ("*", "env_steps")]
    counters = {"env_steps": 30, "agent_steps": 15, "updates": 2}
    logger.log({"env_steps": 40, "agent_steps": 20, "updates": 3}, {"train/x": 1.0})
    logger.log(counters, {"eval/x": 1.0})
    (logged,) = service.runs.values()
    assert logged[1][1] == counters | {"eval/x": 1.0}
    assert service.inits[0]["reinit"] == "create_new", "runs of one process do not end each other"


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("logger", ["trackio", "wandb", "tensorboard"])
def test_resumed_run_is_logged_to_the_same_place(tmp_path, service, logger, killed):
    """A tracker gets the rows between the last checkpoint and a kill twice, TensorBoard once."""
    board = logger == "tensorboard"
    config = tiny_config(tensorboard=True) if board else tiny_config(tracker=logger)
    write(config, tmp_path, until=60 if killed else 30, killed=killed and not board)
    write(config, tmp_path, since=30)
    once = [10, 20, 30, 40, 50, 60]
    if board:
        assert steps_in_tensorboard(tmp_path, TRAIN) == once
        assert steps_in_tensorboard(tmp_path, EVAL) == [30, 60]
        return
    (logged,) = service.runs.values()
    assert steps(logged, TRAIN) == ([*once, 40, 50, 60] if killed else once)
    assert steps(logged, EVAL) == ([30, 60, 60] if killed else [30, 60])
    losses = [values["train/loss"] for _, values in logged if TRAIN in values]
    assert losses == pytest.approx([step / 7 for step in steps(logged, TRAIN)])


def test_run_that_begins_again_is_another_tracked_run(tmp_path, service):
    """Without a checkpoint the code may have changed, so the two must not share a curve."""
    config = tiny_config(tracker="trackio")
    write(config, tmp_path, until=20, killed=True)
    write(config, tmp_path)
    first, second = service.runs.values()
    assert steps(first, TRAIN) == [10, 20]
    assert steps(second, TRAIN) == [10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize("logger", ["wandb", "tensorboard"])
def test_logger_that_is_added_later_begins_at_the_checkpoint(tmp_path, service, logger):
    write(tiny_config(), tmp_path, until=50, killed=True)
    if logger == "wandb":
        write(tiny_config(tracker="wandb"), tmp_path, since=30)
        ((logged),) = service.runs.values()
        found = steps(logged, TRAIN)
    else:
        write(tiny_config(tensorboard=True), tmp_path, since=30)
        found = steps_in_tensorboard(tmp_path, TRAIN)
    assert found == [40, 50, 60]


# --- errors of loggers


def test_tracker_that_fails_is_dropped_until_the_next_start(tmp_path, service, capsys):
    config = tiny_config(tracker="trackio")
    service.fails_at = 2
    write(config, tmp_path, until=40)
    reason = "ConnectionError: the service is not there"
    line = f"cclf: warning: trackio failed, the run goes on without it: {reason}\n"
    assert capsys.readouterr().err.endswith(line)
    assert len(rows(tmp_path / "train.csv")) == 4
    service.fails_at = None
    write(config, tmp_path, since=40)
    ((logged),) = service.runs.values()
    assert steps(logged, TRAIN) == [10, 20, 50, 60]


def test_tracker_that_cannot_finish_does_not_fail_a_run(tmp_path, service, monkeypatch, capsys):
    def finish(_):
        raise TimeoutError("too late")

    monkeypatch.setattr(ServiceRun, "finish", finish)
    write(tiny_config(tracker="wandb"), tmp_path)
    assert "wandb failed, the run goes on without it: TimeoutError" in capsys.readouterr().err
    assert steps(service.runs.popitem()[1], EVAL) == [30, 60]


@pytest.mark.usefixtures("service")
def test_tracker_that_does_not_start_is_an_error_of_a_new_run_only(tmp_path, capsys):
    def fail(**_):
        raise ConnectionError("no network")

    for tracker in ("trackio", "wandb"):
        config = tiny_config(tracker=tracker)
        sys.modules[tracker].init = fail
        line = f"{tracker} did not start: ConnectionError"
        with pytest.raises(ConfigError, match=line):
            make_loggers(config, tmp_path, 0)
        assert make_loggers(config, tmp_path, 30) == []
        assert f"cclf: warning: {line}" in capsys.readouterr().err


@pytest.mark.parametrize("tracker", ["trackio", "wandb"])
def test_tracker_without_its_package_is_one_line(tmp_path, monkeypatch, tracker):
    monkeypatch.setitem(sys.modules, tracker, None)
    result = cclf("train", *tiny_options(tiny_config(tracker=tracker)), "--out", tmp_path)
    assert_refused(result, f"--tracker {tracker} needs {tracker}: pip install 'cclf[{tracker}]'")
    assert not list(tmp_path.iterdir())


OTHER_FILES = ("", "[1]", '{"tracker": "trackio", "id": "../../x"}', '{"tracker": "trackio"}')


@pytest.mark.parametrize("text", [*OTHER_FILES, '{"tracker": "wandb", "id": "0123abcd"}'])
def test_file_without_the_id_of_this_tracker_is_replaced(tmp_path, service, text):
    (tmp_path / TRACKER_FILE).write_text(text)
    make_loggers(tiny_config(tracker="trackio"), tmp_path, 30)
    written = json.loads((tmp_path / TRACKER_FILE).read_text())
    assert written["id"] != "0123abcd"
    assert service.inits[0]["name"].endswith(written["id"])


def test_seeds_of_one_process_are_tracked_separately_and_only_folders_printed(tmp_path, service):
    config = rainbow_inputs.tiny_cclf(tracker="trackio", env_steps=30, log_every_agent_steps=10)
    words = ["train", *tiny_options(config), "--with-seeds", "2", "--out", tmp_path]
    code, out, err = cclf(*words)
    assert code == 0, err
    assert len(out.splitlines()) == 2
    assert "a line of the library" not in out
    assert err.count("tracked by trackio: trackio show --project cclf\n") == 2
    assert [steps(logged, TRAIN) for logged in service.runs.values()] == [[10, 20, 30]] * 2
    assert service.finished == 2


def test_packages_of_loggers_are_not_imported_unless_used(tmp_path, monkeypatch):
    for name in ("trackio", "wandb", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    assert make_loggers(tiny_config(), tmp_path, 0) == []


def test_tensorboard_shows_active_options_and_speed(tmp_path):
    write(tiny_config(tensorboard=True), tmp_path)
    board = tensorboard_events(tmp_path)
    text = board.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| algorithm.hidden_dim | 16 |" in text
    speed = board.Scalars("speed/env_steps_per_second")
    assert [event.step for event in speed] == [20, 30, 40, 50, 60], "since the row before"
    assert all(0 < event.value < 1e6 for event in speed)
    assert "method.bonus_temperature" in hyperparameters(tiny_config())
    assert "method.bonus_temperature" not in hyperparameters(tiny_config(method="drq"))


# --- the packages themselves, where they are installed


def test_trackio_resumes_a_run(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    # trackio reads the name of its folder when it is imported
    for name in [name for name in sys.modules if name.split(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    config = tiny_config(tracker="trackio")
    write(config, tmp_path, until=30)
    write(config, tmp_path, since=30)
    query = "SELECT run_id, step, metrics FROM metrics"
    found = sqlite3.connect(tmp_path / "trackio" / "cclf.db").execute(query).fetchall()
    assert len({identity for identity, _, _ in found}) == 1
    logged = sorted((step, json.loads(text)) for _, step, text in found if "/" in text)
    assert steps(logged, TRAIN) == [10, 20, 30, 40, 50, 60]
    assert steps(logged, EVAL) == [30, 60]


def test_trackio_runs_of_one_process_do_not_end_each_other(tmp_path, monkeypatch):
    """trackio ends the current run when another one begins."""
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    from trackio.run import Run

    ended = []
    monkeypatch.setattr(Run, "finish", lambda run: ended.append(run))
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        make_loggers(tiny_config(tracker="trackio", seed=seed), tmp_path / str(seed), 0)
    assert not ended


def test_wandb_resumes_an_offline_run(tmp_path, monkeypatch):
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
