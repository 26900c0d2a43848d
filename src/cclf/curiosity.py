"""Curiosity measures: the paper's, two controls that remove information from it, and those of
other packages.

Curiosity is used four times: to select a view (5), to weight losses (7), (8), to sample from replay
(6) and as a bonus (9). Letters as in `cclf.equations`: B batch, K views, D features; c is curiosity,
1 - belief.
"""

import torch
from torch import Tensor

from cclf import equations
from cclf.config import CURIOSITY_ENTRY_POINTS
from cclf.errors import ConfigError, short_error
from cclf.plugins import import_object, load_entry_point


class CuriosityMeasure:
    """The paper's curiosity. A subclass overrides what it computes differently.

    A measure has no state. `torch.func.vmap` and `torch.compile` must be able to trace it.
    """

    needs_permutation: bool = False
    """`transform` is given a random permutation of the batch."""

    def beliefs(
        self, query: Tensor, keys: Tensor, bilinear: Tensor, first_duplicate: Tensor | None
    ) -> Tensor:
        """Eq. (3), (K-1, B), from queries (B, D), keys (K-1, B, D) and W (D, D). With
        `first_duplicate` (B,) each distinct observation is to count once."""
        return equations.belief(query, keys, bilinear, first_duplicate)

    def transform(self, beliefs: Tensor, permutation: Tensor | None) -> Tensor:  # noqa: ARG002
        """The beliefs (K-1, B) that all four pieces use. `permutation`: (B,)."""
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


# The names are those of `cclf.config.CURIOSITIES`.
CURIOSITY_MEASURES = {"belief": CuriosityMeasure(), "shuffled": Shuffled(), "even": Even()}


def find_measure(name: str) -> CuriosityMeasure:
    """The measure that `MethodConfig.curiosity` names: a built-in one, the entry point of another
    package, or MODULE:NAME of a `CuriosityMeasure` or of a subclass."""
    if name in CURIOSITY_MEASURES:
        return CURIOSITY_MEASURES[name]
    if ":" in name:
        found = import_object("curiosity", name)
    else:
        found = load_entry_point("curiosity", CURIOSITY_ENTRY_POINTS, name)
    try:
        measure = found() if isinstance(found, type) else found
    except Exception as error:  # code of another package
        raise ConfigError(f"curiosity={name} cannot be made: {short_error(error)}") from error
    if not isinstance(measure, CuriosityMeasure):
        raise ConfigError(
            f"curiosity={name} is no cclf.curiosity.CuriosityMeasure but {type(measure).__name__}"
        )
    return measure


def sample_permutation(batch: int, generator: torch.Generator) -> Tensor:
    """A random permutation (B,), by sorting random numbers, which a CUDA graph can capture.

    >>> sample_permutation(4, torch.Generator().manual_seed(1)).sort().values
    tensor([0, 1, 2, 3])
    """
    return torch.rand(batch, generator=generator, device=generator.device).argsort()
