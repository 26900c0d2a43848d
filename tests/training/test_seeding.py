"""One seed determines a run, streams are independent, and different seeds give different numbers."""

import itertools
import threading

import numpy as np
import torch

from cclf.algorithms.registry import make_learner
from cclf.training.seeding import STREAMS, Generators, derive, seeded_weights
from tiny_runs import CPU, differing, run, tables, tiny_config


def test_derived_seeds_differ():
    paths = [
        ("init",),
        ("env",),
        *((name,) for name in STREAMS),
        *(("eval", step, n) for step in (1, 500) for n in range(10)),
        *(("evaluate", n) for n in range(10)),
    ]
    seeds = [derive(seed, *path) for seed in range(20) for path in paths]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_derived_seeds_are_pinned():
    """Published results depend on these values."""
    assert [derive(1, "init"), derive(1, "env"), derive(3, "eval", 10_000, 2)] == [
        1351750760845235182,
        2299343124717194539,
        6499562913721820435,
    ]
    streams = Generators(1, CPU, CPU).streams
    assert {name: stream.initial_seed() for name, stream in streams.items()} == {
        name: derive(1, name) for name in ("replay", "augment", "policy", "act")
    }


def test_streams_are_reproducible_independent_and_saved():
    ours, theirs, other = Generators(1, CPU, CPU), Generators(1, CPU, CPU), Generators(2, CPU, CPU)

    def draw(generators, name):
        return torch.rand(8, generator=generators[name])

    for _ in range(3):
        draw(ours, "replay")  # must not disturb the others
    first = {name: draw(ours, name) for name in STREAMS if name != "replay"}
    for name, values in first.items():
        assert torch.equal(values, draw(theirs, name))
        assert not torch.equal(values, draw(other, name))
    for one, two in itertools.combinations(first.values(), 2):
        assert not torch.equal(one, two)
    other.load_state_dict(ours.state_dict())
    for name in STREAMS:
        assert torch.equal(draw(ours, name), draw(other, name))


def test_runs_with_the_same_seed_are_equal_whatever_the_global_random_state(tmp_path):
    states = []
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        np.random.seed(seed)
        states.append(run(tiny_config(), tmp_path / name)[0].state_dict())
    assert differing(*states) == []
    assert tables(tmp_path / "a") == tables(tmp_path / "b")


def test_making_a_run_does_not_change_the_global_random_state():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    make_learner(tiny_config(), CPU)
    assert torch.equal(before, torch.get_rng_state())


def test_runs_with_different_seeds_differ_in_everything_sampled():
    one, two = (make_learner(tiny_config(seed=seed), CPU) for seed in (1, 2))
    # initial weights: every matrix of every network (biases and norms start from constants)
    weights = [dict(learner.algorithm.networks.named_parameters()) for learner in (one, two)]
    same = {name for name, value in weights[0].items() if torch.equal(value, weights[1][name])}
    assert same == {name for name in weights[0] if name.endswith("bias") or ".norm." in name}
    # first episode, first actions, draws from replay, crops
    frames = [learner.env.reset() for learner in (one, two)]
    assert not np.array_equal(*frames)
    for learner, frame in zip((one, two), frames, strict=True):
        learner.replay.begin_episode(frame)
    actions = [[learner.act(0).numpy() for _ in range(5)] for learner in (one, two)]
    assert not np.isclose(*actions).any()
    for learner in (one, two):
        for _ in range(30):
            action = learner.act(0).numpy()
            learner.observe(action, learner.env.step(action))
    draws = [learner.replay.sample(16, learner.generators["replay"]).slot for learner in (one, two)]
    assert not torch.equal(*draws)
    noise = [
        learner.algorithm.draw_noise(
            16, learner.generators["augment"], learner.generators["policy"]
        )
        for learner in (one, two)
    ]
    for ours, theirs in zip(*(drawn[:4] for drawn in noise), strict=True):
        assert not torch.equal(ours, theirs)


def test_a_draw_takes_its_numbers_from_the_streams_of_their_names():
    learner, same = make_learner(tiny_config(), CPU), Generators(1, CPU, CPU)
    for env_steps in range(12):
        learner.step(env_steps)
    same.load_state_dict(learner.generators.state_dict())
    batch, noise = learner.draw()
    assert torch.equal(batch.slot, learner.replay.sample(4, same["replay"]).slot)
    expected = learner.algorithm.draw_noise(4, same["augment"], same["policy"])
    for ours, theirs in zip(noise[:4], expected[:4], strict=True):
        assert torch.equal(ours, theirs)


def test_seeded_weights_in_two_threads_equal_those_of_one():
    def sample(seed, meanwhile=lambda: None):
        with seeded_weights(seed):
            first = torch.rand(4)
            meanwhile()
            return torch.cat([first, torch.rand(4)])

    expected = sample(1), sample(2)
    began, inside, ended, sampled = *(threading.Event() for _ in range(3)), []

    def stay():
        inside.set()
        ended.wait(10)

    def other():
        began.wait(10)
        sampled.append(sample(2, stay))

    def let_the_other_sample():
        began.set()
        inside.wait(0.3)  # times out, since only one thread at a time samples

    thread = threading.Thread(target=other)
    thread.start()
    ours = sample(1, let_the_other_sample)
    ended.set()
    thread.join()
    assert torch.equal(ours, expected[0])
    assert torch.equal(sampled[0], expected[1])
