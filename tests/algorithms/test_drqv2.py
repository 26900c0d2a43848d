"""DrQ-v2 against numbers of the authors' code and against a plain implementation of the same
update."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

import drqv2_inputs as golden
import reference_drqv2
from cclf import presets
from cclf.algorithms.common import inspection
from cclf.algorithms.common.observations import UpdateNoise
from cclf.algorithms.drqv2 import ALGORITHM
from cclf.algorithms.drqv2 import presets as drqv2_presets
from cclf.algorithms.drqv2.drqv2 import DrQv2, noise_std
from cclf.algorithms.registry import algorithms, make_learner
from cclf.cli import main
from cclf.data.replay import Replay
from cclf.envs.registry import task_kind
from cclf.storage import checkpoint
from cclf.training.seeding import Generators
from cclf.types import Batch
from tiny_runs import CPU, create_run_folder, flat, run, tiny_config

METHODS = list(algorithms()["drqv2"].methods)
BATCH, ACTIONS = 6, 2


# The authors' numbers


def golden_agent(dtype: torch.dtype) -> DrQv2:
    config = presets.resolve("dmc/cartpole-swingup", "drq-v2", base_name="drqv2")
    sizes = {"feature_dim": golden.FEATURE_DIM, "hidden_dim": golden.HIDDEN_DIM}
    config = dataclasses.replace(config, algorithm=dataclasses.replace(config.algorithm, **sizes))
    agent = DrQv2(config, golden.ACTION_DIM, CPU)
    agent.networks.to(dtype)
    for name, parameter in golden_parameters(agent).items():
        value = golden.fill(name, golden.shapes()[name], dtype)
        parameter.data.copy_(to_ours(name, value))
    return agent


def golden_parameters(agent: DrQv2) -> dict[str, Tensor]:
    """Our parameters under the names of the golden file."""
    renamed = {
        name.replace("encoder.layers", "encoder.convolutions").replace(
            "trunk.fc", "trunk.linear"
        ): p
        for name, p in agent.networks.named_parameters()
        if not name.startswith("framework")
    }
    assert set(renamed) == set(golden.shapes())
    return renamed


def to_ours(name: str, value: Tensor) -> Tensor:
    return golden.to_channels_last(value) if name.endswith("trunk.linear.weight") else value


def to_theirs(name: str, value: Tensor) -> Tensor:
    return golden.to_planes(value) if name.endswith("trunk.linear.weight") else value


def golden_batch(number: int, dtype: torch.dtype) -> tuple[Batch, UpdateNoise]:
    inputs = golden.batch(number, dtype)
    batch = Batch(
        observation=inputs.observation,
        action=inputs.action,
        reward=inputs.reward,
        continuation=(inputs.discount > 0.0).to(dtype),
        next_observation=inputs.next_observation,
        priority=torch.ones(golden.BATCH, dtype=dtype),
        slot=torch.arange(golden.BATCH),
        n_step_return=inputs.reward,
    )
    corners = (inputs.shift[None], inputs.next_shift[None])
    return batch, UpdateNoise(*corners, inputs.target_noise[None], inputs.actor_noise)


def largest_error(ours: list[float], theirs: list[float]) -> float:
    """Relative to reference values above 1, absolute for smaller ones."""
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.quick("float64-1e-11")
@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-11), ("float32", 1e-5)])
def test_updates_equal_those_of_the_authors(precision, tolerance):
    dtype, recorded = golden.DTYPES[precision], golden.GOLDEN[precision]
    agent = golden_agent(dtype)
    see = golden.observation_to_act()[None]
    assert largest_error(agent.evaluation_action(see)[0].tolist(), recorded["action_before"]) < (
        tolerance
    )
    for number, theirs in enumerate(recorded["updates"]):
        env_steps = torch.tensor(2.0 * theirs["step"], dtype=torch.float64)
        metrics = agent.update(*golden_batch(number, dtype), env_steps).metrics
        names = {
            "critic_loss": "critic_loss",
            "actor_loss": "actor_loss",
            "target_mean": "critic_target_q",
            "q_mean": "critic_q1",
            "noise_std": "stddev",
        }
        for ours, name in names.items():
            assert largest_error([float(metrics[ours])], [theirs[name]]) < tolerance, name
        moments = {0: "after_first", len(recorded["updates"]) - 1: "after_last"}
        for name, figures in recorded.get(moments.get(number), {}).items():
            ours = golden.summary(to_theirs(name, golden_parameters(agent)[name]))
            assert largest_error(ours, figures) < tolerance, (number, name)
    assert largest_error(agent.evaluation_action(see)[0].tolist(), recorded["action_after"]) < (
        tolerance
    )


@pytest.mark.parametrize(("name", "rows"), golden.GOLDEN["schedule"].items())
def test_noise_schedule_equals_that_of_the_authors(name, rows):
    first, last, steps = (float(word) for word in name.removesuffix(")").split("(")[1].split(","))
    for step, std in rows:
        ours = noise_std(torch.tensor(float(step), dtype=torch.float64), first, last, int(steps))
        assert float(ours) == pytest.approx(std, rel=1e-12)


@pytest.mark.parametrize("n_steps", [1, 3, 5])
@pytest.mark.parametrize("ending", ["time_limit", "terminal"])
def test_n_step_returns_equal_those_of_the_authors(n_steps, ending):
    """Our replay also samples the last steps of a terminated episode, whose returns have fewer
    rewards."""
    recorded = golden.GOLDEN["replay"]
    rewards = recorded["reward"]
    replay = Replay(20, (1, 1, 1), 1, 1, None, CPU, n_steps, recorded["gamma"])
    replay.begin_episode(np.full((1, 1, 1), 0, np.uint8))
    for step, reward in enumerate(rewards[1:], start=1):
        terminated = ending == "terminal" and step == len(rewards) - 1
        frame = np.full((1, 1, 1), step, np.uint8)
        replay.add(np.array([step], np.float32), reward, terminated, frame)
    theirs = recorded[ending]["samples"][str(n_steps)]
    ours = replay.gather(torch.from_numpy(np.flatnonzero(replay.valid)))
    discount = ours.continuation * recorded["gamma"] ** n_steps
    rows = zip(
        ours.observation.flatten().tolist(),
        ours.action.flatten().tolist(),
        ours.n_step_return.tolist(),
        discount.tolist(),
        ours.next_observation.flatten().tolist(),
        strict=True,
    )
    whole = list(rows)[: len(theirs)]
    np.testing.assert_allclose(whole, theirs, rtol=1e-6)
    shorter = n_steps - 1 if ending == "terminal" else 0
    assert len(ours.reward) == len(theirs) + shorter
    assert (ours.continuation[len(theirs) :] == 0.0).all()


# A plain implementation of the same update


def small_agent(method: str, seed: int = 1, **settings) -> DrQv2:
    config = tiny_config("toy/reach", method, base="drqv2", seed=seed, algorithm=settings)
    return DrQv2(config, ACTIONS, CPU)


def small_batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def frames() -> Tensor:
        return torch.randint(256, (BATCH, 3, 20, 20), generator=generator, dtype=torch.uint8)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    continuation = torch.ones(BATCH, dtype=torch.float64)
    continuation[2] = 0.0
    return Batch(
        observation=frames(),
        action=2.0 * uniform(BATCH, ACTIONS) - 1.0,
        reward=uniform(BATCH),
        continuation=continuation,
        next_observation=frames(),
        priority=0.5 + 0.5 * uniform(BATCH),
        slot=torch.arange(BATCH),
        n_step_return=3.0 * uniform(BATCH),
    )


def drawn(agent: DrQv2, seed: int) -> UpdateNoise:
    generators = (torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1))
    noise = agent.draw_noise(BATCH, *generators)
    return noise._replace(target=noise.target.double(), actor=noise.actor.double())


@pytest.mark.quick("drq-v2", "drq-v2+curl", "drq-v2+cclf", "drq-v2+cclf-shuffled")
@pytest.mark.parametrize("method", METHODS)
def test_update_equals_the_reference(method):
    real, plain = small_agent(method), small_agent(method)
    for agent in (real, plain):
        agent.networks.double()
    for number in range(4):
        batch, noise = small_batch(number), drawn(real, number)
        env_steps = torch.tensor(10.0 * number, dtype=torch.float64)
        metrics, priority = real.update(batch, noise, env_steps)
        expected = reference_drqv2.update(plain, batch, noise, env_steps)
        for name in ("critic_loss", "actor_loss", "gradient_norm"):
            assert float(metrics[name]) == pytest.approx(float(expected[name]), abs=1e-9), name
        assert (priority is None) == ("priority" not in expected)
        if priority is not None:
            torch.testing.assert_close(priority, expected["priority"], rtol=0.0, atol=1e-9)
    for name, value in plain.networks.state_dict().items():
        torch.testing.assert_close(
            real.networks.state_dict()[name],
            value,
            rtol=0.0,
            atol=1e-9,
            msg=lambda m, n=name: f"{n}: {m}",
        )


def test_cclf_with_every_piece_off_is_bitwise_equal_to_drq_v2():
    plain = tiny_config("toy/reach", "drq-v2", base="drqv2")
    off = tiny_config("toy/reach", "drq-v2+cclf", base="drqv2")
    switched = {
        "views": 1,
        "selection": "all",
        "contrastive": False,
        "prioritisation": False,
        "regularisation": False,
        "reward": False,
    }
    off = dataclasses.replace(off, method=dataclasses.replace(off.method, **switched))
    states = []
    for config in (plain, off):
        learner = make_learner(config, CPU)
        for step in range(40):
            learner.step(step)
        assert learner.updates == 20
        states.append(flat(learner.state_dict()))
        learner.close()
    assert set(states[0]) == set(states[1])
    for name, value in states[0].items():
        assert np.array_equal(np.asarray(value), np.asarray(states[1][name])), name


# Acting, precision, inspection and presets


def test_acting_has_more_noise_early_and_evaluation_none():
    agent = small_agent("drq-v2", noise_agent_steps=100)
    frames = small_batch(0).observation[:1].expand(500, -1, -1, -1)
    mean = agent.evaluation_action(frames)
    assert (mean == mean[0]).all()
    spread = []
    for step in (0.0, 100.0):
        generator = torch.Generator().manual_seed(1)
        now = torch.tensor(step, dtype=torch.float64)
        action = agent.collection_action(frames, now, generator, generator)
        assert action.abs().max() <= 1.0
        spread.append(float(action.std(0).mean()))
    assert spread[0] > 3.0 * spread[1]
    assert spread[1] == pytest.approx(0.1, rel=0.15)


def test_bfloat16_step_is_close_to_the_float32_step():
    config = tiny_config("toy/reach", "drq-v2+cclf", base="drqv2")
    plain = DrQv2(config, ACTIONS, CPU)
    settings = dataclasses.replace(config.algorithm, precision="bf16")
    fast = DrQv2(dataclasses.replace(config, algorithm=settings), ACTIONS, CPU)
    before = torch.cat([p.detach().flatten() for p in plain.networks.parameters()])
    batch = Batch(*(x.float() if x.is_floating_point() else x for x in small_batch(0)))
    noise = plain.draw_noise(BATCH, *(torch.Generator().manual_seed(s) for s in (1, 2)))
    steps = []
    for agent in (plain, fast):
        agent.update(batch, noise, torch.zeros((), dtype=torch.float64))
        after = torch.cat([p.detach().flatten() for p in agent.networks.parameters()])
        steps.append(after - before)
    assert float(torch.cosine_similarity(*steps, dim=0)) > 0.9


@pytest.mark.slow(
    "test_inspect_td_error.py::test_td_error_of_twin_critics_is_the_mean_distance_to_the_target"
)
def test_inspect_computes_the_curiosity_of_an_update(tmp_path):
    config = tiny_config("toy/reach-1d", "drq-v2+cclf", base="drqv2", algorithm={"n_steps": 3})
    with create_run_folder(config, tmp_path) as folder:
        run(config, folder)
    saved = checkpoint.load(folder / "checkpoint")["learner"]
    agent, replay = ALGORITHM.load_for_inspection(config, saved, CPU)
    batch = replay.sample(BATCH, torch.Generator().manual_seed(0))
    now = torch.tensor(60.0, dtype=torch.float64)
    _, shown = inspection.appraise(agent, batch, Generators(1, CPU, CPU), now)
    streams = Generators(1, CPU, CPU)
    noise = agent.draw_noise(BATCH, streams["augment"], streams["policy"])
    agent.networks.double()
    expected = reference_drqv2.appraise(agent, batch, noise, now)
    for name in ("curiosity", "next_curiosity", "selected_view", "next_selected_view", "weights"):
        ours, theirs = getattr(shown, name), getattr(expected, name)
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=0.0, atol=1e-5)
    page = tmp_path / "page.html"
    assert main(["inspect", str(folder), "--out", str(page), "--samples", "16"]) == 0
    assert "shifts" in page.read_text()


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("dmc/cartpole-swingup", {"noise_agent_steps": 100_000, "n_steps": 3, "batch_size": 256}),
        ("dmc/walker-walk", {"noise_agent_steps": 100_000, "n_steps": 1, "batch_size": 512}),
        ("dmc/cheetah-run", {"noise_agent_steps": 500_000, "learning_rate": 1e-4}),
        ("dmc/quadruped-run", {"replay_capacity_transitions": 100_000}),
        (
            "dmc/humanoid-walk",
            {"noise_agent_steps": 2_000_000, "learning_rate": 8e-5, "feature_dim": 100},
        ),
    ],
)
def test_tasks_have_their_authors_settings(task, expected):
    config = presets.resolve(task, base_name="drqv2")
    assert config.method_name == "drq-v2"
    assert {name: getattr(config.algorithm, name) for name in expected} == expected
    assert vars(config.env) == {
        "observe": "pixels",
        "observe_key": "",
        "frame_pixels": 84,
        "crop_pixels": 84,
        "frame_stack": 3,
        "action_repeat": 2,
    }


def test_every_task_is_in_one_of_the_three_classes():
    names = [*drqv2_presets.EASY, *drqv2_presets.MEDIUM, *drqv2_presets.HARD]
    assert len(names) == len(set(names)) == 23
    assert all(task_kind(f"dmc/{name}") == "continuous" for name in names)
    budgets = [presets.resolve(f"dmc/{n}", base_name="drqv2").run.env_steps for n in names]
    assert [budgets.count(b) for b in (1_100_000, 3_100_000, 30_100_000)] == [9, 11, 3]
