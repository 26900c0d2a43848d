"""The framework: a belief about which views belong together, and the appraisal of a batch that a
base algorithm learns from.

It knows no base algorithm. Hand it views and two encoders; it hands back one `Appraisal`. See
docs/design.md for an example that wires it to an algorithm of your own.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cclf import equations
from cclf.config import MethodConfig
from cclf.curiosity import CURIOSITY_MEASURES, sample_permutation
from cclf.data.augmentations import Views

Encode = Callable[[Tensor], Tensor]


class Appraisal(NamedTuple):
    """All that a base algorithm sees of CCLF. With every piece off it is plain replay: even
    weights, zero bonus."""

    views: Tensor  # (V, B, ...)  views of o_t to learn from, anchor first
    weights: Tensor  # (V, B)  their weights in the loss; each column sums to 1
    next_views: Tensor  # (V, B, ...)
    next_weights: Tensor  # (V, B)
    key_view: Tensor  # (B, ...)  the anchor's positive in the contrastive loss
    curiosity: Tensor  # (B,)
    next_curiosity: Tensor  # (B,)
    bonus: Tensor  # (B,)  intrinsic reward
    chosen: Tensor  # (B,)  number of the chosen view of o_t, 1..K-1
    next_chosen: Tensor  # (B,)  and of o_(t+1)
    bonus_signal: Tensor  # (B,)  what the bonus is proportional to, (c + c') / 2 in the paper
    key: Tensor | None = None  # (B, D)  features of `key_view`, where curiosity asked for them


class Framework(nn.Module):
    """Belief state and the four pieces, in the order of the paper's algorithm box."""

    reward_max: Tensor
    bonus_max: Tensor

    def __init__(
        self, feature_dim: int, method: MethodConfig | None = None, logit_scale: float = 1.0
    ):
        """`method` says which pieces are on, all of them unless told.

        `logit_scale` is one over the temperature of the softmax in (3) and (8), which the paper
        leaves out.
        """
        super().__init__()
        method = method or MethodConfig()
        # W starts uniform in [0, 1)
        self.bilinear = nn.Parameter(torch.rand(feature_dim, feature_dim))
        # not 0: Eq. (9) divides one maximum by the other
        start = 1.0 if method.bonus_maxima == "one" else 1e-5
        self.register_buffer("reward_max", torch.tensor(start))
        self.register_buffer("bonus_max", torch.tensor(start))
        self.method, self.logit_scale = method, logit_scale
        self.num_loss_views, self.selection = method.num_loss_views, method.selection
        self.needs_curiosity = method.needs_curiosity
        self.measure = CURIOSITY_MEASURES[method.curiosity]
        self.needs_permutation = method.needs_curiosity and self.measure.needs_permutation

    @torch.no_grad()
    def appraise(
        self,
        views: Views,
        next_views: Views,
        reward: Tensor,
        env_steps: Tensor,
        encode_query: Encode,
        encode_key: Encode,
        order: Tensor | None = None,
    ) -> Appraisal:
        """Curiosity (3), selection (4)(5), weights (7) and bonus (9) for a batch; `env_steps` is
        the t of Eq. (9), `order` (B,) a permutation where `needs_permutation`."""
        encode = (encode_query, encode_key)
        chosen, curiosity, pay, keys = self._select_view(views, reward, *encode, order)
        next_chosen, next_curiosity, next_pay, _ = self._select_view(
            next_views, reward, *encode, order
        )
        key_view = (
            _gather_views(views.inputs, chosen) if views.inputs.shape[0] > 1 else views.inputs[0]
        )
        return Appraisal(
            views=self._loss_views(views.inputs, chosen),
            weights=self._weights(curiosity),
            next_views=self._loss_views(next_views.inputs, next_chosen),
            next_weights=self._weights(next_curiosity),
            key_view=key_view,
            curiosity=curiosity,
            next_curiosity=next_curiosity,
            bonus=self._bonus(pay, next_pay, reward, env_steps),
            chosen=chosen,
            next_chosen=next_chosen,
            bonus_signal=(pay + next_pay) / 2.0,
            key=None if keys is None else _gather_views(keys, chosen - 1),
        )

    def draw_order(self, batch: int, generator: torch.Generator) -> Tensor | None:
        """A permutation of the batch where `appraise` needs one; else nothing is drawn."""
        return sample_permutation(batch, generator) if self.needs_permutation else None

    @torch.no_grad()
    def matches(self, views: Views, encode_query: Encode, encode_key: Encode) -> Tensor:
        """To which observation of the batch each anchor is thought to belong, (K-1, B, B); Eq. (3)
        is the diagonal.

        Training needs that diagonal alone; this is for people who ask what an observation was taken
        for.
        """
        query, keys, same = self._features(views, encode_query, encode_key)
        return equations.log_match_probabilities(
            equations.similarity_logits(query, keys, self.bilinear), same
        ).exp()

    def contrastive_loss(
        self, query: Tensor, key: Tensor, curiosity: Tensor, same: Tensor | None = None
    ) -> Tensor:
        """Eq. (8): features of the anchor (B, D), which learn, against those of the key views (B,
        D), which do not."""
        logits = equations.similarity_logits(query * self.logit_scale, key.detach(), self.bilinear)
        contrast = self.measure.contrast if self.method.regularisation else torch.ones_like
        weights = contrast(curiosity)
        return equations.contrastive_loss(logits, weights, self.method.contrastive_reduction, same)

    def metrics(self, appraisal: Appraisal, num_augmented_views: int) -> dict[str, Tensor]:
        """What a log says of an appraisal; of the shares of chosen views the first four."""
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
            numbers = range(1, min(num_augmented_views, 5))
            places = torch.arange(1, numbers.stop, device=appraisal.chosen.device)[:, None]
            shares = (appraisal.chosen == places).to(appraisal.curiosity.dtype).mean(1)
            metrics |= {f"chosen_view_{n}": share for n, share in zip(numbers, shares, strict=True)}
        return metrics

    def priority(self, previous: Tensor, appraisal: Appraisal) -> Tensor | None:
        """Eq. (6) for the transitions of an appraised batch; None where replay stays uniform."""
        if not self.method.prioritisation:
            return None
        now, following = map(self.measure.priority, (appraisal.curiosity, appraisal.next_curiosity))
        return equations.priority(previous, now, following, self.method.priority_momentum)

    def _features(
        self, views: Views, encode_query: Encode, encode_key: Encode
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Of the anchors (B, D) and of all other views (K-1, B, D), and which samples are copies
        where those do not count."""
        others, batch = views.inputs.shape[0] - 1, views.inputs.shape[1]
        query = encode_query(views.inputs[0]) if views.query is None else views.query
        keys = encode_key(views.inputs[1:].flatten(0, 1)).view(others, batch, -1)
        same = views.same if self.method.negatives == "distinct" else None
        return query * self.logit_scale, keys, same

    def _select_view(
        self,
        views: Views,
        reward: Tensor,
        encode_query: Encode,
        encode_key: Encode,
        order: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Number of the chosen view, curiosity about it and what the bonus pays for, for each
        sample; and the features (K-1, B, D) it chose from."""
        batch = views.inputs.shape[1]
        beliefs = torch.ones(1, batch, dtype=reward.dtype, device=reward.device)
        query = keys = None
        if self.needs_curiosity:
            query, keys, same = self._features(views, encode_query, encode_key)
            beliefs = self.measure.beliefs(query, keys, self.bilinear, same)
            beliefs = self.measure.arranged(beliefs, order)
        if self.selection == "curiosity":
            chosen = equations.select_most_curious(beliefs)
        elif self.selection == "overlap":
            assert views.origins is not None, "selection by overlap needs the corners of the crops"
            assert views.crop_pixels is not None, "selection by overlap needs the size of the crops"
            overlaps = equations.overlap(views.origins[:1], views.origins[1:], views.crop_pixels)
            chosen = equations.select_least_overlap(overlaps)
        else:
            chosen = torch.zeros(batch, dtype=torch.int64, device=reward.device)
        belief = beliefs.gather(0, chosen[None])[0] if self.needs_curiosity else beliefs[0]
        curiosity = equations.curiosity(belief)
        pay = curiosity
        if query is not None and self.method.reward:
            pay = self.measure.pay(curiosity, query)
        return chosen + 1, curiosity, pay, keys

    def _loss_views(self, images: Tensor, chosen: Tensor) -> Tensor:
        if self.selection == "all":
            return images[: self.num_loss_views]
        return torch.stack([images[0], _gather_views(images, chosen)])

    def _weights(self, curiosity: Tensor) -> Tensor:
        if self.method.regularisation and self.num_loss_views == 2:
            return equations.curiosity_weights(self.measure.weight(curiosity))
        return equations.uniform_weights(self.num_loss_views, like=curiosity)

    def _bonus(self, pay: Tensor, next_pay: Tensor, reward: Tensor, env_steps: Tensor) -> Tensor:
        if not self.method.reward:
            return torch.zeros_like(pay)
        if self.method.bonus_maxima == "of-curiosity":  # the paper: both maxima include this step
            self.bonus_max.copy_(torch.maximum(self.bonus_max, ((pay + next_pay) / 2.0).max()))
            self.reward_max.copy_(torch.maximum(self.reward_max, reward.max()))
        scale = (self.method.bonus_temperature, self.method.bonus_decay_per_env_step)
        maxima = (self.reward_max, self.bonus_max)
        bonus = equations.intrinsic_reward(pay, next_pay, env_steps, *scale, *maxima)
        bonus = bonus.to(reward.dtype)
        # the released code: used before they are updated
        if self.method.bonus_maxima == "of-paid-bonus":
            self.bonus_max.copy_(torch.maximum(self.bonus_max, bonus.max()))
            self.reward_max.copy_(torch.maximum(self.reward_max, reward.max()))
        return bonus


def _gather_views(images: Tensor, chosen: Tensor) -> Tensor:
    """View number `chosen[b]` of each sample: (K, B, ...) and (B,) to (B, ...)."""
    return images[chosen, torch.arange(images.shape[1], device=images.device)]
