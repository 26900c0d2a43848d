"""Curiosity measures: the paper's, three whose belief does not depend on the rest of the batch, two
controls that remove the information from any of them, and those of other packages.

Curiosity has four uses: to select a view, Eq. (5), to weight losses, Eq. (7) and (8), to sample from
replay, Eq. (6), and as a bonus, Eq. (9). Letters as in `cclf.equations`: B batch, K views, D
features; c is curiosity, 1 - belief.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cclf import equations
from cclf.config import CURIOSITY_ENTRY_POINTS, split_control
from cclf.errors import ConfigError, short_error
from cclf.plugins import import_object, load_entry_point


class CuriosityMeasure:
    """The paper's curiosity. A subclass overrides what it computes differently.

    Only an `AbsoluteMeasure` has state. `torch.func.vmap` and `torch.compile` must be able to trace
    every other measure.
    """

    needs_permutation: bool = False
    """Whether `transform` is called with a random permutation of the batch."""

    def beliefs(
        self, query: Tensor, keys: Tensor, bilinear: Tensor, first_duplicate: Tensor | None
    ) -> Tensor:
        """Eq. (3), (K-1, B), from queries (B, D), keys (K-1, B, D) and W (D, D). With
        `first_duplicate` (B,), the index of the first sample with the same observation, each distinct
        observation must count once."""
        return equations.belief(query, keys, bilinear, first_duplicate)

    def transform(self, beliefs: Tensor, permutation: Tensor | None) -> Tensor:  # noqa: ARG002
        """The beliefs (K-1, B) for all four uses. `permutation`: (B,)."""
        return beliefs

    def view_weight(self, curiosity: Tensor) -> Tensor:
        """The weight (B,) of the second view in Eq. (7), from curiosity (B,)."""
        return curiosity

    def contrastive_weight(self, curiosity: Tensor) -> Tensor:
        """The weight (B,) of each sample in Eq. (8)."""
        return curiosity

    def priority(self, curiosity: Tensor) -> Tensor:
        """What takes the place of c (B,) in Eq. (6)."""
        return curiosity

    def bonus_signal(self, curiosity: Tensor, query: Tensor) -> Tensor:  # noqa: ARG002
        """What takes the place of c (B,) in Eq. (9), from curiosity and the anchors' features
        (B, D)."""
        return curiosity


class Shuffled(CuriosityMeasure):
    """A control: sample b gets the beliefs of sample permutation[b]. The numbers are the same, but
    they carry no information about the sample.

    >>> Shuffled().transform(torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]), torch.tensor([2, 0, 1]))
    tensor([[0.3000, 0.1000, 0.2000],
            [0.6000, 0.4000, 0.5000]])
    """

    needs_permutation = True

    def transform(self, beliefs: Tensor, permutation: Tensor | None) -> Tensor:
        assert permutation is not None, "curiosity=shuffled needs a permutation of the batch"
        return beliefs[:, permutation]


class Even(CuriosityMeasure):
    """A control: every belief is the batch mean of each sample's smallest belief, so that curiosity
    has the same mean and no variance. The first view after the anchor is always selected.

    >>> Even().transform(torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.1, 0.7]]), None)
    tensor([[0.1667, 0.1667, 0.1667],
            [0.1667, 0.1667, 0.1667]])
    """

    def transform(self, beliefs: Tensor, permutation: Tensor | None) -> Tensor:  # noqa: ARG002
        return beliefs.amin(0).mean().expand(beliefs.shape)


class RunningMean(nn.Module):
    """An exponential moving average of batch means, without the bias towards its start (as in Adam).

    >>> mean = RunningMean(decay=0.5)
    >>> _ = [mean.update(torch.tensor(value)) for value in (4.0, 1.0)]
    >>> mean.value  # (1/4 of 4 and 1/2 of 1) / (3/4)
    tensor(2.)
    """

    total: Tensor
    weight: Tensor

    def __init__(self, *shape: int, decay: float = 0.99):
        super().__init__()
        self.decay = decay
        self.register_buffer("total", torch.zeros(shape))
        self.register_buffer("weight", torch.zeros(()))

    def update(self, batch_mean: Tensor) -> None:
        self.total.lerp_(batch_mean, 1.0 - self.decay)
        self.weight.mul_(self.decay).add_(1.0 - self.decay)

    @property
    def value(self) -> Tensor:
        """0 before the first update."""
        return self.total / self.weight.clamp_min(torch.finfo(self.weight.dtype).tiny)


class AbsoluteMeasure(CuriosityMeasure, nn.Module):
    """`absolute`: the paper's query and key, with the belief exp(-d^2 / s), which does not depend on
    other observations of the batch. s is the running mean of d^2, so that curiosity keeps its spread
    as distances shrink.

    The measure changes its state in training mode only, like batch normalization. The base algorithm
    calls `observe` once for each batch and saves the measure with its networks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mean_distance = RunningMean()

    def beliefs(
        self,
        query: Tensor,
        keys: Tensor,
        bilinear: Tensor,  # noqa: ARG002
        first_duplicate: Tensor | None,  # noqa: ARG002
    ) -> Tensor:
        distance = equations.squared_distance(query, keys)
        return equations.absolute_belief(distance, self.mean_distance.value)

    @torch.no_grad()
    def observe(self, query: Tensor, key: Tensor) -> None:
        """Move s towards the mean of d^2 over queries and keys (..., B, D)."""
        if self.training:
            self.mean_distance.update(equations.squared_distance(query, key).mean())


class Transitions(NamedTuple):
    """Transitions whose observations are rows of one array. An observation has one row although it is
    o_t of one transition and o_(t+1) of another; on MiniGrid, equal observations also share a row."""

    observations: Tensor  # (R, ...)  input of an encoder
    frequency: Tensor  # (R,)  of each observation in the batch; the sum is 1
    current: Tensor  # (B,)  the rows of o_t
    following: Tensor  # (B,)  the rows of o_(t+1)
    action: Tensor  # (B, A)
    ended: Tensor  # (B,)  bool: o_(t+1) is not of the same episode


class Predictions(NamedTuple):
    """The predictions of a `PredictedMeasure`, and their targets."""

    query: Tensor  # (2, B, D)  the predictions for o_t and o_(t+1), without gradient
    key: Tensor  # (2, B, D)  their targets
    loss: Tensor  # ()  mean d^2, with gradient


class PredictedMeasure(AbsoluteMeasure, ABC):
    """A measure that learns to predict fixed keys: features of a random encoder that is not trained,
    normalized by their running mean and standard deviation.

    A base algorithm calls `build` once, and `predictions` for each batch. It trains `predictor` on
    their loss, and passes their query and key to `beliefs`.
    """

    learning_rate = 1e-3  # of Adam, one step for each batch
    hidden_dim = 128
    encoder: nn.Module
    predictor: nn.Module

    def build(self, make_encoder: Callable[[], nn.Module], features: int, action_dim: int) -> None:
        """Make the networks: an encoder maps observations (R, ...) to (R, features)."""
        self.encoder = make_encoder().requires_grad_(False)
        self.predictor = self.make_predictor(make_encoder, features, action_dim)
        self.mean, self.mean_square = RunningMean(features), RunningMean(features)

    @abstractmethod
    def make_predictor(
        self, make_encoder: Callable[[], nn.Module], features: int, action_dim: int
    ) -> nn.Module: ...

    @abstractmethod
    def predict(self, transitions: Transitions, keys: Tensor) -> Predictions:
        """`keys` (R, D) are the normalized features of all observations."""

    def predictions(self, transitions: Transitions) -> Predictions:
        """The predictions of `predict`. Where an episode ended, the query for o_(t+1) is its key, so
        that its curiosity is 0."""
        predicted = self.predict(transitions, self.normalized_features(transitions))
        ended = torch.stack([torch.zeros_like(transitions.ended), transitions.ended])
        query = torch.where(ended[..., None], predicted.key, predicted.query)
        return predicted._replace(query=query)

    @torch.no_grad()
    def normalized_features(self, transitions: Transitions) -> Tensor:
        """Features (R, D) of the observations, after these have updated the mean and the standard
        deviation."""
        features: Tensor = self.encoder(transitions.observations)
        if self.training:
            self.mean.update(transitions.frequency @ features)
            self.mean_square.update(transitions.frequency @ features**2)
        mean = self.mean.value
        variance = (self.mean_square.value - mean**2).clamp_min(1e-6)
        return (features - mean) * variance.rsqrt()


class RandomDistillation(PredictedMeasure):
    """`rnd`: the belief that two views show the same observation, as in the paper, from a prediction
    error. The query is the output of the predictor for one view, the key that of a fixed random
    encoder for another. With equal views, as on MiniGrid, this is random network distillation (Burda
    et al., ICLR 2019)."""

    def make_predictor(
        self,
        make_encoder: Callable[[], nn.Module],
        features: int,
        action_dim: int,  # noqa: ARG002
    ) -> nn.Module:
        return nn.Sequential(make_encoder(), *_two_layers(features, self.hidden_dim, features))

    def predict(self, transitions: Transitions, keys: Tensor) -> Predictions:
        queries = self.predictor(transitions.observations)
        loss = transitions.frequency @ equations.squared_distance(queries, keys)
        rows = torch.stack([transitions.current, transitions.following])
        return Predictions(queries.detach()[rows], keys[rows], loss)


class ForwardPrediction(PredictedMeasure):
    """`forward`: the belief that o_(t+1) follows o_t and a_t. The query is predicted from the key of
    o_t and the action; the key is that of o_(t+1) (Pathak et al., 2017; random features: Burda et al.,
    ICLR 2019, large-scale study). Both observations have the curiosity of their transition."""

    def make_predictor(
        self,
        make_encoder: Callable[[], nn.Module],  # noqa: ARG002
        features: int,
        action_dim: int,
    ) -> nn.Module:
        return nn.Sequential(*_two_layers(features + action_dim, self.hidden_dim, features))

    def predict(self, transitions: Transitions, keys: Tensor) -> Predictions:
        inputs = torch.cat([keys[transitions.current], transitions.action], dim=1)
        query, key = self.predictor(inputs), keys[transitions.following]
        distance = equations.squared_distance(query, key).masked_fill(transitions.ended, 0.0)
        query = torch.where(transitions.ended[:, None], key, query.detach())
        return Predictions(query.repeat(2, 1, 1), key.expand(2, -1, -1), distance.mean())


def _two_layers(inputs: int, hidden: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs)


# The names are those of `cclf.config.CURIOSITIES`.
CURIOSITY_MEASURES: dict[str, type[CuriosityMeasure]] = {
    "belief": CuriosityMeasure,
    "shuffled": Shuffled,
    "even": Even,
    "absolute": AbsoluteMeasure,
    "rnd": RandomDistillation,
    "forward": ForwardPrediction,
}


def find_measure(name: str) -> CuriosityMeasure:
    """The measure that `MethodConfig.curiosity` names: a built-in one, the entry point of another
    package, or MODULE:NAME of a `CuriosityMeasure` or of a subclass. A name that ends in -shuffled or
    -even is that control of the measure."""
    measure_name, control = split_control(name)
    measure = _find_measure(measure_name)
    if control:  # a copy, with a class that inherits from the control first
        bases = (CURIOSITY_MEASURES[control], type(measure))
        measure = copy.copy(measure)
        measure.__class__ = type(f"{control.title()}{bases[1].__name__}", bases, {})
    return measure


def _find_measure(name: str) -> CuriosityMeasure:
    if name in CURIOSITY_MEASURES:
        return CURIOSITY_MEASURES[name]()
    if ":" in name:
        imported = import_object("curiosity", name)
    else:
        imported = load_entry_point("curiosity", CURIOSITY_ENTRY_POINTS, name)
    try:
        measure = imported() if isinstance(imported, type) else imported
    except Exception as error:  # code of another package
        raise ConfigError(f"curiosity={name} cannot be made: {short_error(error)}") from error
    if not isinstance(measure, CuriosityMeasure):
        raise ConfigError(
            f"curiosity={name} is no cclf.curiosity.CuriosityMeasure but {type(measure).__name__}"
        )
    return measure
