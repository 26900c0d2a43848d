"""The Python interface with invalid values, callbacks that fail, and several threads: one clear line,
and no change in what is learned."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cclf
from test_api import TINY, changes, frames_of, same_end, train


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


async def waits(_: Any) -> None:
    pass


def never(_: Any) -> None:
    raise AssertionError("nothing is trained")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> cclf.Run:
    return train(TINY, tmp_path_factory.mktemp("plain"))


def refused(call: Callable[[], Any], *words: str) -> None:
    with pytest.raises(cclf.ConfigError) as error:
        call()
    line = str(error.value)
    assert "\n" not in line
    assert len(line) < 300
    for word in words:
        assert word in line


# --- wrong values
# ------------------------------------------------------------------------------------------------

TEXT, PATH, WHOLE = "must be text", "must be a path", "must be a whole number"
FUNCTION, BOOL = "must be a plain function of one argument", "must be true or false"
NO_NAME = "is not the name of a file or folder"
TRAIN = [
    *(
        ("task", wrong, "not a name such as toy/reach")
        for wrong in (None, 5, [], b"toy/reach-1d", Path("toy/reach-1d"))
    ),
    *(("task", wrong, "not a name such as toy/reach") for wrong in (Unprintable(), object())),
    *(("method", wrong, TEXT) for wrong in (5, [], {}, Unprintable())),
    *(("base", wrong, TEXT) for wrong in (5, [], True)),
    *(("size", wrong, TEXT) for wrong in (5, [])),
    *(("profile", wrong, TEXT) for wrong in (None, 5, [])),
    *(("observe", wrong, "must be one of") for wrong in (None, 5, [], np.zeros(2))),
    *(("seed", wrong, WHOLE) for wrong in (None, "1", 1.5, True, float("nan"), Unprintable())),
    *(("seed", wrong, "must lie in [0,") for wrong in (-1, 2**63, 10**400, 10**5_000)),
    *(("out", wrong, PATH) for wrong in (None, 5, [], b"runs", 1.5)),
    *(("out", wrong, NO_NAME) for wrong in ("", "\0", "a\0b")),
    *(("on_step", wrong, FUNCTION) for wrong in (5, "print", [print], waits)),
    *(("on_evaluation", wrong, FUNCTION) for wrong in (True, {}, waits)),
    *(("env_steps", wrong, "env_steps=") for wrong in (None, "5", float("inf"), 0, 10**400)),
    *(("device", wrong, TEXT) for wrong in (None, 0, torch.device("cpu"))),
    *(("device", wrong, "use cpu, cuda") for wrong in ("cpu:1", "", "meta", "cuda:-1", "\0")),
    *(("video", wrong, BOOL) for wrong in ("no", 1, None)),
]


@pytest.mark.parametrize("argument", sorted({name for name, _, _ in TRAIN}))
def test_train_with_a_wrong_value_refuses_in_one_line(tmp_path: Path, argument: str) -> None:
    words = {"task": "toy/reach-1d", "method": "rad", "out": tmp_path, "on_step": never}
    for name, value, line in TRAIN:
        if name == argument:
            refused(lambda value=value: cclf.train(**words | {argument: value}), argument, line)
    assert not any(tmp_path.iterdir())


def test_train_takes_numbers_of_numpy_and_pytorch(tmp_path: Path, plain: cclf.Run) -> None:
    options = changes(TINY) | {
        "seed": np.int64(1),
        "env_steps": torch.tensor(60),
        "learning_rate": np.float64(TINY.algorithm.learning_rate),
        "video": np.bool_(False),
    }
    run = cclf.train(TINY.task, TINY.method_name, out=tmp_path, **options)
    assert run.config == plain.config
    assert same_end(run.folder, plain.folder)


LOAD = [
    *(("run", wrong, PATH) for wrong in (None, 5, b"x", [], Unprintable())),
    *(("run", wrong, NO_NAME) for wrong in ("", "\0")),
    ("run", Path(__file__).parent, "is not a run folder"),
    *(("device", wrong, TEXT) for wrong in (None, 0, [], torch.device("cpu"))),
    *(("device", wrong, "use cpu, cuda") for wrong in ("cpu:1", "", "\0")),
    *(("seed", wrong, "seed=") for wrong in (-1, "x", None, 1.5, True, [1], 10**400)),
    *(("trust_imports", wrong, BOOL) for wrong in ("no", None, 1)),
]


def test_load_with_a_wrong_value_refuses_in_one_line(plain: cclf.Run) -> None:
    for name, value, line in LOAD:
        words = {"run": plain.folder} | {name: value}
        refused(lambda words=words: cclf.load(**words), name, line)


def test_results_with_a_wrong_value_refuses_in_one_line(plain: cclf.Run) -> None:
    for wrong in (None, 5, b"x", [], [plain.folder]):
        refused(lambda wrong=wrong: cclf.results(wrong), "path=", PATH)
    for wrong in ("", "\0"):
        refused(lambda wrong=wrong: cclf.results(wrong), "path=", NO_NAME)
    for wrong in ("no", None, 5):
        refused(lambda wrong=wrong: cclf.results(plain.folder, pandas=wrong), "pandas=", BOOL)
        refused(lambda wrong=wrong: plain.results(wrong), "pandas=", BOOL)


def test_an_agent_with_a_wrong_value_refuses_in_one_line(plain: cclf.Run) -> None:
    agent, frame = plain.agent("cpu"), frames_of(TINY, 1)[0]
    looped: list[Any] = []
    looped.append(looped)
    unreadable = [
        *([[1], [2, 3]], (frame, {}), looped, torch.zeros(3, 20, 20, requires_grad=True)),
        *(torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1, device="meta")),
    ]
    for wrong in unreadable:
        refused(lambda wrong=wrong: agent.act(wrong), "the observation cannot be read as an array")
    for wrong in (None, "x", {}, frame.astype(complex), frame.astype(object), Unprintable()):
        refused(lambda wrong=wrong: agent.act(wrong), "the observation is ")
    for wrong in (0, -1, 1.5, "x", None, True, 10**9, [1]):
        refused(lambda wrong=wrong: agent.evaluate(wrong), "episodes=")
    for wrong in (-1, 1.5, "x", None, True, 10**400, [1]):
        refused(lambda wrong=wrong: agent.evaluate(1, seed=wrong), "seed=")
    assert agent.evaluate(np.int64(1), seed=np.int64(2)) == agent.evaluate(1, seed=2)


def test_reset_takes_indices_or_booleans_of_rows(plain: cclf.Run) -> None:
    agent, frames = plain.agent("cpu"), frames_of(TINY, 3)
    refused(lambda: agent.reset([0]), "the last batch had 0 rows")
    first = agent.act(frames)
    # Invalid row indices and other invalid values.
    for wrong in ([0.0], "0", 5, [None], [-1], [3], ["a"], {0: 1}, {1}, [[0]], [10**30], b"\0"):
        refused(lambda wrong=wrong: agent.reset(wrong), "the last batch had 3 rows")
    for wrong in ([True], float("nan"), np.array(1), (n for n in [0]), Unprintable()):
        refused(lambda wrong=wrong: agent.reset(wrong), "the last batch had 3 rows")
    for rows in ([], [0], (1,), range(2), np.array([2]), torch.tensor([1]), [True, False, True]):
        agent.reset(rows)
    agent.reset(np.array([True, True, True]))
    assert np.array_equal(agent.act(frames), first)


def test_a_state_that_is_not_finite_is_refused() -> None:
    from cclf.envs.frame_stack import BatchFrameStack
    from cclf.types import EnvSpec

    history = BatchFrameStack(EnvSpec((2,), 1, 1, None), 1)
    for wrong in (float("nan"), float("inf"), 1e300):
        refused(lambda wrong=wrong: history.to_batch(np.array([0.0, wrong])), "not finite")
    assert history.to_batch(np.array([1, 2])).dtype == np.float32


# --- callbacks
# ------------------------------------------------------------------------------------------------


@pytest.mark.quick("on_step")
@pytest.mark.parametrize("name", ["on_step", "on_evaluation"])
def test_stop_iteration_of_a_callback_is_named(tmp_path: Path, name: str, plain: cclf.Run) -> None:
    refused(
        lambda: train(TINY, tmp_path, **{name: lambda _: next(iter(()))}),
        f"{name} raised StopIteration: raise cclf.StopRun to stop the run",
    )
    assert same_end(train(TINY, tmp_path).folder, plain.folder)


@pytest.mark.parametrize("error", [FileNotFoundError, cclf.ConfigError, GeneratorExit, SystemExit])
def test_an_error_of_a_callback_reaches_the_caller_as_it_is(
    tmp_path: Path, error: type[BaseException]
) -> None:
    mine = error(2, "mine", os.fspath(tmp_path / "toy")) if error is FileNotFoundError else error(3)

    def fail(_: Any) -> None:
        raise mine

    with pytest.raises(error) as caught:
        train(TINY, tmp_path, on_step=fail)
    assert caught.value is mine


def test_a_callback_that_changes_the_working_directory_moves_no_run(
    tmp_path: Path, plain: cclf.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    run = train(TINY, Path("runs"), on_step=lambda _: os.chdir(elsewhere))
    assert run.folder.is_relative_to(tmp_path / "runs")
    assert same_end(run.folder, plain.folder)
    assert not any(elsewhere.iterdir())


# --- threads and processes
# ------------------------------------------------------------------------------------------------


def test_a_second_run_in_the_process_is_refused_and_agents_act_during_a_run(
    tmp_path: Path, plain: cclf.Run
) -> None:
    frame = frames_of(TINY, 1)[0]
    expected = plain.agent("cpu").act(frame)
    lines: list[str] = []
    actions: list[np.ndarray] = []

    def train_another() -> None:
        try:
            train(TINY, tmp_path / "other")
        except cclf.ConfigError as error:
            lines.append(str(error))

    def use_an_agent() -> None:
        agent = cclf.load(plain.folder, device="cpu")
        actions.append(agent.act(frame))
        assert len(agent.evaluate(1).returns) == 1

    def meanwhile(step: Any) -> None:
        if step.agent_steps in (5, 40):
            train_another()
            for work in (train_another, use_an_agent):
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()

    run = train(TINY, tmp_path, on_step=meanwhile)
    assert same_end(run.folder, plain.folder)
    assert len(lines) == 4
    assert all("another cclf.train is running in this process" in line for line in lines)
    assert not (tmp_path / "other").exists()
    assert [np.array_equal(action, expected) for action in actions] == [True, True]


def test_a_process_that_a_callback_forks_may_train(tmp_path: Path) -> None:
    def try_it() -> None:
        try:
            cclf.train("toy/nothing", out=tmp_path)
        except cclf.ConfigError as error:
            os._exit(0 if "unknown task" in str(error) else 1)

    codes = []

    def fork(_: Any) -> None:
        process = multiprocessing.get_context("fork").Process(target=try_it)
        process.start()
        process.join()
        codes.append(process.exitcode)
        raise cclf.StopRun

    train(TINY, tmp_path, on_step=fork)
    assert codes == [0]
