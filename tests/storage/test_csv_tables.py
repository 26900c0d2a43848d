"""CSV files are the truth: fixed columns, cut back on resume; averages that survive a
checkpoint."""

import pytest
import torch

from cclf.storage.loggers import RunLog, TensorBoard
from cclf.storage.tables import CLOCK_COLUMNS, EVAL_COLUMNS, CsvTable, rows_until
from cclf.training.loop import MetricAccumulator
from tiny_runs import rows

REQUIRED = (
    "env_steps",
    "agent_steps",
    "updates",
    "return_mean",
    "return_std",
    "episodes",
    "wall_seconds",
)


def test_the_columns_that_programs_rely_on():
    assert set(REQUIRED) <= set(EVAL_COLUMNS)
    assert EVAL_COLUMNS[:3] == CLOCK_COLUMNS


def write_steps(table, steps):
    for step in steps:
        table.write({"env_steps": step, "value": step / 3})


def test_a_reopened_table_forgets_what_came_after_the_checkpoint(tmp_path):
    path = tmp_path / "t.csv"
    table = CsvTable(path, ("env_steps", "value"))
    write_steps(table, [10, 20, 30, 40])
    table.close()
    undisturbed = path.read_text()
    again = CsvTable(path, ("env_steps", "value"), rows_until(tmp_path, "t", 25))
    assert [row["env_steps"] for row in rows(path)] == ["10", "20"]
    write_steps(again, [30, 40])
    again.close()
    assert path.read_text() == undisturbed
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize(
    ("resume", "kept"),
    [
        (0, []),
        (9, []),
        (10, ["10"]),
        (40, ["10", "20", "30", "40"]),
        (99, ["10", "20", "30", "40"]),
    ],
)
def test_a_row_of_the_checkpoints_own_step_stays(tmp_path, resume, kept):
    path = tmp_path / "t.csv"
    table = CsvTable(path, ("env_steps", "value"))
    write_steps(table, [10, 20, 30, 40])
    table.close()
    CsvTable(path, ("env_steps", "value"), rows_until(tmp_path, "t", resume)).close()
    assert [row["env_steps"] for row in rows(path)] == kept


def test_every_row_is_on_disk_at_once(tmp_path):
    table = CsvTable(tmp_path / "t.csv", ("env_steps", "value"))
    for count in (1, 2, 3):
        write_steps(table, [count])
        assert len(rows(tmp_path / "t.csv")) == count
    table.close()


def test_missing_values_are_empty_and_floats_keep_eight_digits(tmp_path):
    table = CsvTable(tmp_path / "t.csv", ("env_steps", "value", "other"))
    table.write({"env_steps": 1_000_000, "value": 1 / 3, "not a column": 1})
    table.close()
    assert (tmp_path / "t.csv").read_text() == "env_steps,value,other\n1000000,0.33333333,\n"


def test_averages_are_means_since_the_last_row():
    averages = MetricAccumulator()
    assert averages.mean_and_reset() == {}
    averages.add({"loss": torch.tensor(1.0), "rare": torch.tensor(5.0)})
    averages.add({"loss": torch.tensor(2.0)})
    averages.add({"loss": torch.tensor(6.0)})
    assert averages.mean_and_reset() == {"loss": 3.0, "rare": 5.0}
    assert averages.mean_and_reset() == {}


def test_averages_of_large_numbers_do_not_lose_digits():
    averages = MetricAccumulator()
    for _ in range(3):
        averages.add({"q": torch.tensor(16_777_216.0)})
    averages.add({"q": torch.tensor(16_777_220.0)})
    assert averages.mean_and_reset() == {"q": 16_777_217.0}


def test_averages_survive_a_checkpoint():
    ours, theirs = MetricAccumulator(), MetricAccumulator()
    ours.add({"loss": torch.tensor(0.1)})
    ours.add({"loss": torch.tensor(0.7), "rare": torch.tensor(1.0)})
    theirs.load_state_dict(ours.state_dict())
    for averages in (ours, theirs):
        averages.add({"loss": torch.tensor(0.3)})
    assert ours.mean_and_reset() == theirs.mean_and_reset()


def test_adding_never_asks_the_device():
    class Shy(torch.Tensor):
        def __float__(self):
            raise AssertionError("a stall")

        def item(self):
            raise AssertionError("a stall")

    averages = MetricAccumulator()
    averages.add({"loss": torch.tensor(1.0).as_subclass(Shy)})


def test_a_run_log_has_both_tables_and_a_mirror(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = RunLog(tmp_path, ("loss",), [TensorBoard(tmp_path, {}, 0)])
    log.write("train", {"env_steps": 8, "agent_steps": 2, "updates": 1, "episodes": 0, "loss": 0.5})
    log.write(
        "train",
        {"env_steps": 16, "agent_steps": 4, "updates": 3, "episodes": 0, "loss": float("nan")},
    )
    log.write(
        "eval",
        {"env_steps": 16, "agent_steps": 4, "updates": 3, "return_mean": 7.5, "returns": "7 8"},
    )
    log.close()
    assert rows(tmp_path / "train.csv")[0]["loss"] == "0.5"
    assert rows(tmp_path / "train.csv")[0]["episode_return"] == ""
    assert rows(tmp_path / "eval.csv")[0]["return_mean"] == "7.5"
    mirror = EventAccumulator(str(tmp_path / "tensorboard"))
    mirror.Reload()
    assert [(event.step, event.value) for event in mirror.Scalars("train/loss")] == [(8, 0.5)]
    assert [(event.step, event.value) for event in mirror.Scalars("eval/return_mean")] == [
        (16, 7.5)
    ]


def test_averages_of_a_checkpoint_follow_the_device_that_goes_on():
    averages = MetricAccumulator()
    averages.load_state_dict({"loss": torch.tensor([1.0, 2.0])})
    # stands for a GPU: mixing devices is an error there, too
    averages.add({"loss": torch.tensor(3.0, device="meta")})
    state = averages.state_dict()["loss"]
    assert (state.device.type, state.shape) == ("meta", (3,))
