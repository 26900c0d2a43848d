"""The networks and the loss of one Rainbow run.

The loss does not depend on the name of the method: Rainbow, CURL, DrQ and CCLF differ in the
settings and in what the appraisal contains. `RainbowLoss` samples no random numbers and updates no
weights, so that `torch.func.vmap` can map it over many runs (`batched.py`).
"""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cclf.algorithms.rainbow import equations
from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.rainbow.networks import (
    DuelingHead,
    GameEncoder,
    HeadNoise,
    Projection,
    RainbowNet,
)
from cclf.config import Config
from cclf.data import augmentations
from cclf.data.augmentations import TensorViews, Views
from cclf.framework import Appraisal, Framework
from cclf.kernels.gather_packed import gather_packed
from cclf.training.seeding import seeded_weights
from cclf.types import GameBatch, Metrics


class RainbowNoise(NamedTuple):
    """All random numbers of one update of one run; K views are augmented."""

    online: HeadNoise  # the latest action used the same noise
    target: HeadNoise
    shifts: Tensor  # (K, B, 2 axes, 1 or 2) uniform
    next_shifts: Tensor
    intensity: Tensor  # (K, B) standard normal
    next_intensity: Tensor
    permutation: Tensor  # (B,)  only used if the curiosity measure needs one


class LossOutput(NamedTuple):
    loss: Tensor  # ()
    priority: Tensor  # (B,)  new replay priorities
    metrics: Metrics


class TdLosses(NamedTuple):
    losses: Tensor  # (B,)  Eq. (1) and (7)
    outputs: Tensor  # (V, B, A, N)  of the online network
    target: Tensor  # (B, N)


class RainbowLoss(nn.Module):
    """The networks of one run, and the loss of its next update."""

    metric_names: tuple[str, ...] = (
        "q_loss", "q_mean", "target_mean", "contrastive_loss", "reward_mean", "n_step_return_mean",
        "ended_share", "importance_weight_mean", "bonus_mean", "bonus_max", "reward_running_max",
        "bonus_running_max", "curiosity_mean", "curiosity_std", "next_curiosity_mean",
        "second_view_weight", "priority_mean", "chosen_view_1", "chosen_view_2", "chosen_view_3",
        "chosen_view_4",
    )  # fmt: skip

    def __init__(self, config: Config[RainbowConfig], num_actions: int):
        super().__init__()
        settings = config.algorithm
        env = config.env
        self.settings, self.method = settings, config.method
        self.frame_pixels = env.frame_pixels
        self.framework = Framework(settings.contrastive_dim, config.method, settings.logit_scale)
        encoder = GameEncoder(env.frame_stack, env.frame_pixels, settings.convolutions)
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
        self.momentum_projection = copy.deepcopy(projection)
        self.momentum_encoder = copy.deepcopy(encoder)
        self.contrastive_coefficient: Tensor  # a buffer, because it depends on the game
        coefficient = torch.tensor(settings.contrastive_coefficient)
        self.register_buffer("contrastive_coefficient", coefficient, persistent=False)
        self.n_step_discount = settings.discount**settings.n_steps

    def forward(
        self,
        batch: GameBatch,
        noise: RainbowNoise,
        env_steps: Tensor,
        beta: Tensor,
        action_mask: Tensor,
    ) -> LossOutput:
        """`beta` is the exponent of the importance weights; `action_mask` (A,) is 1 for the actions
        of the game.

        Each view is encoded once per network: the belief, the Q loss and the contrastive loss use the
        same features of the anchor. In Rainbow and CURL the Q loss is on the original frames, and only
        the contrastive loss uses augmented views of o_t (`q_observations`).
        """
        views = self.views(batch.observation, noise.shifts, noise.intensity)
        next_views = self.views(batch.next_observation, noise.next_shifts, noise.next_intensity)
        original = self.settings.q_observations == "original"
        if original:
            next_views = Views(batch.next_observation[None])
        # (B, D), with gradient
        features = self.online.encoder(batch.observation if original else views.inputs[0])
        with torch.no_grad():
            next_features = self.online.encoder(next_views.inputs[0])
        query = features
        if self.method.contrastive:
            query = self._project(self.online.encoder(views.inputs[0]) if original else features)
        if self.framework.needs_curiosity:
            views, next_views = (
                views._replace(query=query.detach()),
                next_views._replace(query=self._project(next_features)),
            )
        # Eq. (3) to (5), (7) and (9)
        appraisal = self.framework.appraise(
            views, next_views, batch.reward, env_steps, self.query, self.key, noise.permutation
        )
        loss_appraisal = appraisal
        if original:  # one view of weight 1: the frames themselves
            one = torch.ones_like(appraisal.weights[:1])
            loss_appraisal = appraisal._replace(
                views=batch.observation[None],
                weights=one,
                next_views=batch.next_observation[None],
                next_weights=one,
            )

        # Eq. (1), (2) and (7)
        td = self.td_losses(loss_appraisal, batch, noise, action_mask, features, next_features)
        losses = td.losses
        weights = torch.ones_like(losses)
        if self.settings.importance_sampling:
            weights = equations.importance_weights(batch.priority, beta)
        metrics = self._metrics(appraisal, batch, weights, td)

        loss = (weights * losses).mean()
        if self.method.contrastive:  # Eq. (8)
            key = self.key(appraisal.key_view) if appraisal.key is None else appraisal.key
            contrastive = self.framework.contrastive_loss(query, key, appraisal.curiosity)
            metrics["contrastive_loss"] = contrastive.detach()
            contrastive = self.contrastive_coefficient * contrastive
            if self.settings.contrastive_joins_td:
                losses, contrastive = losses + contrastive, contrastive * weights.mean()
            loss = loss + contrastive
        priority = self._priority(batch, appraisal, losses.detach())  # Eq. (6), or by TD error
        metrics["priority_mean"] = priority.mean()
        return LossOutput(loss, priority, metrics)

    def td_losses(
        self,
        appraisal: Appraisal[Tensor],
        batch: GameBatch,
        noise: RainbowNoise,
        action_mask: Tensor,
        features: Tensor,
        next_features: Tensor,
    ) -> TdLosses:
        """The TD loss of each transition, weighted over its views. `features` and `next_features` are the
        encoder's features of the first views."""
        with torch.no_grad():
            target = self._target(appraisal, batch, noise, action_mask, next_features)
        outputs = self._outputs(features, appraisal.views, noise.online, action_mask)
        losses = (appraisal.weights * self._view_losses(outputs, batch.action, target)).sum(0)
        return TdLosses(losses, outputs, target)

    def views(self, images: Tensor, shifts: Tensor, intensity: Tensor) -> TensorViews:
        """K views (K, B, F, h, w) of stacks (B, F, H, W), cropped to the pixels that the encoder uses;
        packed (K, B, h, w) if the encoder reads packed frames."""
        if self.method.augmentation == "none":
            pixels = self.online.encoder.visible_pixels
            return Views(images[None, :, :, :pixels, :pixels])
        scale = self.settings.intensity_scale
        packed = self.online.encoder.accepts_packed(images) and not scale
        gather = gather_packed if packed else augmentations.gather_pixels
        views = gather(images, *self.pixel_indices(shifts))
        if scale:
            views = views * (1.0 + scale * intensity.clamp(-2.0, 2.0))[..., None, None, None]
        return Views(views)

    def pixel_indices(self, shifts: Tensor) -> tuple[Tensor, Tensor]:
        """The rows (K, B, h) and columns (K, B, w) of the frame that each view consists of."""
        indices = (
            augmentations.crop_pad_crop_indices
            if self.method.augmentation == "crop-pad-crop"
            else augmentations.shift_indices
        )
        size = self.frame_pixels, self.online.encoder.visible_pixels
        return indices(shifts[:, :, 0], *size), indices(shifts[:, :, 1], *size)

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

    def _outputs(
        self, features: Tensor, views: Tensor, noise: HeadNoise, action_mask: Tensor
    ) -> Tensor:
        """Outputs (V, B, A, N) of the online network for views (V, B, ...), of which the first is
        already encoded."""
        if len(views) > 1:
            features = torch.cat([features, self.online.encoder(views[1:].flatten(0, 1))])
        outputs: Tensor = self.online.head(features, noise, action_mask)
        return outputs.view(*views.shape[:2], *outputs.shape[1:])

    def _target(
        self,
        appraisal: Appraisal[Tensor],
        batch: GameBatch,
        noise: RainbowNoise,
        action_mask: Tensor,
        next_features: Tensor,
    ) -> Tensor:
        """The TD target: a distribution (B, N), or its mean (B, 1) if Q is not distributional.

        Double Q: the online network selects the action of each next view, and the target network
        evaluates it. The views' distributions are averaged before the projection; the projection is
        linear and the same for all views, so averaging after it would give the same result.
        """
        next_views = appraisal.next_views
        outputs: Tensor = self.target_head(
            self.target_encoder(next_views.flatten(0, 1)), noise.target, action_mask
        )
        selection_outputs = outputs  # (V B, A, N), which determine the next action
        if self.settings.double_q:
            online_outputs = self._outputs(next_features, next_views, noise.online, action_mask)
            selection_outputs = online_outputs.flatten(0, 1)
        action = equations.best_action(self.online.q_values(selection_outputs), action_mask)
        outputs = gather_action(outputs, action).view(*appraisal.next_weights.shape, -1)
        weights = appraisal.next_weights[..., None]
        bootstrap = self.n_step_discount * batch.continuation[:, None]
        base = (batch.n_step_return + appraisal.bonus)[:, None]
        support = self.online.support
        if support.shape[0] == 1:
            return base + bootstrap * (weights * outputs).sum(0)
        probabilities = (weights * outputs.softmax(2)).sum(0)
        return equations.project_categorical(probabilities, base + bootstrap * support, support)

    def _view_losses(self, outputs: Tensor, action: Tensor, target: Tensor) -> Tensor:
        """(V, B): the cross-entropy of C51, - sum_i m_i log p_i, or the Huber loss of Q values."""
        views, batch = outputs.shape[:2]
        taken = gather_action(outputs.flatten(0, 1), action.repeat(views)).view(views, batch, -1)
        if target.shape[1] == 1:
            return F.huber_loss(taken, target.expand_as(taken), reduction="none").squeeze(2)
        return -(target * taken.log_softmax(2)).sum(2)

    def _priority(self, batch: GameBatch, appraisal: Appraisal[Tensor], losses: Tensor) -> Tensor:
        by_curiosity = self.framework.priority(batch.priority, appraisal)
        if by_curiosity is not None:
            return by_curiosity
        if self.settings.base_replay == "td-error":
            return losses**self.settings.priority_exponent
        return torch.ones_like(losses)

    def _metrics(
        self, appraisal: Appraisal[Tensor], batch: GameBatch, weights: Tensor, td: TdLosses
    ) -> Metrics:
        losses, outputs, target = td
        support = self.online.support
        target_value = (target * support).sum(1) if support.shape[0] > 1 else target[:, 0]
        q = self.online.q_values(outputs[0].detach())[..., None]
        metrics = {
            "q_loss": losses.detach().mean(),
            "q_mean": gather_action(q, batch.action).mean(),
            "target_mean": target_value.mean(),
            "reward_mean": batch.reward.mean(),
            "n_step_return_mean": batch.n_step_return.mean(),
            "ended_share": 1.0 - batch.continuation.mean(),
            "importance_weight_mean": weights.mean(),
        }
        return metrics | self.framework.metrics(appraisal, self.method.num_augmented_views)


class RunParameters(NamedTuple):
    """All parameters of a run, by their names in checkpoints and in exported agents."""

    by_name: dict[str, Tensor]

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.by_name)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, parameter in self.by_name.items():
            parameter.copy_(state[name])


def make_rainbow(config: Config[RainbowConfig], num_actions: int) -> RainbowLoss:
    """The networks of a run with the initial weights of its seed."""
    with seeded_weights(config.seed):
        return RainbowLoss(config, num_actions)


def gather_action(outputs: Tensor, action: Tensor) -> Tensor:
    """The outputs (n, N) of each sample's action, from (n, A, N) and (n,)."""
    return outputs.gather(1, action[:, None, None].expand(-1, 1, outputs.shape[2])).squeeze(1)
