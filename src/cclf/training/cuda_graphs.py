"""Compilation and CUDA graphs: the hundreds of kernels of an update are launched as one graph. No
other module calls torch.compile or captures a CUDA graph."""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from cclf.console import say
from cclf.kernels.compile_cache import set_compile_cache
from cclf.types import Metrics

P = ParamSpec("P")
R = TypeVar("R")


class Compiler(Protocol):
    """`compiled`, or another function that returns an equivalent of its argument."""

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]: ...


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    return function


# Calls without a graph before the capture: optimizers create their state, cuDNN selects kernels.
WARMUP_CALLS = 4


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, compiled at its first call and once for each combination of shapes.

    If it cannot be compiled (no Triton, no C compiler), a message says so and the function itself
    runs.
    """
    chosen: Callable[P, R] | None = None

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal chosen
        chosen = chosen or _compile(function)
        if chosen is function:
            return function(*args, **kwargs)
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        try:
            return chosen(*args, **kwargs)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            reason = str(error).strip().splitlines()[0]
            say(f"going on without compiling {function.__name__}: {reason}")
            chosen = function
            return function(*args, **kwargs)

    return call


def select_compiler(device: torch.device, compile_kernels: bool) -> Compiler | None:
    """`compiled` on a GPU if `compile_kernels`, otherwise None."""
    return compiled if device.type == "cuda" and compile_kernels else None


def _compile(function: Callable[P, R]) -> Callable[P, R]:
    # imported here because the import takes seconds, and warm-up and evaluation do not compile
    set_compile_cache()
    from torch._dynamo import config
    from torch._functorch import config as functorch_config

    # runs that share a process may have different shapes, each of which is compiled
    config.recompile_limit = max(config.recompile_limit, 64)
    # also cache functions with an autograd function of our own, such as `bf16_linear`
    with suppress(AttributeError):  # PyTorch before 2.8
        functorch_config.autograd_cache_allow_custom_autograd_functions = True
    return torch.compile(function, dynamic=False, fullgraph=True)


@contextmanager
def concurrent_streams() -> Iterator[
    tuple[AbstractContextManager[object], AbstractContextManager[object]]
]:
    """Two contexts, each with its own stream while a CUDA graph is captured: the kernels of the
    second run at the same time as those of the first, so that small kernels use cores that would be
    idle. Otherwise the contexts do nothing, and the code runs in the order in which it is written.

    Enter the first context before the second. The code in one must not read what the code in the
    other writes. Kernels that are launched after both contexts wait for the kernels in both.

    >>> with concurrent_streams() as (first, second):
    ...     with first:
    ...         one = 1
    ...     with second:
    ...         two = 2
    """
    if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        yield nullcontext(), nullcontext()
        return
    # The second context is captured after the first. The memory that it reads is therefore still
    # referenced while the first is captured, and is not reused for a tensor of the first.
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(current)
    yield nullcontext(), torch.cuda.stream(side)
    current.wait_stream(side)


class GraphedPolicy:
    """Calls `act(observation)` on a GPU through CUDA graphs, one per shape of the observation.

    The result is overwritten by the next call.
    """

    def __init__(self, act: Callable[[Tensor], Tensor], generators: Sequence[torch.Generator] = ()):
        """`generators`: the random number generators that `act` uses."""
        self.act, self.generators = act, generators
        self.graphs: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self.eager_calls_left: dict[torch.Size, int] = {}

    def __call__(self, observation: Tensor) -> Tensor:
        shape = observation.shape
        left = self.eager_calls_left.setdefault(shape, WARMUP_CALLS)
        if left > 0:
            self.eager_calls_left[shape] = left - 1
            return self.act(observation)
        if shape not in self.graphs:
            try:
                self.graphs[shape] = self._capture(observation)
            except RuntimeError as error:
                self.eager_calls_left[shape] = sys.maxsize
                say(f"acting without CUDA graphs: {str(error).splitlines()[0]}")
                return self.act(observation)
        graph, graph_input, action = self.graphs[shape]
        graph_input.copy_(observation)
        graph.replay()
        return action

    evaluation_action = __call__  # a `cclf.types.Policy`

    def _capture(self, observation: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        graph_input, graph = observation.clone(), _new_graph(self.generators)
        with torch.cuda.graph(graph):
            action = self.act(graph_input)
        return graph, graph_input, action


class CountsUpdates(Protocol):
    updates: int  # made so far


@dataclass
class UpdateCount:
    updates: int = 0


class GraphedUpdate:
    """Calls `update()`, all of whose tensors are on the GPU, through CUDA graphs.

    Updates may differ periodically (SAC's actor learns in every second one), so there is one graph
    per phase, `updates % period`. Random number generators advance within the graphs because they are
    registered with them.
    """

    def __init__(
        self,
        update: Callable[[], Metrics],
        period: int,
        counter: CountsUpdates | None,
        generators: Sequence[torch.Generator],
    ):
        """`update` branches on `counter.updates` and increments it, or there is no `counter`."""
        self.update, self.period, self.generators = update, period, generators
        self.counter: CountsUpdates = counter or UpdateCount()
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, tuple[str, ...], Tensor]] = {}
        self.eager_calls_left = WARMUP_CALLS

    def __call__(self) -> Metrics:
        if self.eager_calls_left > 0:
            self.eager_calls_left -= 1
            return self.update()
        updates = self.counter.updates
        phase = updates % self.period
        if phase not in self.graphs:
            try:
                self.graphs[phase] = self._capture()
            except RuntimeError as error:
                self.counter.updates = updates
                self.eager_calls_left = sys.maxsize
                say(f"going on without CUDA graphs: {str(error).splitlines()[0]}")
                return self.update()
        graph, names, values = self.graphs[phase]
        graph.replay()
        # a replay does not run the Python code, but a capture did
        self.counter.updates = updates + 1
        return dict(zip(names, values.clone().unbind(), strict=True))

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, tuple[str, ...], Tensor]:
        graph = _new_graph(self.generators)
        # all graphs share the memory pool of the first one
        pool = next((first.pool() for first, *_ in self.graphs.values()), None)
        with torch.cuda.graph(graph, pool=pool):
            metrics = self.update()
            values = torch.stack([value.float() for value in metrics.values()])
        return graph, tuple(metrics), values


def _new_graph(generators: Sequence[torch.Generator]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    torch.cuda.synchronize()
    return graph
