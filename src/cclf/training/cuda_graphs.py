"""Compilation, and CUDA graphs around an update: its hundreds of kernels start as one. No other
file knows of either."""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from cclf.console import say
from cclf.kernels.compile_cache import set_compile_cache
from cclf.types import Metrics

Function = TypeVar("Function", bound=Callable[..., Any])
First = TypeVar("First")
Second = TypeVar("Second")


def compiled(function: Function) -> Function:
    """The same function as fused kernels, compiled when it is called first and anew for each shape
    it meets: here there are few, and they stay.

    Where it cannot be compiled (no Triton, no C compiler), one line says so and the plain function
    goes on.
    """
    chosen: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        nonlocal chosen
        chosen = chosen or _compile(function)
        if chosen is function:
            return function(*arguments)
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        try:
            return chosen(*arguments)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            reason = str(error).strip().splitlines()[0]
            say(f"going on without compiling {function.__name__}: {reason}")
            chosen = function
            return function(*arguments)

    return call  # type: ignore[return-value]


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """By PyTorch's compiler, which takes seconds to import: random actions need none of it."""
    set_compile_cache()
    from torch._dynamo import config
    from torch._functorch import config as gradients

    # several runs in one process, each with its shapes
    config.recompile_limit = max(config.recompile_limit, 64)
    # what holds a gradient of our own (`bf16_linear`) is kept in the cache too, and is in its key
    if hasattr(gradients, "autograd_cache_allow_custom_autograd_functions"):
        gradients.autograd_cache_allow_custom_autograd_functions = True
    return torch.compile(function, dynamic=False, fullgraph=True)


def run_concurrently(
    first: Callable[[], First], second: Callable[[], Second]
) -> tuple[First, Second]:
    """The results of both. In a CUDA graph they are computed at the same time: small kernels of one
    fill what the other leaves idle.

    Neither may read what the other writes, and what both read must stay referenced until the end:
    memory that one gives back the other might be given.

    >>> run_concurrently(lambda: 1, lambda: 2)
    (1, 2)
    """
    if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return first(), second()
    here, beside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        second_result = second()
    first_result = first()
    here.wait_stream(beside)
    return first_result, second_result


# calls that run plainly first: optimisers make their state, cuDNN chooses its kernels
WARMUP_CALLS = 4


class GraphedPolicy:
    """Calls `act(observation)` on a GPU through CUDA graphs, one for each shape: a policy's hundred
    small kernels start as one.

    The result stays valid until the next call.
    """

    def __init__(self, act: Callable[[Tensor], Tensor], generators: Sequence[torch.Generator] = ()):
        self.act, self.generators = act, generators
        self.graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self.eager_left: dict[torch.Size, int] = {}

    def __call__(self, observation: Tensor) -> Tensor:
        shape = observation.shape
        left = self.eager_left.setdefault(shape, WARMUP_CALLS)
        if left > 0:
            self.eager_left[shape] = left - 1
            return self.act(observation)
        if shape not in self.graphs:
            try:
                self.graphs[shape] = self._capture(observation)
            except RuntimeError as error:
                self.eager_left[shape] = sys.maxsize
                say(f"acting without CUDA graphs: {str(error).splitlines()[0]}")
                return self.act(observation)
        graph, seen, action = self.graphs[shape]
        seen.copy_(observation)
        graph.replay()
        return action

    def _capture(self, observation: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        graph, seen = torch.cuda.CUDAGraph(), observation.clone()
        for generator in self.generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            action = self.act(seen)
        return graph, seen, action


class GraphedUpdate:
    """Calls `update()`, whose every tensor lives on the GPU, through CUDA graphs: one for each
    place in its cycle.

    SAC's updates alternate (the actor learns in every second one), so the cycle is two. `count`
    reads and sets the Python counter that `update` branches on and advances; random streams advance
    inside the graphs because their generators are registered.
    """

    def __init__(
        self,
        update: Callable[[], Metrics],
        cycle: int,
        count: Callable[[int | None], int],
        generators: Sequence[torch.Generator],
    ):
        self.update, self.cycle, self.count, self.generators = update, cycle, count, generators
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, tuple[str, ...], torch.Tensor]] = {}
        self.pool: Any = None
        self.eager_left = WARMUP_CALLS

    def __call__(self) -> Metrics:
        if self.eager_left > 0:
            self.eager_left -= 1
            return self.update()
        number = self.count(None)
        place = number % self.cycle
        if place not in self.graphs:
            try:
                self.graphs[place] = self._capture()
            except RuntimeError as error:
                self.count(number)
                self.eager_left = sys.maxsize
                say(f"going on without CUDA graphs: {str(error).splitlines()[0]}")
                return self.update()
            self.count(number)  # capturing computes nothing, but it ran the Python code
        graph, names, values = self.graphs[place]
        graph.replay()
        self.count(number + 1)
        return dict(zip(names, values.clone().unbind(), strict=True))

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, tuple[str, ...], torch.Tensor]:
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self.pool):
            metrics = self.update()
            values = torch.stack([value.float() for value in metrics.values()])
        self.pool = self.pool or graph.pool()
        return graph, tuple(metrics), values
