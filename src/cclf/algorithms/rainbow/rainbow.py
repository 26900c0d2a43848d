"""Rainbow for ONE run, learning from an appraisal: the loss of one update, from pixels to one
number, in the order of the sheet.

The update never asks which method is running: Rainbow, CURL, DrQ and CCLF differ in what the
appraisal holds. It is a module that draws nothing and moves nothing, so that
`cclf.algorithms.rainbow.batched` can map it over the parameters of many runs.
"""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cclf.algorithms.rainbow import equations
from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.rainbow.networks import DuelingHead, GameEncoder, HeadNoise, Projection
from cclf.config import Config
from cclf.data import augmentations
from cclf.data.augmentations import PixelViews, Views
from cclf.framework import Appraisal, Framework
from cclf.kernels.gather_packed import gather_packed
from cclf.types import GameBatch, Metrics


class RainbowNoise(NamedTuple):
    """Every random number of one update of one run. K views are drawn."""

    online: HeadNoise  # the noise with which the agent has just acted
    target: HeadNoise
    shifts: Tensor  # (K, B, 2, 1 or 2) uniform  of both axes
    next_shifts: Tensor
    intensity: Tensor  # (K, B) standard normal
    next_intensity: Tensor
    order: Tensor  # (B,)  a permutation, where the framework needs one


class RainbowNet(nn.Module):
    """Pixels to logits of the return of each action, or to its Q value where there is one atom; and
    to what beliefs compare."""

    def __init__(
        self,
        projection: Projection | None,
        encoder: GameEncoder,
        head: DuelingHead,
        support: Tensor,
    ):
        super().__init__()
        # In this order: the momentum network is a copy of the first two, the target network of the
        # last two.
        self.projection, self.encoder, self.head = projection, encoder, head
        self.support: Tensor
        # (N,)  the atoms; one zero for plain Q values
        self.register_buffer("support", support, persistent=False)

    def forward(self, images: Tensor, noise: HeadNoise, valid: Tensor) -> Tensor:
        """Q(s, a) (n, A) of stacks of frames (n, F, H, W)."""
        return self.q_values(self.head(self.encoder(images), noise, valid))

    def q_values(self, outputs: Tensor) -> Tensor:
        """From logits (n, A, N) to (n, A): the mean of each distribution."""
        return (
            (outputs.softmax(2) * self.support).sum(2)
            if self.support.shape[0] > 1
            else outputs[..., 0]
        )


class LossOutput(NamedTuple):
    loss: Tensor  # ()
    priority: Tensor  # (B,)  new replay priorities
    metrics: Metrics


class TdLosses(NamedTuple):
    losses: Tensor  # (B,)  Eq. (1) and (7)
    outputs: Tensor  # (V, B, A, N)  of the online network
    target: Tensor  # (B, N)


class RainbowLoss(nn.Module):
    """Networks of one run, and the loss that its next update descends."""

    metric_names: tuple[str, ...] = (
        *(
            "q_loss",
            "q_mean",
            "target_mean",
            "contrastive_loss",
            "reward_mean",
            "n_step_return_mean",
            "ended_share",
        ),
        *(
            "importance_weight_mean",
            "bonus_mean",
            "bonus_max",
            "reward_running_max",
            "bonus_running_max",
        ),
        *(
            "curiosity_mean",
            "curiosity_std",
            "next_curiosity_mean",
            "second_view_weight",
            "priority_mean",
        ),
        *("chosen_view_1", "chosen_view_2", "chosen_view_3", "chosen_view_4"),
    )

    def __init__(self, config: Config, num_actions: int):
        super().__init__()
        settings: RainbowConfig = config.algorithm
        self.settings, self.method, self.frame_pixels = (
            settings,
            config.method,
            config.env.frame_pixels,
        )
        self.framework = Framework(settings.contrastive_dim, config.method, settings.logit_scale)
        encoder = GameEncoder(
            config.env.frame_stack, config.env.frame_pixels, settings.convolutions
        )
        projection = None
        if config.method.contrastive:
            projection = Projection(
                encoder.out_dim, settings.contrastive_hidden_dim, settings.contrastive_dim
            )
        atoms = settings.atoms if settings.distributional else 1
        head = DuelingHead(
            encoder.out_dim,
            settings.hidden_dim,
            num_actions,
            atoms,
            settings.noisy_sigma,
            settings.dueling,
        )
        support = (
            torch.linspace(-settings.value_max, settings.value_max, atoms)
            if atoms > 1
            else torch.zeros(1)
        )
        self.online = RainbowNet(projection, encoder, head, support)
        self.target_encoder, self.target_head = copy.deepcopy(encoder), copy.deepcopy(head)
        self.momentum_projection, self.momentum_encoder = (
            copy.deepcopy(projection),
            copy.deepcopy(encoder),
        )
        self.contrastive_coefficient: Tensor  # games of one stack differ in it
        coefficient = torch.tensor(settings.contrastive_coefficient)
        self.register_buffer("contrastive_coefficient", coefficient, persistent=False)
        self.n_step_discount = settings.discount**settings.n_steps

    def forward(
        self, batch: GameBatch, noise: RainbowNoise, env_steps: Tensor, beta: Tensor, valid: Tensor
    ) -> LossOutput:
        """`beta` is the exponent of the importance weights, `valid` (A,) marks the actions of the
        game.

        No pair of weights and image is encoded twice: the features of the anchor serve belief, Q
        loss and contrastive loss.
        """
        views = self.views(batch.observation, noise.shifts, noise.intensity)
        next_views = self.views(batch.next_observation, noise.next_shifts, noise.next_intensity)
        original = self.settings.q_observations == "original"
        if original:  # beliefs and their loss keep the augmented views of o_t
            next_views = Views(batch.next_observation[None])
        # (B, D), with gradient
        first = self.online.encoder(batch.observation if original else views.inputs[0])
        with torch.no_grad():
            next_first = self.online.encoder(next_views.inputs[0])
        query = first
        if self.method.contrastive:
            query = self._project(self.online.encoder(views.inputs[0]) if original else first)
        if self.framework.needs_curiosity:
            views, next_views = (
                views._replace(query=query.detach()),
                next_views._replace(query=self._project(next_first)),
            )
        appraisal = self.framework.appraise(
            views, next_views, batch.reward, env_steps, self.query, self.key, noise.order
        )
        learned = self._original(appraisal, batch) if original else appraisal

        td = self.td_losses(learned, batch, noise, valid, first, next_first)
        losses = td.losses
        weights = torch.ones_like(losses)
        if self.settings.importance_sampling:
            weights = equations.importance_weights(batch.priority, beta)
        metrics = self._metrics(appraisal, batch, weights, td)

        loss = (weights * losses).mean()
        if self.method.contrastive:
            key = self.key(appraisal.key_view) if appraisal.key is None else appraisal.key
            contrastive = self.framework.contrastive_loss(query, key, appraisal.curiosity)
            metrics["contrastive_loss"] = contrastive.detach()
            share = self.contrastive_coefficient * contrastive
            if self.settings.contrastive_joins_td:
                losses, share = losses + share, share * weights.mean()
            loss = loss + share
        priority = self._priority(batch, appraisal, losses.detach())
        metrics["priority_mean"] = priority.mean()
        return LossOutput(loss, priority, metrics)

    def td_losses(
        self,
        learned: Appraisal[Tensor],
        batch: GameBatch,
        noise: RainbowNoise,
        valid: Tensor,
        first: Tensor,
        next_first: Tensor,
    ) -> TdLosses:
        """Of each transition, over the learned views, of which the first is encoded already."""
        with torch.no_grad():
            target = self._target(learned, batch, noise, valid, next_first)
        outputs = self._outputs(first, learned.views, noise.online, valid)
        losses = (learned.weights * self._view_losses(outputs, batch.action, target)).sum(0)
        return TdLosses(losses, outputs, target)

    def views(self, images: Tensor, shifts: Tensor, intensity: Tensor) -> PixelViews:
        """K views (K, B, F, h, w) of stacks (B, F, H, W), as far as the encoder sees them; words
        (K, B, h, w) where it reads those."""
        if self.method.augmentation == "none":
            shown = self.online.encoder.visible_pixels
            return Views(images[None, :, :, :shown, :shown])
        words = self.online.encoder.accepts_packed(images) and not self.settings.intensity_scale
        take = gather_packed if words else augmentations.gather_pixels
        views = take(images, *self.places(shifts))
        if self.settings.intensity_scale:
            views = (
                views
                * (1.0 + self.settings.intensity_scale * intensity.clamp(-2.0, 2.0))[
                    ..., None, None, None
                ]
            )
        return Views(views)

    def places(self, shifts: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (K, B, h) and columns (K, B, w) of the frame that each view shows."""
        pixels = (
            augmentations.crop_pad_crop_pixels
            if self.method.augmentation == "crop-pad-crop"
            else augmentations.shift_pixels
        )
        shown = self.online.encoder.visible_pixels
        return pixels(shifts[:, :, 0], self.frame_pixels, shown), pixels(
            shifts[:, :, 1], self.frame_pixels, shown
        )

    def _project(self, features: Tensor) -> Tensor:
        assert self.online.projection is not None, "curiosity needs the contrastive head"
        z: Tensor = self.online.projection(features)
        return z

    def query(self, images: Tensor) -> Tensor:
        return self._project(self.online.encoder(images))

    @torch.no_grad()
    def key(self, images: Tensor) -> Tensor:
        assert self.momentum_projection is not None, "curiosity needs the contrastive head"
        z: Tensor = self.momentum_projection(self.momentum_encoder(images))
        return z

    def _original(self, appraisal: Appraisal[Tensor], batch: GameBatch) -> Appraisal[Tensor]:
        """Learn Q from the frames as they are: one view of weight 1. Beliefs and their loss keep
        the augmented ones."""
        one = torch.ones_like(appraisal.weights[:1])
        return appraisal._replace(
            views=batch.observation[None],
            weights=one,
            next_views=batch.next_observation[None],
            next_weights=one,
        )

    def _outputs(self, first: Tensor, views: Tensor, noise: HeadNoise, valid: Tensor) -> Tensor:
        """What the online network says of views (V, B, ...), of which the first is encoded already:
        (V, B, A, N)."""
        features = (
            torch.cat([first, self.online.encoder(views[1:].flatten(0, 1))])
            if len(views) > 1
            else first
        )
        outputs: Tensor = self.online.head(features, noise, valid)
        return outputs.view(*views.shape[:2], *outputs.shape[1:])

    def _target(
        self,
        learned: Appraisal[Tensor],
        batch: GameBatch,
        noise: RainbowNoise,
        valid: Tensor,
        next_first: Tensor,
    ) -> Tensor:
        """What the return of each sample should be: a distribution (B, N), or its mean (B, 1) where
        Q is plain.

        Double Q: the online network chooses the action on each next view, the target network says
        what it is worth. Views are mixed before the projection; since that is linear and the same
        for all of them, mixing after it is no different.
        """
        outputs: Tensor = self.target_head(
            self.target_encoder(learned.next_views.flatten(0, 1)), noise.target, valid
        )
        chooser = outputs  # (V B, A, N)
        if self.settings.double_q:
            chooser = self._outputs(next_first, learned.next_views, noise.online, valid).flatten(
                0, 1
            )
        action = equations.best_action(self.online.q_values(chooser), valid)
        outputs = _gather_action(outputs, action).view(*learned.next_weights.shape, -1)
        mixed = learned.next_weights[..., None]
        bootstrap = self.n_step_discount * batch.continuation[:, None]
        base = (batch.n_step_return + learned.bonus)[:, None]
        support = self.online.support
        if support.shape[0] == 1:
            return base + bootstrap * (mixed * outputs).sum(0)
        probabilities = (mixed * outputs.softmax(2)).sum(0)
        return equations.project_categorical(probabilities, base + bootstrap * support, support)

    def _view_losses(self, outputs: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """(V, B): cross-entropy of C51, Huber loss of a plain Q value."""
        views, batch = outputs.shape[:2]
        taken = _gather_action(outputs.flatten(0, 1), action.repeat(views)).view(views, batch, -1)
        if target.shape[1] == 1:
            return F.huber_loss(taken, target.expand_as(taken), reduction="none").squeeze(2)
        return equations.cross_entropy(target, taken.log_softmax(2))

    def _priority(self, batch: GameBatch, appraisal: Appraisal[Tensor], losses: Tensor) -> Tensor:
        curious = self.framework.priority(batch.priority, appraisal)
        if curious is not None:
            return curious
        return (
            losses**self.settings.priority_exponent
            if self.settings.base_replay == "td-error"
            else torch.ones_like(losses)
        )

    def _metrics(
        self,
        appraisal: Appraisal[Tensor],
        batch: GameBatch,
        weights: Tensor,
        td: TdLosses,
    ) -> Metrics:
        losses, outputs, target = td
        support = self.online.support
        target_value = (target * support).sum(1) if support.shape[0] > 1 else target[:, 0]
        metrics = {
            "q_loss": losses.detach().mean(),
            "q_mean": _gather_action(
                self.online.q_values(outputs[0].detach())[..., None], batch.action
            ).mean(),
            "target_mean": target_value.mean(),
            "reward_mean": batch.reward.mean(),
            "n_step_return_mean": batch.n_step_return.mean(),
            "ended_share": 1.0 - batch.continuation.mean(),
            "importance_weight_mean": weights.mean(),
        }
        return metrics | self.framework.metrics(appraisal, self.method.num_augmented_views)


def _gather_action(outputs: Tensor, action: Tensor) -> Tensor:
    """The row of each sample's action: (n, A, N) and (n,) to (n, N)."""
    return outputs.gather(1, action[:, None, None].expand(-1, 1, outputs.shape[2])).squeeze(1)
