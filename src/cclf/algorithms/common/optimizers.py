"""Optimisers: what they remember of their parameters, one step of several of them, saving and
loading."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam as pytorch_adam
from torch.optim.rmsprop import rmsprop as pytorch_rmsprop

from cclf.storage.safe_loading import check_data, check_same_structure

AdamStep = Callable[..., None]  # a step of Adam, see `adam_step`
# moves parameters by their gradients, what is remembered of them (by name) and numbers of steps
Apply = Callable[..., None]


class Optimizer:
    """Parameters, what is remembered of each, and the function that moves them.

    PyTorch's own classes around the same functions import its compiler, which takes a second or
    more: a run on a CPU needs none of it.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        averages: tuple[str, ...],
        apply: Apply,
        **settings: Any,
    ):
        """`averages`: names of what is remembered beside the number of steps."""
        self.parameters, self.averages, self.apply = list(parameters), averages, apply
        self.settings = settings
        # of each that was moved before, by its place
        self.state: dict[int, dict[str, Tensor]] = {}
        self._places = {parameter: place for place, parameter in enumerate(self.parameters)}

    @torch.no_grad()
    def step(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        move: AdamStep | None = None,
    ) -> None:
        """Move these of its parameters and no others; with `move` that computes it, where this is
        Adam."""
        places = [self._places[parameter] for parameter in parameters]
        for place in places:
            if place not in self.state:
                self.state[place] = self._nothing(place)
        states = [self.state[place] for place in places]
        averages = [[state[name] for state in states] for name in self.averages]
        steps = [state["step"] for state in states]
        moved = list(parameters)
        slopes = [_match_strides(*pair) for pair in zip(parameters, gradients, strict=True)]
        if move is None:
            self.apply(moved, slopes, averages, steps, **self.settings)
        else:
            rates = (self.settings["lr"], *self.settings["betas"], self.settings["eps"])
            move(moved, slopes, *averages, steps, *rates)

    def _nothing(self, place: int) -> dict[str, Tensor]:
        """What is remembered of a parameter before its first step."""
        parameter = self.parameters[place].detach()
        averages = {name: torch.zeros_like(parameter) for name in self.averages}
        return {"step": torch.zeros((), device=parameter.device), **averages}

    def state_dict(self) -> dict[str, Any]:
        """What it remembers of each parameter, by its number; the settings belong to the config."""
        return {str(place): state for place, state in sorted(self.state.items())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes a copy: it would move the tensors under the feet of whoever gave them."""
        for number, memory in state.items():
            place = int(number)
            check_data(place < len(self.parameters), f"optimiser/{number}: no such parameter")
            check_same_structure(self._nothing(place), memory, f"optimiser/{number}")
            steps = float(memory["step"])
            check_data(steps >= 0.0, f"optimiser/{number}: step is {steps}")
        self.state = {}
        for number, memory in state.items():
            known = self._nothing(int(number))
            for name, value in known.items():
                value.copy_(memory[name])
            self.state[int(number)] = known


def adam(
    parameters: Iterable[Tensor],
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> Optimizer:
    return Optimizer(
        parameters, ("exp_avg", "exp_avg_sq"), _pytorchs_adam, lr=lr, betas=betas, eps=eps
    )


def _pytorchs_adam(
    parameters: list[Tensor],
    gradients: list[Tensor],
    averages: list[list[Tensor]],
    steps: list[Tensor],
    **settings: Any,
) -> None:
    """One kernel moves all parameters. On a GPU it counts its steps there, so that a CUDA graph can
    hold it."""
    means, squares = averages
    beta1, beta2 = settings["betas"]
    pytorch_adam(
        parameters,
        gradients,
        means,
        squares,
        [],
        steps,
        fused=True,
        foreach=False,
        capturable=parameters[0].is_cuda,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=settings["lr"],
        weight_decay=0.0,
        eps=settings["eps"],
        maximize=False,
    )


def rmsprop(parameters: Iterable[Tensor], lr: float, alpha: float, eps: float) -> Optimizer:
    return Optimizer(parameters, ("square_avg",), _pytorchs_rmsprop, lr=lr, alpha=alpha, eps=eps)


def _pytorchs_rmsprop(
    parameters: list[Tensor],
    gradients: list[Tensor],
    averages: list[list[Tensor]],
    steps: list[Tensor],
    **settings: Any,
) -> None:
    (squares,) = averages
    pytorch_rmsprop(
        parameters,
        gradients,
        squares,
        [],
        [],
        steps,
        foreach=True,
        weight_decay=0.0,
        momentum=0.0,
        centered=False,
        **settings,
    )


def _match_strides(parameter: Tensor, gradient: Tensor) -> Tensor:
    """Convolutions give gradients in their own layout; one kernel for all wants the parameter's."""
    same = gradient.stride() == parameter.stride()
    return gradient if same else torch.empty_like(parameter).copy_(gradient)


def trainable_parameters(network: nn.Module) -> list[Tensor]:
    """The parameters that an optimiser may move: an encoder of the user's own may have others."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def backward_and_step(loss: Tensor, *optimisers: Optimizer, move: AdamStep | None = None) -> None:
    """One backward; then each optimiser moves its own parameters, and none else moves."""
    moved = list(dict.fromkeys(one for optimiser in optimisers for one in optimiser.parameters))
    gradients = dict(zip(moved, torch.autograd.grad(loss, moved), strict=True))
    for optimiser in optimisers:
        owned = optimiser.parameters
        optimiser.step(owned, [gradients[parameter] for parameter in owned], move)


@torch.no_grad()
def adam_step(
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> None:
    """What `torch.optim.Adam` does, as one function: a compiler makes few kernels of it that keep a
    GPU busy, where PyTorch's own takes three times as long.

        m <- m + (1 - beta1) (g - m)        v <- beta2 v + (1 - beta2) g^2
        p <- p - lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon)
    """
    torch._foreach_add_(steps, 1.0)
    torch._foreach_lerp_(means, gradients, 1.0 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - beta2)
    t, dtype = steps[0].double(), parameters[0].dtype
    step_size = (learning_rate / (1.0 - beta1**t)).to(dtype)
    spread = (1.0 - beta2**t).sqrt().to(dtype)
    roots = torch._foreach_div(torch._foreach_sqrt(squares), spread)
    torch._foreach_add_(roots, epsilon)
    changes = torch._foreach_mul(torch._foreach_div(means, roots), step_size)
    torch._foreach_sub_(parameters, changes)


def select_adam_step(wrap: Callable[[Any], Any]) -> AdamStep | None:
    """`adam_step` wrapped, by a compiler for example; None, PyTorch's own step, where nothing is
    gained."""
    move: AdamStep = wrap(adam_step)
    return None if move is adam_step else move


@torch.no_grad()
def polyak_update(slow: list[Tensor], fast: list[Tensor], rate: float) -> None:
    """The target moves towards its network: s <- s + rate (f - s)."""
    torch._foreach_lerp_(slow, fast, rate)
