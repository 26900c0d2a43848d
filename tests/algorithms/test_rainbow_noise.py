"""Counter-based random numbers: reproducible, independent, and of the right distribution."""

import numpy as np
import torch

from cclf.algorithms.rainbow.noise import CounterBasedRNG, mix

CPU = torch.device("cpu")


def splitmix(state):
    """SplitMix64 in Python's unbounded integers."""
    size = 2**64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % size
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % size
    return state ^ (state >> 31)


def test_mixing_function_is_splitmix64():
    states = np.random.default_rng(0).integers(-(2**63), 2**63, 1000)
    assert [value % 2**64 for value in mix(torch.from_numpy(states)).tolist()] == [
        splitmix(int(s) % 2**64) for s in states
    ]


def sample(shapes, keys, index):
    random = CounterBasedRNG(shapes, CPU)
    return random.split(random.uniform(torch.tensor(keys), torch.tensor(index)))


def test_random_number_depends_on_key_index_name_and_position_only():
    shapes = {"a": (3, 4), "b": (5,)}
    both = sample(shapes, [7, 8], 3)
    assert both["a"].shape == (2, 3, 4)
    assert both["a"].dtype == torch.float64
    assert torch.equal(both["b"][1], sample(shapes, [8], 3)["b"][0])
    longer = sample({"a": (3, 4), "b": (9,)}, [8], 3)
    assert torch.equal(longer["b"][0, :5], both["b"][1])
    numbers = [
        sample(shapes, [key], index)[name]
        for key in (7, 8)
        for index in (3, 4)
        for name in ("a", "b")
    ]
    flat = torch.cat([number.flatten() for number in numbers])
    assert len(flat.unique()) == len(flat)


def test_uniform_numbers_have_their_moments():
    uniform = torch.cat(
        [sample({"x": (1000,)}, [5, 6], index)["x"].flatten() for index in range(50)]
    )
    assert uniform.min() > 0.0
    assert uniform.max() < 1.0
    assert abs(uniform.mean() - 0.5) < 0.005
    assert abs(uniform.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(uniform[:-1], uniform[1:])[0, 1]) < 0.01
