"""SAC against numbers of the released code, a textbook update, and special cases of the paper."""

import copy
import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import golden_inputs as golden
import reference_sac
from cclf import equations
from cclf.algorithms.common.observations import UpdateNoise
from cclf.algorithms.sac.presets import METHODS as SAC_METHODS
from cclf.algorithms.sac.sac import SAC
from cclf.config import Config, Precision
from cclf.data.replay import Replay
from cclf.presets import resolve
from cclf.training.cuda_graphs import compiled
from cclf.types import Batch, UpdateResult
from golden_inputs import GOLDEN, largest_error

CPU = torch.device("cpu")
BATCH, ACTIONS = 8, 2
STEPS = torch.tensor(100.0, dtype=torch.float64)
Update = Callable[[SAC, Batch, UpdateNoise, Tensor], UpdateResult]
# The plain update, and the one of training.
both_updates = pytest.mark.parametrize(
    "run", [reference_sac.update, SAC.update], ids=["reference", "trains"]
)


def tiny(method: str, profile: str = "released", **overrides: Any) -> Config:
    """A small config of a method on 20x20 frames; each override goes to the group that has such a
    field."""
    config = resolve("toy/reach", method, profile=profile)
    algorithm = {"hidden_dim": 32, "conv_filters": 8, "feature_dim": 10}
    method_fields = {
        name: value for name, value in overrides.items() if hasattr(config.method, name)
    }
    algorithm |= {name: value for name, value in overrides.items() if name not in method_fields}
    return dataclasses.replace(
        config,
        method=dataclasses.replace(config.method, **method_fields),
        algorithm=dataclasses.replace(config.algorithm, **algorithm),
    )


def make_sac(method: str, profile: str = "released", **overrides: Any) -> SAC:
    return SAC(tiny(method, profile, **overrides), ACTIONS, CPU)


def make_batch(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def frames() -> Tensor:
        return torch.randint(256, (BATCH, 3, 20, 20), generator=generator, dtype=torch.uint8)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    continuation = torch.ones(BATCH)
    continuation[2] = 0.0
    action = 2.0 * uniform(BATCH, ACTIONS) - 1.0
    observation, reward, following = frames(), uniform(BATCH), frames()
    priority, slot = 0.5 + 0.5 * uniform(BATCH), torch.arange(BATCH)
    return Batch(observation, action, reward, continuation, following, priority, slot, reward)


def draw_noise(sac: SAC, seed: int = 0) -> UpdateNoise:
    return sac.draw_noise(
        BATCH, torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1000)
    )


def update(sac: SAC, number: int = 0) -> dict[str, Tensor]:
    return sac.update(make_batch(number), draw_noise(sac, number), STEPS).metrics


def as_double(noise: UpdateNoise) -> UpdateNoise:
    numbers = {name: getattr(noise, name).double() for name in ("target", "actor")}
    return noise._replace(**numbers)


def appraise(sac: SAC, batch: Batch, noise: UpdateNoise):
    return reference_sac.appraise(sac, batch, noise, STEPS)


def to_double(sac: SAC) -> SAC:
    # in place: the optimisers hold the same parameters, and have no state yet
    sac.networks.double()
    sac.log_temperature.data = sac.log_temperature.data.double()
    return sac


def snapshot(sac: SAC) -> dict[str, Tensor]:
    parameters = {
        name: parameter.detach().clone() for name, parameter in sac.networks.named_parameters()
    }
    return parameters | {"log_temperature": sac.log_temperature.detach().clone()}


def moved(before: dict[str, Tensor], sac: SAC) -> set[str]:
    """The names of the modules that changed, such as critic.encoder, critic.q1 and actor.head."""
    after = snapshot(sac)
    return {
        ".".join(name.split(".")[:2])
        for name in before
        if not torch.equal(before[name], after[name])
    }


def spy(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[tuple, Any]]:
    """Record the arguments and results of the calls of an equation."""
    calls: list[tuple[tuple, Any]] = []
    original: Callable = getattr(equations, name)

    def recorded(*args: Any) -> Any:
        result = original(*args)
        calls.append((args, result))
        return result

    monkeypatch.setattr(equations, name, recorded)
    return calls


# --- a. the released code ---


def their_names(sac: SAC) -> dict[str, Tensor]:
    """Our parameters under the names that the released code gives them."""
    renaming = {
        "encoder.convolutions.layers.": "encoder.convs.",
        "encoder.head.": "encoder.",
        "actor.head.": "actor.encoder.",
        ".norm.": ".ln.",
        ".q1.": ".Q1.trunk.",
        ".q2.": ".Q2.trunk.",
        "framework.bilinear": "W",
    }
    named: dict[str, Tensor] = {"log_alpha": sac.log_temperature}
    for name, parameter in sac.networks.named_parameters():
        for ours, theirs in renaming.items():
            name = name.replace(ours, theirs)
        named[name] = parameter
    return named


def make_golden_sac(precision: str) -> SAC:
    config = resolve("dmc/reacher-easy", "cclf", profile="released")
    config = dataclasses.replace(
        config,
        env=dataclasses.replace(
            config.env, frame_pixels=golden.FRAME_PIXELS, crop_pixels=golden.CROP_PIXELS
        ),
        algorithm=dataclasses.replace(
            config.algorithm, hidden_dim=golden.HIDDEN_DIM, batch_size=golden.BATCH
        ),
    )
    assert config.env.action_repeat == golden.ACTION_REPEAT
    sac = SAC(config, golden.ACTION_DIM, CPU)
    if precision == "float64":
        to_double(sac)
        for maximum in (sac.framework.reward_max, sac.framework.bonus_max):
            maximum.fill_(1e-5)
    for name, parameter in their_names(sac).items():
        parameter.data.copy_(golden.initial_parameter(name, tuple(parameter.shape)))
    return sac


def golden_batch(number: int, priorities: Tensor, dtype: torch.dtype) -> tuple[Batch, UpdateNoise]:
    contents, index = golden.replay_contents(), golden.indices(number)
    batch = Batch(
        observation=contents["observation"][index],
        action=contents["action"][index].to(dtype),
        reward=contents["reward"][index].to(dtype),
        continuation=contents["continuation"][index].to(dtype),
        next_observation=contents["next_observation"][index],
        priority=priorities[index].to(dtype),
        slot=index,
        n_step_return=contents["reward"][index].to(dtype),
    )
    noise = (golden.target_noise(number).to(dtype), golden.actor_noise(number).to(dtype))
    return batch, UpdateNoise(*golden.crop_origins(number), *noise)


def assert_parameters_agree(sac: SAC, recorded: dict[str, list[float]], precision: str) -> None:
    entry_tolerance, sum_tolerance = {"float32": (2e-5, 1e-4), "float64": (1e-8, 1e-6)}[precision]
    ours = their_names(sac)
    assert set(ours) == set(recorded)
    for name, figures in recorded.items():
        summary = golden.summary(ours[name])
        assert largest_error(summary[2:], figures[2:]) < entry_tolerance, name
        assert largest_error(summary[:2], figures[:2]) < sum_tolerance, name


@both_updates
@pytest.mark.parametrize("precision", golden.DTYPES)
def test_six_updates_equal_those_of_the_released_code(
    precision: str, run: Update, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype, tolerance = golden.DTYPES[precision], {"float32": 1e-5, "float64": 1e-8}[precision]
    recorded = GOLDEN[precision]["cclf"]
    sac = make_golden_sac(precision)
    replay = Replay(golden.TRANSITIONS, (3, 20, 20), golden.ACTION_DIM, 3, None, CPU)
    replay.priorities[: golden.TRANSITIONS] = golden.initial_priorities()
    assert_parameters_agree(sac, recorded["initial"]["parameters"], precision)
    assert (
        largest_error(replay.priorities[: golden.TRANSITIONS], recorded["initial"]["weights"])
        < tolerance
    )

    selections, targets, bonuses = (
        spy(monkeypatch, name) for name in ("select_most_curious", "q_target", "intrinsic_reward")
    )
    for number, figures in enumerate(recorded["updates"]):
        for calls in (selections, targets, bonuses):
            calls.clear()
        batch, noise = golden_batch(number, replay.priorities, dtype)
        assert batch.slot.tolist() == figures["indices"]
        temperature_before = sac.temperature.item()
        env_steps = torch.tensor(float(figures["step"] * golden.ACTION_REPEAT), dtype=torch.float64)
        metrics, priority = run(sac, batch, noise, env_steps)
        assert priority is not None
        replay.set_priorities(batch.slot, priority)

        def agree(ours: Any, name: str, figures: dict[str, Any] = figures) -> None:
            assert largest_error(ours, figures[name]) < tolerance, (
                f"{name} of step {figures['step']}"
            )

        for (args, chosen), prefix in zip(selections, ("obs", "next_obs"), strict=True):
            assert (chosen + 1).tolist() == figures[f"{prefix}_index"]
            agree(args[0].T, f"{prefix}_candidate_beliefs")
        ((curiosity, next_curiosity, *_), bonus) = bonuses[0]
        agree(1.0 - curiosity, "obs_belief")
        agree(1.0 - next_curiosity, "next_obs_belief")
        agree(bonus, "intrinsic")
        ((reward, _, continuation, discount, values, _), target) = targets[0]
        agree(reward + continuation * discount * values, "view_target_Q")
        agree(target, "target_Q")
        agree(metrics["critic_loss"], "critic_loss")
        agree(metrics["contrastive_loss"], "contrastive_loss")
        agree(metrics["reward_running_max"], "reward_ex_max")
        agree(metrics["bonus_running_max"], "reward_in_max")
        agree(sac.temperature, "alpha")
        agree(replay.priorities[: golden.TRANSITIONS], "weights")
        assert ("actor_loss" in metrics) == (figures["actor_loss"] is not None)
        if figures["actor_loss"] is not None:
            agree(temperature_before, "alpha_before")
            agree(metrics["actor_loss"], "actor_loss")
            agree(metrics["temperature_loss"], "alpha_loss")
            agree(metrics["policy_entropy"], "entropy")
        assert_parameters_agree(sac, figures["parameters"], precision)


# --- b. every piece off: the textbook ---


class Textbook:
    """SAC from pixels with one view, written out: no appraisal, no weights, plain losses, one Adam
    per network."""

    def __init__(self, ours: SAC, config: Config):
        def encoder() -> nn.Sequential:
            convolutions: list[nn.Module] = []
            for i in range(4):
                convolutions += [
                    nn.Conv2d(3 if i == 0 else 8, 8, 3, stride=2 if i == 0 else 1),
                    nn.ReLU(),
                ]
            return nn.Sequential(
                nn.Sequential(*convolutions, nn.Flatten()),
                nn.Sequential(nn.Linear(8, 10), nn.LayerNorm(10)),
            )

        def mlp(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(inputs, 32),
                nn.ReLU(),
                nn.Linear(32, 32),
                nn.ReLU(),
                nn.Linear(32, outputs),
            )

        def critic() -> nn.ModuleList:
            return nn.ModuleList([encoder(), mlp(10 + ACTIONS, 1), mlp(10 + ACTIONS, 1)])

        self.critic, self.target = critic(), critic()
        self.actor = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, 10), nn.LayerNorm(10)), mlp(10, 2 * ACTIONS)]
        )
        for mine, theirs in (
            (self.critic, ours.critic),
            (self.target, ours.target_critic),
            (self.actor, ours.actor),
        ):
            for parameter, source in zip(mine.parameters(), theirs.parameters(), strict=True):
                parameter.data.copy_(source.data)
        self.log_alpha = torch.tensor(
            math.log(config.algorithm.initial_temperature), requires_grad=True
        )
        rate = config.algorithm.learning_rate
        self.critic_adam = torch.optim.Adam(self.critic.parameters(), lr=rate, fused=True)
        self.actor_adam = torch.optim.Adam(self.actor.parameters(), lr=rate, fused=True)
        self.alpha_adam = torch.optim.Adam(
            [self.log_alpha],
            lr=config.algorithm.temperature_learning_rate,
            betas=(0.5, 0.999),
            fused=True,
        )

    def policy(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        conv_features = self.critic[0][0](images).detach()
        mean, raw = self.actor[1](self.actor[0](conv_features)).chunk(2, dim=1)
        log_std = -10.0 + 0.5 * 12.0 * (torch.tanh(raw) + 1.0)
        action = torch.tanh(mean + noise * log_std.exp())
        log_prob = (-0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi)).sum(1)
        return action, log_prob - torch.log(torch.relu(1.0 - action**2) + 1e-6).sum(1)

    @staticmethod
    def q(
        critic: nn.ModuleList, images: Tensor, action: Tensor, learn_encoder: bool
    ) -> tuple[Tensor, Tensor]:
        features = critic[0](images)
        inputs = torch.cat([features if learn_encoder else features.detach(), action], dim=1)
        return critic[1](inputs).squeeze(1), critic[2](inputs).squeeze(1)

    def update(
        self, number: int, batch: Batch, images: Tensor, next_images: Tensor, noise: UpdateNoise
    ) -> None:
        with torch.no_grad():
            next_action, log_prob = self.policy(next_images, noise.target[0])
            q1, q2 = self.q(self.target, next_images, next_action, learn_encoder=False)
            value = torch.min(q1, q2) - self.log_alpha.exp() * log_prob
            y = batch.reward + batch.continuation * 0.99 * value
        q1, q2 = self.q(self.critic, images, batch.action, learn_encoder=True)
        self._minimise(((q1 - y) ** 2).mean() + ((q2 - y) ** 2).mean(), self.critic_adam)
        if number % 2 == 0:
            action, log_prob = self.policy(images, noise.actor)
            q1, q2 = self.q(self.critic, images, action, learn_encoder=False)
            self._minimise(
                (self.log_alpha.exp().detach() * log_prob - torch.min(q1, q2)).mean(),
                self.actor_adam,
            )
            self._minimise(
                (self.log_alpha.exp() * (-log_prob + ACTIONS).detach()).mean(), self.alpha_adam
            )
            for part, tau in zip(range(3), (0.05, 0.01, 0.01), strict=True):
                for slow, fast in zip(
                    self.target[part].parameters(), self.critic[part].parameters(), strict=True
                ):
                    slow.data.lerp_(fast.data, tau)

    def _minimise(self, loss: Tensor, adam: torch.optim.Adam) -> None:
        for optimiser in (self.critic_adam, self.actor_adam, self.alpha_adam):
            optimiser.zero_grad()
        loss.backward()
        adam.step()


def slice_crops(images: Tensor, origins: Tensor) -> Tensor:
    corners = zip(images, origins.tolist(), strict=True)
    return torch.stack([image[:, y : y + 16, x : x + 16] for image, (y, x) in corners])


def pixels(crops: Tensor) -> Tensor:
    """In [0, 1], and channels last: in another memory layout the same convolution rounds
    differently."""
    return crops.to(torch.float32, memory_format=torch.channels_last) / 255.0


@both_updates
@pytest.mark.parametrize("method", ["rad", "sac-pixel"])
def test_update_with_every_piece_off_is_bitwise_equal_to_textbook_sac(
    method: str, run: Update
) -> None:
    config = tiny(method)
    ours = SAC(config, ACTIONS, CPU)
    textbook = Textbook(ours, config)
    start = snapshot(ours)
    for number in range(4):
        batch, noise = make_batch(number), draw_noise(ours, number)
        if method == "sac-pixel":
            assert (noise.augmentation == 2).all()
        run(ours, batch, noise, STEPS)
        crops = slice_crops(batch.observation, noise.augmentation[0])
        next_crops = slice_crops(batch.next_observation, noise.next_augmentation[0])
        textbook.update(number, batch, pixels(crops), pixels(next_crops), noise)
        pairs = (
            (ours.critic, textbook.critic),
            (ours.target_critic, textbook.target),
            (ours.actor, textbook.actor),
        )
        for mine, theirs in pairs:
            for (name, parameter), other in zip(
                mine.named_parameters(), theirs.parameters(), strict=True
            ):
                assert torch.equal(parameter, other), f"{name} after update {number}"
        assert torch.equal(ours.log_temperature, textbook.log_alpha)
    assert moved(start, ours) == {
        *("critic.encoder", "critic.q1", "critic.q2", "target.encoder", "target.q1", "target.q2"),
        *("actor.head", "actor.trunk", "log_temperature"),
    }


# --- c. special cases of the paper ---


def critic_figures(sac: SAC, noise: UpdateNoise, run: Update) -> dict[str, Tensor]:
    """Losses, target and the norm of the gradients of a first critic step, in float64."""
    batch = Batch(*(x.double() if x.is_floating_point() else x for x in make_batch()))
    metrics = run(to_double(sac), batch, as_double(noise), STEPS).metrics
    return {name: metrics[name] for name in ("critic_loss", "gradient_norm", "target_mean")}


@both_updates
@pytest.mark.parametrize(
    ("curiosity", "method", "views"),
    [(0.0, "rad", slice(0, 1)), (0.5, "drq", slice(0, 2)), (1.0, "rad", slice(1, 2))],
)
def test_cclf_with_constant_curiosity_equals_rad_or_drq(
    curiosity: float, method: str, views: slice, run: Update, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All four pieces on, a bonus of lambda = 0, every belief at 1 - curiosity: ties select view 1 of
    o and o'."""
    sac = make_sac("cclf", bonus_temperature=0.0)
    noise = draw_noise(sac)
    with monkeypatch.context() as patch:
        patch.setattr(
            equations, "belief", lambda _, keys, *__: torch.full_like(keys[..., 0], 1.0 - curiosity)
        )
        cclf = critic_figures(sac, noise, run)
    own = (noise.augmentation[views], noise.next_augmentation[views], noise.target[views])
    special_case = critic_figures(make_sac(method), UpdateNoise(*own, noise.actor), run)
    assert cclf["gradient_norm"] > 1e-3
    torch.testing.assert_close(cclf, special_case, rtol=0.0, atol=1e-12)


# --- d. structure ---


@pytest.mark.quick("sac-pixel", "curl", "drq", "curl++", "select", "cclf", "cclf-shuffled")
@pytest.mark.parametrize("method", SAC_METHODS)
def test_update_equals_the_reference(method: str) -> None:
    plain, lean = (to_double(make_sac(method)) for _ in range(2))
    for number in range(8):
        noise = as_double(draw_noise(plain, number))
        batch = Batch(*(x.double() if x.is_floating_point() else x for x in make_batch(number)))
        one, other = (
            reference_sac.update(plain, batch, noise, STEPS),
            lean.update(batch, noise, STEPS),
        )
        torch.testing.assert_close(one.metrics, other.metrics, rtol=1e-9, atol=1e-9)
        assert (one.priority is None) == (other.priority is None)
        if one.priority is not None:
            torch.testing.assert_close(one.priority, other.priority, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(snapshot(plain), snapshot(lean), rtol=1e-9, atol=1e-9)
    assert plain.updates == lean.updates == 8


@pytest.mark.slow(
    "training/test_cuda_graphs.py::test_convolutions_and_crops_compile_as_single_graphs"
)
@pytest.mark.parametrize(
    ("method", "precision"),
    [
        *((method, "fp32") for method in ("cclf", "curl", "drq", "cclf-shuffled", "select")),
        ("cclf", "bf16"),
    ],
)
def test_compiled_update_equals_the_uncompiled_one(
    method: str,
    precision: Precision,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As on a GPU, with PyTorch's own kernels. In float32: compiled code does not write a float64
    number on the CPU back."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    lean = make_sac(method, precision=precision)
    fast = SAC(tiny(method, precision=precision), ACTIONS, CPU, compiled)
    for number in range(3):
        batch, noise = make_batch(number), draw_noise(lean, number)
        one, other = lean.update(batch, noise, STEPS), fast.update(batch, noise, STEPS)
        torch.testing.assert_close(one.metrics, other.metrics, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(snapshot(lean), snapshot(fast), rtol=1e-4, atol=1e-5)
    assert "going on without compiling" not in capsys.readouterr().err


@pytest.mark.quick("drq-5", "cclf")
@pytest.mark.parametrize("method", SAC_METHODS)
def test_every_method_updates_with_finite_metrics_of_known_names(method: str) -> None:
    sac, config, names = make_sac(method), tiny(method).method, set[str]()
    for number in range(2):
        metrics, priority = sac.update(make_batch(number), draw_noise(sac, number), STEPS)
        names |= set(metrics)
        assert all(value.shape == () and value.isfinite() for value in metrics.values())
        assert (priority is not None) == config.prioritisation
        assert priority is None or ((priority >= 0.0) & (priority <= 1.0)).all()
    assert names <= set(sac.metric_names)
    assert method != "cclf" or names == set(sac.metric_names)
    assert ("contrastive_loss" in names) == config.contrastive
    assert ("curiosity_mean" in names) == sac.framework.needs_curiosity


def test_updates_after_load_state_dict_are_bitwise_equal() -> None:
    sac = make_sac("cclf")
    for number in range(3):
        update(sac, number)
    state = copy.deepcopy(sac.state_dict())
    fresh = SAC(dataclasses.replace(tiny("cclf"), seed=99), ACTIONS, CPU)
    assert not torch.equal(fresh.critic.q1[0].weight, sac.critic.q1[0].weight)
    fresh.load_state_dict(state)
    for number in range(3, 6):
        ours, theirs = update(sac, number), update(fresh, number)
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
        one, other = snapshot(sac), snapshot(fresh)
        assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert fresh.updates == 6


def test_curiosity_reaches_target_loss_and_priority_only_through_the_pieces_that_are_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for piece in ("selection", "prioritisation", "regularisation", "reward"):
        sac = make_sac(piece)
        with monkeypatch.context() as patch:
            targets, losses = spy(patch, "q_target"), spy(patch, "q_loss")
            metrics, priority = sac.update(make_batch(), draw_noise(sac), STEPS)
        ((_, bonus, _, _, _, next_weights), _), ((_, _, weights), _) = targets[0], losses[0]
        assert ((weights == 0.5).all() and (next_weights == 0.5).all()) == (
            piece != "regularisation"
        )
        assert (bonus == 0.0).all() == (piece != "reward")
        assert (priority is None) == (piece != "prioritisation")
        assert ("chosen_view_1" in metrics) == (piece == "selection")


# --- e. profiles ---


def test_paper_profile_has_a_tanh_after_every_encoder_and_one_encoder_step() -> None:
    images = torch.randint(256, (BATCH, 3, 16, 16), dtype=torch.uint8)
    for profile, squashed in (("paper", True), ("released", False)):
        sac = make_sac("cclf", profile)
        assert ("encoder" in sac.optimizers) == (profile == "released"), "of its second step"
        heads = (sac.critic.encoder.head, sac.target_critic.encoder.head, sac.actor.head)
        for head in heads:
            z = head(sac.critic.encoder.convolutions(images))
            normalised = head.norm(head.fc(sac.critic.encoder.convolutions(images)))
            assert torch.equal(z, torch.tanh(normalised) if squashed else normalised)


def test_last_crop_offset_is_drawn_in_the_paper_profile_only() -> None:
    for profile, last in (("paper", 4), ("released", 3)):
        noise = make_sac("cclf", profile).draw_noise(
            500, torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
        )
        assert noise.augmentation.max() == noise.next_augmentation.max() == last
        assert noise.augmentation.min() == noise.next_augmentation.min() == 0
        assert not torch.equal(noise.augmentation, noise.next_augmentation)


def test_acting_uses_random_crops_in_the_paper_profile_and_centre_crops_in_the_released() -> None:
    observation = make_batch().observation
    for profile, kind in (("paper", "random-crop"), ("released", "centre-crop")):
        sac = make_sac("cclf", profile)
        streams = [torch.Generator().manual_seed(seed) for seed in (0, 7)]
        action = sac.collection_action(observation, STEPS, *streams)
        crops, normal = (torch.Generator().manual_seed(seed) for seed in (0, 7))
        corners = sac.observations.sample(kind, 1, BATCH, crops)
        assert (corners == 2).all() == (profile == "released")
        view = sac.observations.augmented(observation, corners)
        features = sac.actor.head(sac.critic.encoder.convolutions(view))
        noise = torch.randn(BATCH, ACTIONS, generator=normal)
        assert torch.equal(action, sac.actor.sample(features, noise).action)


@pytest.mark.parametrize("profile", ["paper", "released"])
def test_evaluation_action_is_the_mean_on_the_centre_crop(profile: str) -> None:
    sac = make_sac("cclf", profile)
    observation = torch.randint(256, (2, 3, 20, 20), dtype=torch.uint8)
    conv_features = sac.critic.encoder.convolutions(observation[:, :, 2:18, 2:18])
    expected = sac.actor(conv_features)
    torch.testing.assert_close(sac.evaluation_action(observation), expected)
    assert torch.equal(sac.evaluation_action(observation), sac.evaluation_action(observation))
