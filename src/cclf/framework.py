"""CCLF without a base algorithm: the belief, the curiosity that follows from it, and the appraisal
of a batch.

A base algorithm passes views of a batch and two encoders to `Framework.appraise` and learns from the
`Appraisal` that it returns. docs/design.md connects the framework to an algorithm of your own.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple

import torch
from torch import Tensor, nn

from cclf import equations
from cclf.config import MethodConfig
from cclf.curiosity import find_measure
from cclf.data.augmentations import V, ViewIndex, Views

Encode = Callable[[V], Tensor]  # views (N, ...) to features (N, D)


class Appraisal(NamedTuple, Generic[V]):
    """What a base algorithm learns from, with the same fields for every method: B samples with V views
    in the loss, of K. With all pieces of CCLF off, the weights are uniform and the bonus is zero."""

    views: V  # (V, B, ...)  views of o_t to learn from, anchor first
    weights: Tensor  # (V, B)  their weights in the loss; each column sums to 1
    next_views: V  # (V, B, ...)
    next_weights: Tensor  # (V, B)
    key_view: V  # (B, ...)  the anchor's positive in the contrastive loss
    curiosity: Tensor  # (B,)
    next_curiosity: Tensor  # (B,)
    bonus: Tensor  # (B,)  intrinsic reward
    selected_view: Tensor  # (B,)  index of the selected view of o_t, 1..K-1
    next_selected_view: Tensor  # (B,)  the same for o_(t+1)
    bonus_signal: Tensor  # (B,)  what the bonus is proportional to, (c + c') / 2 in the paper
    key: Tensor | None = None  # (B, D)  features of `key_view`, if curiosity needed them


class _Selection(NamedTuple):
    """What `Framework._select_view` finds for one observation of each transition."""

    view: Tensor  # (B,)  index of the selected view, 1..K-1
    curiosity: Tensor  # (B,)
    bonus_signal: Tensor  # (B,)
    keys: Tensor | None  # (K-1, B, D)  features of all views but the anchor


class Framework(nn.Module):
    """The belief and the four pieces, in the order of the paper's Algorithm 1."""

    reward_max: Tensor
    bonus_max: Tensor

    def __init__(
        self, feature_dim: int, method: MethodConfig | None = None, logit_scale: float = 1.0
    ):
        """`method` says which pieces are on, by default all of them. `logit_scale` is the inverse
        temperature of the softmax in (3) and (8), which the paper does not have."""
        super().__init__()
        method = method or MethodConfig()
        # W is initialised uniformly in [0, 1).
        self.bilinear = nn.Parameter(torch.rand(feature_dim, feature_dim))
        # Not 0, because Eq. (9) divides one maximum by the other.
        start = 1.0 if method.bonus_maxima == "one" else 1e-5
        self.register_buffer("reward_max", torch.tensor(start))
        self.register_buffer("bonus_max", torch.tensor(start))
        self.method, self.logit_scale = method, logit_scale
        self.num_loss_views, self.selection = method.num_loss_views, method.selection
        self.needs_curiosity = method.needs_curiosity
        self.measure = find_measure(method.curiosity)
        self.needs_permutation = method.needs_curiosity and self.measure.needs_permutation

    @torch.no_grad()
    def appraise(
        self,
        views: Views[V],
        next_views: Views[V],
        reward: Tensor,
        env_steps: Tensor,
        encode_query: Encode[V],
        encode_key: Encode[V],
        permutation: Tensor | None = None,
    ) -> Appraisal[V]:
        """Curiosity (3), selection (4)(5), weights (7) and bonus (9) of a batch. `env_steps` is t
        in Eq. (9); `permutation` (B,) is required if `needs_permutation`."""
        now = self._select_view(views, reward, encode_query, encode_key, permutation)
        following = self._select_view(next_views, reward, encode_query, encode_key, permutation)
        signal, next_signal = now.bonus_signal, following.bonus_signal
        has_positive = views.shape[0] > 1  # otherwise the anchor is the only view
        return Appraisal(
            views=self._loss_views(views.inputs, now.view),
            weights=self._weights(now.curiosity),
            next_views=self._loss_views(next_views.inputs, following.view),
            next_weights=self._weights(following.curiosity),
            key_view=_map_views(
                lambda x: _gather_views(x, now.view) if has_positive else x[0], views.inputs
            ),
            curiosity=now.curiosity,
            next_curiosity=following.curiosity,
            bonus=self._bonus(signal, next_signal, reward, env_steps),
            selected_view=now.view,
            next_selected_view=following.view,
            bonus_signal=(signal + next_signal) / 2.0,
            key=None if now.keys is None else _gather_views(now.keys, now.view - 1),
        )

    def sample_permutation(self, batch: int, generator: torch.Generator) -> Tensor | None:
        """The permutation (B,) for `appraise`. If none is needed, nothing is sampled."""
        if not self.needs_permutation:
            return None
        # Sorted random numbers, because a CUDA graph cannot capture `torch.randperm`.
        return torch.rand(batch, generator=generator, device=generator.device).argsort()

    @torch.no_grad()
    def match_probabilities(
        self, views: Views[V], encode_query: Encode[V], encode_key: Encode[V]
    ) -> Tensor:
        """The probability that each anchor belongs to each observation of the batch, (K-1, B, B).

        The diagonal is the belief, Eq. (3), which is all that training needs; `cclf inspect` shows
        the other entries.
        """
        query, keys, first_duplicate = self._features(views, encode_query, encode_key)
        logits = equations.similarity_logits(query, keys, self.bilinear)
        return equations.log_match_probabilities(logits, first_duplicate).exp()

    def contrastive_loss(
        self, query: Tensor, key: Tensor, curiosity: Tensor, first_duplicate: Tensor | None = None
    ) -> Tensor:
        """Eq. (8) for features of the anchors (B, D), with gradient, and of the key views (B, D),
        without."""
        logits = equations.similarity_logits(query * self.logit_scale, key.detach(), self.bilinear)
        weights = torch.ones_like(curiosity)
        if self.method.regularisation:
            weights = self.measure.contrastive_weight(curiosity)
        return equations.contrastive_loss(
            logits, weights, self.method.contrastive_reduction, first_duplicate
        )

    def metrics(self, appraisal: Appraisal[V], num_augmented_views: int) -> dict[str, Tensor]:
        """Statistics of an appraisal for train.csv. How often each view is selected is logged for
        at most four views."""
        metrics = {
            "bonus_mean": appraisal.bonus.mean(),
            "bonus_max": appraisal.bonus.max(),
            "reward_running_max": self.reward_max.clone(),
            "bonus_running_max": self.bonus_max.clone(),
        }
        if self.needs_curiosity:
            metrics |= {
                "curiosity_mean": appraisal.curiosity.mean(),
                "curiosity_std": appraisal.curiosity.std(
                    correction=min(1, len(appraisal.curiosity) - 1)
                ),
                "next_curiosity_mean": appraisal.next_curiosity.mean(),
                "second_view_weight": appraisal.weights[1].mean(),
            }
        if self.selection != "all":
            selected = appraisal.selected_view
            numbers = range(1, min(num_augmented_views, 5))
            column = torch.arange(1, numbers.stop, device=selected.device)[:, None]
            shares = (selected == column).to(appraisal.curiosity.dtype).mean(1)
            metrics |= {f"chosen_view_{n}": share for n, share in zip(numbers, shares, strict=True)}
        return metrics

    def priority(self, previous: Tensor, appraisal: Appraisal[V]) -> Tensor | None:
        """Eq. (6) for the transitions of an appraised batch, or None if replay is uniform."""
        if not self.method.prioritisation:
            return None
        curiosity, next_curiosity = map(
            self.measure.priority, (appraisal.curiosity, appraisal.next_curiosity)
        )
        return equations.priority(
            previous, curiosity, next_curiosity, self.method.priority_momentum
        )

    def _features(
        self, views: Views[V], encode_query: Encode[V], encode_key: Encode[V]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Queries of the anchors (B, D), keys of all other views (K-1, B, D), and the first
        duplicate of each sample (B,) if only distinct observations count."""
        num_views, batch = views.shape
        query = views.query
        if query is None:
            query = encode_query(_map_views(lambda x: x[0], views.inputs))
        keys = encode_key(_map_views(lambda x: x[1:].flatten(0, 1), views.inputs))
        distinct = self.method.negatives == "distinct"
        first_duplicate = views.first_duplicate if distinct else None
        return query * self.logit_scale, keys.view(num_views - 1, batch, -1), first_duplicate

    def _select_view(
        self,
        views: Views[V],
        reward: Tensor,
        encode_query: Encode[V],
        encode_key: Encode[V],
        permutation: Tensor | None,
    ) -> _Selection:
        """Curiosity (3) about each sample and its selected view (4), (5)."""
        _, batch = views.shape
        beliefs = torch.ones(1, batch, dtype=reward.dtype, device=reward.device)
        query = keys = None
        if self.needs_curiosity:
            query, keys, first_duplicate = self._features(views, encode_query, encode_key)
            beliefs = self.measure.beliefs(query, keys, self.bilinear, first_duplicate)
            beliefs = self.measure.transform(beliefs, permutation)
        if self.selection == "curiosity":
            selected = equations.select_most_curious(beliefs)
        elif self.selection == "overlap":
            corners, pixels = views.crop_corners, views.crop_pixels
            assert corners is not None and pixels is not None, (  # noqa: PT018
                "selection by overlap needs the corners and the size of the crops"
            )
            overlaps = equations.overlap(corners[:1], corners[1:], pixels)
            selected = equations.select_least_overlap(overlaps)
        else:
            selected = torch.zeros(batch, dtype=torch.int64, device=reward.device)
        belief = beliefs.gather(0, selected[None])[0] if self.needs_curiosity else beliefs[0]
        curiosity = bonus_signal = equations.curiosity(belief)
        if query is not None and self.method.reward:
            bonus_signal = self.measure.bonus_signal(curiosity, query)
        return _Selection(selected + 1, curiosity, bonus_signal, keys)

    def _loss_views(self, views: V, selected: Tensor) -> V:
        """(V, B, ...): the first views, or the anchor and the selected view."""
        if self.selection == "all":
            return _map_views(lambda x: x[: self.num_loss_views], views)
        return _map_views(lambda x: torch.stack([x[0], _gather_views(x, selected)]), views)

    def _weights(self, curiosity: Tensor) -> Tensor:
        if self.method.regularisation and self.num_loss_views == 2:
            return equations.curiosity_weights(self.measure.view_weight(curiosity))
        return equations.uniform_weights(self.num_loss_views, like=curiosity)

    def _bonus(
        self, signal: Tensor, next_signal: Tensor, reward: Tensor, env_steps: Tensor
    ) -> Tensor:
        if not self.method.reward:
            return torch.zeros_like(signal)
        # The paper: both maxima include this batch.
        if self.method.bonus_maxima == "of-curiosity":
            self._update_maxima(reward, (signal + next_signal) / 2.0)
        bonus = equations.intrinsic_reward(
            signal,
            next_signal,
            env_steps,
            self.method.bonus_temperature,
            self.method.bonus_decay_per_env_step,
            self.reward_max,
            self.bonus_max,
        ).to(reward.dtype)
        # The released code: the maxima are updated after their use, so they lack this batch.
        if self.method.bonus_maxima == "of-paid-bonus":
            self._update_maxima(reward, bonus)
        return bonus

    def _update_maxima(self, reward: Tensor, bonus: Tensor) -> None:
        self.bonus_max.copy_(torch.maximum(self.bonus_max, bonus.max()))
        self.reward_max.copy_(torch.maximum(self.reward_max, reward.max()))


def _map_views(function: Callable[[Tensor], Tensor], views: V) -> V:
    """Apply `function` to the tensor of views, or to that of their row numbers."""
    return ViewIndex(function(views.rows)) if isinstance(views, ViewIndex) else function(views)


def _gather_views(views: Tensor, selected: Tensor) -> Tensor:
    """View `selected[b]` of each sample b: (K, B, ...) and (B,) to (B, ...)."""
    return views[selected, torch.arange(views.shape[1], device=views.device)]
