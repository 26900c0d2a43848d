"""Compilation and CUDA graphs, mostly without a GPU: functions compile as single graphs, and a failure
falls back to plain execution with one message."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cclf.algorithms.common.pixel_encoder import ConvEncoder
from cclf.data import augmentations
from cclf.kernels.paired_convolutions import paired_convolutions
from cclf.training import cuda_graphs


def test_convolutions_and_crops_compile_as_single_graphs() -> None:
    parameters = list(ConvEncoder(9, 84, 4, 32).parameters())
    layers = list(zip(parameters[::2], parameters[1::2], strict=True))
    images = torch.randint(256, (2, 9, 84, 84), dtype=torch.uint8)
    whole = torch.compile(paired_convolutions, backend="eager", fullgraph=True, dynamic=False)
    assert torch.equal(whole(images, layers), paired_convolutions(images, layers))
    frames, origins = (
        torch.randint(256, (2, 9, 100, 100), dtype=torch.uint8),
        torch.randint(16, (5, 2, 2)),
    )
    crop = torch.compile(augmentations.crop, backend="eager", fullgraph=True, dynamic=False)
    assert torch.equal(
        crop(frames, origins, 84).inputs, augmentations.crop(frames, origins, 84).inputs
    )


def test_function_that_cannot_be_compiled_runs_uncompiled_with_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_):
        raise torch._dynamo.exc.TorchDynamoException("no compiler here\nmore")

    def double(x: int) -> int:
        return 2 * x

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    fast = cuda_graphs.compiled(double)
    assert [fast(3), fast(4)] == [6, 8]
    assert capsys.readouterr().err == "going on without compiling double: no compiler here\n"


def test_policy_that_cannot_be_captured_acts_without_a_graph(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs.GraphedPolicy, "_capture", refuse)
    act = cuda_graphs.GraphedPolicy(lambda observation: 2 * observation)
    assert [float(act(torch.tensor(float(n)))) for n in range(8)] == [0, 2, 4, 6, 8, 10, 12, 14]
    assert capsys.readouterr().err.count("acting without CUDA graphs") == 1


@pytest.mark.gpu
def test_graphed_policy_gives_the_same_actions_and_advances_its_generator() -> None:
    device = torch.device("cuda")
    streams = [torch.Generator(device).manual_seed(3) for _ in range(2)]

    def act(generator: torch.Generator):
        return lambda observation: (
            observation * torch.rand(observation.shape, generator=generator, device=device)
        )

    plain, graphed = act(streams[0]), cuda_graphs.GraphedPolicy(act(streams[1]), streams[1:])
    for n in range(12):
        observation = torch.full((2 + n % 2, 3), float(n), device=device)
        assert torch.equal(plain(observation), graphed(observation))
    assert len(graphed.graphs) == 2


def test_compiled_function_raises_its_own_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: int) -> int:
        raise KeyError(x)

    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    with pytest.raises(KeyError):
        cuda_graphs.compiled(wrong)(1)


def test_update_that_cannot_be_captured_runs_without_a_graph(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = cuda_graphs.UpdateCount()

    def update() -> dict[str, torch.Tensor]:
        made.updates += 1
        return {"loss": torch.tensor(float(made.updates))}

    def refuse(_):
        update()  # the Python code runs while a graph is captured
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs.GraphedUpdate, "_capture", refuse)
    graphed = cuda_graphs.GraphedUpdate(update, 2, made, [])
    values = [float(graphed()["loss"]) for _ in range(8)]
    assert values == [1, 2, 3, 4, 5, 6, 7, 8]
    assert capsys.readouterr().err.count("going on without CUDA graphs") == 1


@pytest.mark.gpu
def test_functions_run_concurrently_in_a_graph_give_the_same_results() -> None:
    device = torch.device("cuda")
    x = torch.randn(512, 512, device=device)

    def chain(weight: torch.Tensor, times: int) -> torch.Tensor:
        result = x
        for _ in range(times):
            result = torch.tanh(result @ weight)
        return result

    weights = [torch.randn(512, 512, device=device) / 20 for _ in range(2)]

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        with cuda_graphs.concurrent_streams() as streams:
            with streams[0]:
                first = chain(weights[0], 40)
            with streams[1]:
                second = chain(weights[1], 60)
        return first, second

    expected = both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = both()
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, found, expected))


TRAIN_COMPILED = """
import sys
from pathlib import Path
from torch._dynamo.utils import counters
from cclf.training import cuda_graphs
from tiny_runs import run, tiny_config

base, method, folder = sys.argv[1:]
cuda_graphs.select_compiler = lambda _, wanted: cuda_graphs.compiled if wanted else None
sizes = {"precision": "bf16"}
run(tiny_config("toy/reach-1d", method, base=base, algorithm=sizes, env_steps=24), Path(folder))
found = counters["aot_autograd"]
print(found["total"], found["autograd_cache_hit"])
"""


@pytest.mark.slow(
    "kernels/test_compile_cache.py::test_compile_cache_is_in_the_user_cache_unless_a_variable_names_another"
)
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles for a CPU, by g++")
@pytest.mark.parametrize(("base", "method"), [("sac", "cclf"), ("drqv2", "drq-v2+cclf")])
def test_second_start_takes_every_compiled_function_from_the_cache(
    base: str, method: str, tmp_path: Path
) -> None:
    """Without the cache every start would spend seconds on compilation."""

    def start(folder: str) -> tuple[int, int]:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
        environment["PYTHONPATH"] = str(Path(__file__).parents[1])
        words = [sys.executable, "-c", TRAIN_COMPILED, base, method, str(tmp_path / folder)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "going on without compiling" not in done.stderr
        total, hits = map(int, done.stdout.split())
        return total, hits

    total, hits = start("first")
    assert total > 5
    assert hits < total
    total, hits = start("second")
    assert hits == total
