"""CSV files of a run: fixed columns, rows up to the checkpoint on resume; means of metrics that survive a
checkpoint."""

import pytest
import torch

from cclf.storage.loggers import RunLog, TensorBoard
from cclf.storage.tables import EVAL_COLUMNS, STEP_COLUMNS, CsvTable, rows_until
from cclf.training.loop import MetricAccumulator
from tiny_runs import rows


def test_columns_that_programs_rely_on_are_there():
    required = {"return_mean", "return_std", "episodes", "wall_seconds"}
    assert required <= set(EVAL_COLUMNS)
    assert EVAL_COLUMNS[:3] == STEP_COLUMNS == ("env_steps", "agent_steps", "updates")


def write_steps(table, steps):
    for step in steps:
        table.write({"env_steps": step, "value": step / 3})


@pytest.mark.parametrize("resume", [0, 9, 10, 25, 40, 99])
def test_resumed_table_has_the_rows_up_to_the_checkpoint(tmp_path, resume):
    path, columns = tmp_path / "t.csv", ("env_steps", "value")
    table = CsvTable(path, columns)
    for step in (10, 20, 30, 40):
        write_steps(table, [step])
        assert rows(path)[-1]["env_steps"] == str(step), "each row is written at once"
    table.close()
    whole = path.read_text()
    again = CsvTable(path, columns, rows_until(tmp_path, "t", resume))
    kept = [step for step in (10, 20, 30, 40) if step <= resume]
    assert [int(row["env_steps"]) for row in rows(path)] == kept
    write_steps(again, [step for step in (10, 20, 30, 40) if step > resume])
    again.close()
    assert path.read_text() == whole
    assert [each.name for each in tmp_path.iterdir()] == ["t.csv"]


def test_incomplete_row_is_removed(tmp_path):
    """The first half of 1250 is 12, which looks like a row before the checkpoint."""
    path = tmp_path / "t.csv"
    path.write_text("env_steps,value\n10,1\n20,2\n12")
    CsvTable(path, ("env_steps", "value"), rows_until(tmp_path, "t", 100)).close()
    assert path.read_text() == "env_steps,value\n10,1\n20,2\n"


def test_missing_values_are_empty_and_floats_keep_eight_digits(tmp_path):
    table = CsvTable(tmp_path / "t.csv", ("env_steps", "value", "other"))
    table.write({"env_steps": 1_000_000, "value": 1 / 3, "not a column": 1})
    table.close()
    assert (tmp_path / "t.csv").read_text() == "env_steps,value,other\n1000000,0.33333333,\n"


def test_log_writes_both_tables_and_finite_values_to_its_loggers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = RunLog(tmp_path, ("loss",), [TensorBoard(tmp_path, {}, 0)])
    first = {"env_steps": 8, "agent_steps": 2, "updates": 1}
    second = {"env_steps": 16, "agent_steps": 4, "updates": 3}
    log.write("train", first | {"episodes": 0, "loss": 0.5})
    log.write("train", second | {"episodes": 0, "loss": float("nan")})
    log.write("eval", second | {"return_mean": 7.5, "returns": "7 8"})
    log.close()
    row = rows(tmp_path / "train.csv")[0]
    assert (row["loss"], row["episode_return"]) == ("0.5", "")
    assert rows(tmp_path / "eval.csv")[0]["return_mean"] == "7.5"
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    values = {
        name: [(e.step, e.value) for e in board.Scalars(name)] for name in board.Tags()["scalars"]
    }
    assert values["train/loss"] == [(8, 0.5)]
    assert values["eval/return_mean"] == [(16, 7.5)]


# --- means of metrics


def losses(*values):
    return [{"loss": torch.tensor(value)} for value in values]


def mean_of(*metrics):
    accumulator = MetricAccumulator()
    for each in metrics:
        accumulator.add(each)
    means = accumulator.mean_and_reset()
    assert accumulator.mean_and_reset() == {}
    return means


def test_means_are_over_the_updates_since_the_last_row():
    assert mean_of() == {}
    rare = {"rare": torch.tensor(5.0)}
    assert mean_of(*losses(1.0, 2.0, 6.0), rare) == {"loss": 3.0, "rare": 5.0}
    # in float64, since float32 would lose the last digit
    large = losses(*[16_777_216.0] * 3, 16_777_220.0)
    assert mean_of(*large) == {"loss": 16_777_217.0}


def test_means_survive_a_checkpoint_and_a_change_of_device():
    accumulator, resumed = MetricAccumulator(), MetricAccumulator()
    for metrics in losses(0.1, 0.7):
        accumulator.add(metrics)
    resumed.load_state_dict(accumulator.state_dict())
    for each in (accumulator, resumed):
        each.add(*losses(0.3))
    assert accumulator.mean_and_reset() == resumed.mean_and_reset()
    resumed.load_state_dict({"loss": torch.tensor([1.0, 2.0])})
    # stands for a GPU: mixing devices is an error there too
    resumed.add({"loss": torch.tensor(3.0, device="meta")})
    assert [value.device.type for value in resumed._values["loss"]] == ["meta"] * 3


def test_adding_metrics_does_not_wait_for_the_device():
    class Unreadable(torch.Tensor):
        def __float__(self):
            raise AssertionError("it waits")

        item = __float__

    MetricAccumulator().add({"loss": torch.tensor(1.0).as_subclass(Unreadable)})
