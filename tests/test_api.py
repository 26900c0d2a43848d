"""The Python interface: runs equal to those of the command line, callbacks that change nothing, and
agents that act."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import types
from collections import deque
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cclf
from cclf import cli, presets, trained_agent
from cclf.config import Config
from cclf.envs.make import make_env
from cclf.storage.run_folder import read_checkpoint, read_config
from cclf.training.agent import load_agent
from cclf.training.seeding import derive
from tiny_runs import differing, tables, tiny_config, tiny_options

ROOT = Path(__file__).parents[1]
SOURCE = Path(cclf.__file__).parent


def changes(config: Config) -> dict[str, Any]:
    """The settings in which a config differs from its preset, by name."""
    preset = presets.resolve(config.task, config.method_name, base_name=config.base)
    groups = ("env", "method", "algorithm", "run")
    return {
        each.name: getattr(getattr(config, group), each.name)
        for group in groups
        for each in fields(getattr(config, group))
        if getattr(getattr(config, group), each.name) != getattr(getattr(preset, group), each.name)
    }


TINY = tiny_config(method="rad")


def train(config: Config, out: Path, **more: Any) -> cclf.Run:
    return cclf.train(
        config.task,
        config.method_name,
        base=config.base,
        seed=config.seed,
        out=out,
        **changes(config) | more,
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> cclf.Run:
    return train(TINY, tmp_path_factory.mktemp("undisturbed"))


def same_end(one: Path, two: Path) -> bool:
    states = [read_checkpoint(folder) for folder in (one, two)]
    for state in states:
        state.pop("wall_seconds")
        state.pop("tables")  # sums over the seconds, too
    return (
        (one / "train.csv").read_bytes() == (two / "train.csv").read_bytes()
        and tables(one) == tables(two)
        and not differing(*states)
    )


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    script = (
        "import sys, cclf\n"
        "assert {'train', 'load', 'results', 'Framework', 'equations'} <= set(dir(cclf))\n"
        "cclf.train, cclf.load, cclf.results, cclf.StopRun\n"
        "print({'torch', 'numpy'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(SOURCE.parent)},
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")
    assert cclf.Framework.__module__ == "cclf.framework"
    assert cclf.equations.belief


def test_a_name_that_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'cclf' has no attribute 'trian'"):
        cclf.trian  # noqa: B018


def test_package_is_marked_as_typed() -> None:
    assert (SOURCE / "py.typed").exists()
    assert '"py.typed"' in (ROOT / "pyproject.toml").read_text(), "or the wheel lacks it"


# --- train
# ------------------------------------------------------------------------------------------------


def test_train_writes_the_run_of_the_command(
    tmp_path: Path, undisturbed: cclf.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *tiny_options(TINY), "--out", str(tmp_path)]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert folder.relative_to(tmp_path) == Path(undisturbed.config.run_name())
    assert undisturbed.folder.parts[-4:] == folder.parts[-4:]
    assert undisturbed.finished
    assert undisturbed.agent().config == undisturbed.config
    assert undisturbed.config == read_config(folder) == read_config(undisturbed.folder)
    assert same_end(folder, undisturbed.folder)


def test_train_of_a_finished_run_returns_at_once(
    undisturbed: cclf.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    again = train(TINY, undisturbed.folder.parents[3])
    assert again == undisturbed
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"total_timesteps": 9}, "unknown option 'total_timesteps'; did you mean env_steps?"),
        ({"batch_sise": 16}, "unknown option 'batch_sise'; did you mean batch_size?"),
        ({"bonus_temperature": 0.5}, "bonus_temperature=0.5 conflicts with"),
        ({"env_steps": 1.5}, "env_steps=1.5 must be a whole number"),
        ({"device": "tpu"}, "device"),
        ({"method": "ccfl"}, "unknown method 'ccfl'"),
        ({"profile": "papre"}, "did you mean paper?"),
        ({"base": "rainbow"}, "conflicts with toy/reach-1d"),
    ],
)
def test_train_refuses_what_the_command_line_refuses(
    tmp_path: Path, wrong: dict[str, Any], line: str
) -> None:
    with pytest.raises(cclf.ConfigError, match=line.replace("?", r"\?")) as refused:
        cclf.train(**{"task": "toy/reach-1d", "method": "rad", "out": tmp_path} | wrong)
    assert "\n" not in str(refused.value)
    assert not any(tmp_path.iterdir())


def test_train_raises_the_error_of_a_failed_run(tmp_path: Path) -> None:
    config = tiny_config(method="rad", algorithm={"learning_rate": 1e30})
    with pytest.raises(ValueError, match=r"stopped; .*failure reproduces it"):
        train(config, tmp_path)


def test_train_restores_the_settings_of_the_process(tmp_path: Path) -> None:
    before, seen = torch.get_num_threads(), []

    def look(_: Any) -> None:
        seen.append(torch.get_num_threads())
        raise cclf.StopRun

    train(TINY, tmp_path, threads=before + 1, on_step=look)
    assert (seen[0], torch.get_num_threads()) == (before + 1, before)


# --- callbacks
# ------------------------------------------------------------------------------------------------


def test_callbacks_receive_every_step_and_evaluation_and_do_not_affect_the_run(
    tmp_path: Path, undisturbed: cclf.Run
) -> None:
    steps, evaluations = [], []

    def disturb(fact: Any) -> bool:
        """What a callback might do by accident: it draws random numbers, sets seeds, and returns a
        value."""
        torch.rand(3), np.random.rand(3), random.random()
        torch.manual_seed(5), np.random.seed(5), random.seed(5)
        (evaluations if hasattr(fact, "returns") else steps).append(fact)
        return True

    with torch.random.fork_rng(devices=[]):
        watched = train(TINY, tmp_path, on_step=disturb, on_evaluation=disturb)
    assert same_end(watched.folder, undisturbed.folder)
    assert [step.agent_steps for step in steps] == list(range(1, 61))
    assert steps[-1].updates == 40
    assert steps[-1].episodes == 2
    rows = watched.results()
    assert (
        [fact.env_steps for fact in evaluations] == [row["env_steps"] for row in rows] == [30, 60]
    )
    assert [fact.return_mean for fact in evaluations] == pytest.approx(
        [row["return_mean"] for row in rows]
    )
    assert np.mean(evaluations[0].returns) == evaluations[0].return_mean
    with pytest.raises(AttributeError):
        steps[0].env_steps = 7


def test_callbacks_receive_the_same_with_evaluation_workers(tmp_path: Path) -> None:
    """The last steps only wait for the workers: no step is reported twice."""
    steps: list[Any] = []
    evaluations: list[Any] = []
    watch = {"on_step": steps.append, "on_evaluation": evaluations.append}
    run = train(TINY, tmp_path, eval_workers=1, **watch)
    assert [step.agent_steps for step in steps] == list(range(1, 61))
    assert [fact.env_steps for fact in evaluations] == [30, 60]
    assert [fact.return_mean for fact in evaluations] == pytest.approx(
        [row["return_mean"] for row in run.results()]
    )


@pytest.mark.quick("45")
@pytest.mark.parametrize("when", [7, 30, 45])
def test_run_stopped_by_a_callback_resumes_to_the_same_bytes(
    tmp_path: Path, undisturbed: cclf.Run, when: int
) -> None:
    def stop(step: Any) -> None:
        if step.agent_steps == when:
            raise cclf.StopRun

    stopped = train(TINY, tmp_path, on_step=stop)
    assert not stopped.finished
    assert read_checkpoint(stopped.folder)["agent_steps"] == when
    assert len(stopped.results()) == (when >= 30)
    steps: list[Any] = []
    whole = train(TINY, tmp_path, on_step=steps.append)
    assert whole.finished
    assert [step.agent_steps for step in steps] == list(range(when + 1, 61))
    assert same_end(whole.folder, undisturbed.folder)


def test_run_stopped_at_an_evaluation_keeps_it(tmp_path: Path, undisturbed: cclf.Run) -> None:
    def stop(_: Any) -> None:
        raise cclf.StopRun

    assert not train(TINY, tmp_path, on_evaluation=stop).finished
    later: list[Any] = []
    whole = train(TINY, tmp_path, on_evaluation=later.append)
    assert [fact.env_steps for fact in later] == [60], "the first is not made again"
    assert same_end(whole.folder, undisturbed.folder)


def test_run_resumes_after_an_error_of_a_callback(tmp_path: Path, undisturbed: cclf.Run) -> None:
    def broken(step: Any) -> None:
        if step.agent_steps == 40:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(TINY, tmp_path, on_step=broken)
    assert same_end(train(TINY, tmp_path).folder, undisturbed.folder)


def test_ctrl_c_reaches_the_caller_after_the_run_was_saved(
    tmp_path: Path, undisturbed: cclf.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(step: Any) -> None:
        if step.agent_steps == 12:
            os.kill(os.getpid(), signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            train(TINY, tmp_path, on_step=interrupt)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    saved = read_checkpoint(tmp_path / undisturbed.config.run_name())
    assert saved["agent_steps"] in (12, 13)
    assert f"stopped at {saved['agent_steps']} env steps and saved" in capsys.readouterr().err


def test_run_in_another_thread_installs_no_signal_handler(tmp_path: Path) -> None:
    runs = []
    thread = threading.Thread(target=lambda: runs.append(train(TINY, tmp_path, env_steps=3)))
    thread.start()
    thread.join()
    assert runs[0].finished


def test_callback_loads_the_agent_that_was_evaluated(tmp_path: Path) -> None:
    """Also if the next evaluation is due when that of a worker has finished."""
    evaluated = []

    def on_evaluation(info: Any) -> None:
        saved = read_checkpoint(info.folder, frames=False)
        evaluated.append((saved["agent_steps"], info.agent_steps))
        if info.env_steps == 24:
            agent, config, _ = load_agent(info.folder, torch.device("cpu"), 2)
            seeds = [derive(config.seed, "eval", 24, episode) for episode in range(2)]
            assert tuple(agent.evaluate(seeds).returns) == info.returns
            agent.close()

    frequent = {"env_steps": 24, "eval_every_env_steps": 4}
    train(TINY, tmp_path, eval_workers=1, on_evaluation=on_evaluation, **frequent)
    assert evaluated == [(step, step) for step in range(4, 25, 4)]


def test_best_checkpoint_keeps_the_best_agent_also_after_a_resume(
    tmp_path: Path, undisturbed: cclf.Run
) -> None:
    run = train(TINY, tmp_path, on_evaluation=cclf.BestCheckpoint())
    assert same_end(run.folder, undisturbed.folder)
    rows = {row["env_steps"]: row["return_mean"] for row in run.results()}
    best = cclf.load(run.folder / "best")
    assert rows[best.env_steps] == max(rows.values())
    longer = {"env_steps": 120, "eval_every_env_steps": 30}
    train(TINY, tmp_path, on_evaluation=cclf.BestCheckpoint(), **longer)
    rows = {row["env_steps"]: row["return_mean"] for row in run.results()}
    assert len(rows) == 4
    assert rows[cclf.load(run.folder / "best").env_steps] == max(rows.values())


def test_best_checkpoint_is_not_replaced_by_a_worse_agent(tmp_path: Path) -> None:
    run = train(TINY, tmp_path)
    last = run.results()[-1]
    best = cclf.BestCheckpoint()
    best(types.SimpleNamespace(folder=run.folder, return_mean=last["return_mean"]))
    written = (run.folder / "best" / "model.safetensors").stat().st_mtime_ns
    best(types.SimpleNamespace(folder=run.folder, return_mean=last["return_mean"] - 1.0))
    assert (run.folder / "best" / "model.safetensors").stat().st_mtime_ns == written
    best(types.SimpleNamespace(folder=run.folder, return_mean=last["return_mean"] + 1.0))
    assert (run.folder / "best" / "model.safetensors").stat().st_mtime_ns > written


def test_early_stopping_counts_evaluations_without_improvement(tmp_path: Path) -> None:
    info = types.SimpleNamespace(folder=tmp_path)

    def stops(means: list[float], **options: Any) -> bool:
        rows = "".join(f"{step},{step},{mean}\n" for step, mean in enumerate(means))
        (tmp_path / "eval.csv").write_text(f"env_steps,updates,return_mean\n{rows}")
        try:
            cclf.EarlyStopping(**options)(info)
        except cclf.StopRun:
            return True
        return False

    assert not stops([1.0, 3.0, 2.0], patience=2)
    assert stops([1.0, 3.0, 2.0, 3.0], patience=2)
    assert not stops([1.0, 3.0, 2.0, 3.1], patience=2)
    assert stops([1.0, 3.0, 3.4, 3.8], patience=2, min_improvement=1.0)
    assert not stops([-1.0], patience=1)
    for wrong in ({"patience": 0}, {"patience": 1.5}, {"min_improvement": -1.0}):
        with pytest.raises(cclf.ConfigError, match=next(iter(wrong))):
            cclf.EarlyStopping(**wrong)


def test_early_stopping_stops_a_run_that_the_same_call_resumes(tmp_path: Path) -> None:
    options = {"env_steps": 90, "on_evaluation": cclf.EarlyStopping(1, min_improvement=1e9)}
    run = train(TINY, tmp_path, **options)
    assert (run.finished, len(run.results())) == (False, 2)
    assert len(train(TINY, tmp_path, **options).results()) == 3


# --- a run and its agent in a notebook
# ------------------------------------------------------------------------------------------------


def test_run_and_agent_have_a_short_repr(undisturbed: cclf.Run) -> None:
    last = undisturbed.results()[-1]["return_mean"]
    assert repr(undisturbed) == (
        f"<cclf.Run task toy/reach-1d, method rad, seed 1, finished yes, return {last:.4g} at 60 env "
        f"steps, folder {undisturbed.folder}>"
    )
    agent = undisturbed.agent()
    assert repr(agent) == "<cclf.TrainedAgent task toy/reach-1d, method rad, seed 1, env steps 60>"
    for shown, fact in ((undisturbed, "yes"), (agent, "60")):
        assert f"<td>{fact}</td>" in shown._repr_html_()
    removed = undisturbed._replace(folder=Path("<b>"))
    assert "&lt;b&gt;" in removed._repr_html_()
    assert "return" not in repr(removed)


def test_plot_draws_the_evaluations_of_the_run(tmp_path: Path, undisturbed: cclf.Run) -> None:
    (axis,) = undisturbed.plot().axes
    rows = undisturbed.results()
    drawn = axis.lines[0].get_xydata()
    assert np.allclose(drawn, [(row["env_steps"], row["return_mean"]) for row in rows])

    def stop(_: Any) -> None:
        raise cclf.StopRun

    with pytest.raises(cclf.ConfigError, match="has no evaluation yet"):
        train(TINY, tmp_path, on_step=stop).plot()


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_play_records_the_first_episode_of_evaluate(
    tmp_path: Path, undisturbed: cclf.Run, suffix: str
) -> None:
    import imageio.v3 as imageio

    agent, path = undisturbed.agent(), tmp_path / f"episode{suffix}"
    episode = agent.play(path, seed=3)
    assert episode.total_return == agent.evaluate(1, seed=3).mean
    assert episode.agent_steps == 25
    assert (1 if suffix == ".gif" else 24) < len(imageio.imread(path)) <= 25, (
        "a GIF joins equal ones"
    )
    if suffix == ".gif":
        assert imageio.immeta(path)["loop"] == 0, "without end"
    assert f'src="data:{"image/gif" if suffix == ".gif" else "video/mp4"};base64,' in (
        episode._repr_html_()
    )
    for wrong in (tmp_path / "episode.avi", tmp_path / "nowhere" / f"e{suffix}"):
        with pytest.raises(cclf.ConfigError, match=r"name an \.mp4 or a \.gif"):
            agent.play(wrong)


# --- load
# ------------------------------------------------------------------------------------------------

STACKED = {"frame_stack": 3}
AGENTS = {
    "sac": tiny_config(method="rad", env=STACKED, env_steps=30),
    "drqv2": tiny_config(base="drqv2", method="drq-v2", env=STACKED, env_steps=30),
    "rainbow": tiny_config(
        "toy/catch",
        "rainbow",
        env=STACKED,
        algorithm={"epsilon_eval": 0.0},
        env_steps=30,
        final_eval_episodes=0,
    ),
    "a2c": tiny_config("minigrid/DoorKey-5x5", "re3+cclf", env_steps=32),
}


@pytest.fixture(scope="module", params=AGENTS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> cclf.Run:
    return train(AGENTS[request.param], tmp_path_factory.mktemp(request.param))


def frames_of(config: Config, count: int, seed: int = 0) -> np.ndarray:
    """Frames of random actions in the task, or random frames of the same shape."""
    shape = {"toy/catch": (1, 50, 50), "minigrid/DoorKey-5x5": (7, 7, 3)}
    random_numbers = np.random.default_rng(seed)
    return random_numbers.integers(
        0, 3 if "grid" in config.task else 256, (count, *shape.get(config.task, (3, 20, 20)))
    ).astype(np.uint8)


@pytest.mark.quick("sac", "rainbow")
def test_own_loop_with_act_plays_the_episodes_of_evaluate(run: cclf.Run) -> None:
    agent = cclf.load(run.folder, device="cpu", seed=3)
    total, over, seed = 0.0, False, derive(5, "evaluate", 0)
    if run.config.base == "a2c":
        worlds = make_env.vector(run.config, 1, 0)
        seen, sampler = worlds.reset([seed]), np.random.default_rng(derive(3, "act"))
        for _ in range(20):  # A2C samples its actions
            uniform = sampler.random((1, worlds.num_actions))
            action = agent.act(seen[0])
            assert action == agent.policy.act(seen, uniform)[0]
            seen = worlds.step([action]).observation
        return
    asked: list[np.ndarray] = []
    policy = agent.policy
    agent.policy = types.SimpleNamespace(
        evaluation_action=lambda seen: (
            asked.append(seen[0].numpy()) or policy.evaluation_action(seen)
        )
    )
    env = make_env(run.config, 0, True)
    frame = env.reset(seed)
    before = np.zeros_like(frame) if env.spec.num_actions else frame
    frames = deque([before, before, frame], maxlen=3)
    while not over:
        stack = np.concatenate(frames)
        action = agent.act(frame)
        assert np.array_equal(asked[-1], stack)
        step = env.step(action)
        frame = step.frame
        frames.append(frame)
        total, over = total + step.reward, step.terminated or step.truncated
    agent.policy = policy
    assert agent.evaluate(2, seed=5).returns[0] == total


def test_act_keeps_one_frame_stack_per_row_of_a_batch(run: cclf.Run) -> None:
    rows = [frames_of(run.config, 5, seed) for seed in range(3)]
    if run.config.base == "a2c":
        agent = run.agent("cpu")
        assert agent.act(np.stack([row[0] for row in rows])).shape == (3,)
        return
    alone = []
    for row in rows:
        agent = run.agent("cpu")
        agent.reset()
        alone.append([agent.act(frame) for frame in row])
    together = run.agent("cpu")
    acted = [together.act(np.stack([row[step] for row in rows])) for step in range(5)]
    assert np.array_equal(np.stack(acted, axis=1), np.array(alone))
    # a new episode begins in one row only
    together.reset([1])
    again = together.act(np.stack([row[0] for row in rows]))
    assert np.array_equal(again[1], alone[1][0])
    together.reset()
    assert np.array_equal(together.act(rows[0][0]), alone[0][0])


def test_act_returns_the_type_of_the_task(run: cclf.Run) -> None:
    agent, frames = cclf.load(run.folder), frames_of(run.config, 2)
    batch = agent.act(frames)
    agent.reset()
    one = agent.act(frames[0])
    if run.config.base in ("sac", "drqv2"):
        assert (one.shape, one.dtype, batch.shape) == ((1,), np.float32, (2, 1))
        assert np.abs(batch).max() <= 1.0
    else:
        assert type(one) is int
        assert (batch.shape, batch.dtype) == ((2,), np.int64)


@pytest.mark.quick("sac", "rainbow")
def test_evaluate_returns_the_returns_of_the_command(
    run: cclf.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert cli.main(["evaluate", str(run.folder), "--episodes", "3", "--seed", "4", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    agent = cclf.load(str(run.folder))
    result = agent.evaluate(3, seed=4)
    assert result.returns == facts["returns"]
    assert agent.env_steps == facts["env_steps"]
    assert len(agent.evaluate().returns) == 10


def test_act_refuses_other_observations_in_one_line(run: cclf.Run) -> None:
    agent, frames = cclf.load(run.folder), frames_of(run.config, 3)
    with pytest.raises(cclf.ConfigError, match="is float32: frames are uint8, from 0 to 255"):
        agent.act(frames[0].astype(np.float32))
    for wrong in (frames[0][..., :-1], frames[0][0], frames[None], frames[:0]):
        with pytest.raises(cclf.ConfigError, match=r"has the shape .*: use one newest frame"):
            agent.act(wrong)
    agent.act(frames)
    with pytest.raises(cclf.ConfigError, match="1 frames, but the last batch had 3"):
        agent.act(frames[0])
    with pytest.raises(cclf.ConfigError, match="the last batch had 3 rows"):
        agent.reset([3])
    if run.config.base in ("sac", "drqv2"):
        with pytest.raises(cclf.ConfigError, match="channels come first"):
            agent.act(frames[0].transpose(1, 2, 0))


def test_agent_without_a_spec_can_only_be_evaluated(
    undisturbed: cclf.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load_agent

    def without_spec(*words: Any, **options: Any) -> Any:
        player, *rest = whole(*words, **options)
        return player._replace(spec=None), *rest

    monkeypatch.setattr(trained_agent, "load_agent", without_spec)
    agent = cclf.load(undisturbed.folder)
    with pytest.raises(cclf.ConfigError, match="sac does not say what its agent sees"):
        agent.act(np.zeros((3, 20, 20), np.uint8))
    assert len(agent.evaluate(1).returns) == 1


# --- results
# ------------------------------------------------------------------------------------------------


def test_results_are_records(undisturbed: cclf.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = cclf.results(undisturbed.folder.parents[3])
    assert rows == undisturbed.results() == cclf.results(undisturbed.folder)
    assert [(row["method"], row["seed"], row["env_steps"]) for row in rows] == [
        ("rad", 1, 30),
        ("rad", 1, 60),
    ]
    monkeypatch.setitem(sys.modules, "pandas", None)  # as where it is not installed
    with pytest.raises(cclf.ConfigError, match=r"pip install 'cclf\[pandas\]'"):
        cclf.results(undisturbed.folder, pandas=True)
    stand_in = types.SimpleNamespace(DataFrame=lambda rows: ("frame", rows), __spec__="found")
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    assert cclf.results(undisturbed.folder, pandas=True) == ("frame", rows)
    assert undisturbed.dataframe() == ("frame", rows)
    with pytest.raises(cclf.ConfigError, match="does not exist"):
        cclf.results(undisturbed.folder / "nowhere")


# --- the documentation
# ------------------------------------------------------------------------------------------------

SNIPPETS = re.findall(
    r"^<!-- test: python -->\n```python\n(.*?)^```",
    (ROOT / "docs" / "usage.md").read_text(),
    re.DOTALL | re.MULTILINE,
)
README = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
)
TINY_SIZES = changes(tiny_config()) | {"env_steps": 60}


def run_snippets(snippets: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the snippets one after the other, as in a notebook, with the module that a page names."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    shutil.copy(ROOT / "examples" / "my_envs.py", folder)
    monkeypatch.delitem(sys.modules, "my_envs", raising=False)
    made: dict[str, Any] = {"__name__": "snippets"}
    for snippet in snippets:
        exec(compile(snippet, "docs/usage.md", "exec"), made)
    return types.SimpleNamespace(**made)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of the page get smaller networks and budgets."""
    whole = cclf.train

    def smaller(*names: Any, **options: Any) -> cclf.Run:
        idle = {"conv_layers", "conv_filters"} if "observe" in options else set()
        return whole(*names, **options | {n: v for n, v in TINY_SIZES.items() if n not in idle})

    monkeypatch.setattr(cclf, "train", smaller)


@pytest.mark.usefixtures("quick")
def test_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = run_snippets(SNIPPETS, tmp_path, monkeypatch)
    assert len(SNIPPETS) == 5
    assert len(page.returns) == 2
    assert page.agent.config.imported_names == {"task": "gym/my_envs:pendulum"}


@pytest.mark.slow("test_code_of_the_page_runs")
def test_code_of_the_page_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = run_snippets(SNIPPETS, tmp_path, monkeypatch)
    assert max(page.returns) > 15


@pytest.mark.usefixtures("quick")
def test_code_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (snippet,) = README
    assert len(snippet.splitlines()) <= 6
    assert run_snippets([snippet], tmp_path, monkeypatch).run.finished
