import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from cclf.algorithms.a2c.networks import GridEncoder, grid_windows
from cclf.algorithms.common.pixel_encoder import ConvEncoder, EncoderHead
from cclf.algorithms.sac.networks import Encoder, PolicySample, SacActor, SacCritic

FEATURES, ACTIONS, HIDDEN = 50, 2, 64


def make_encoder(pixels: int = 16, channels: int = 9, tanh: bool = False) -> Encoder:
    return Encoder(ConvEncoder(channels, pixels, layers=4, filters=32), FEATURES, tanh)


def make_critic() -> SacCritic:
    torch.manual_seed(0)
    return SacCritic(make_encoder(), FEATURES, ACTIONS, HIDDEN)


def make_actor(inputs: int = 32) -> SacActor:
    torch.manual_seed(0)
    return SacActor(
        EncoderHead(inputs, FEATURES, tanh=False),
        FEATURES,
        ACTIONS,
        HIDDEN,
        log_std_min=-10.0,
        log_std_max=2.0,
    )


def assert_orthogonal(matrix: Tensor, gain: float) -> None:
    """The columns of a tall matrix, or the rows of a wide one, are orthogonal and have length
    `gain`."""
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    torch.testing.assert_close(
        tall.T @ tall, gain**2 * torch.eye(tall.shape[1]), rtol=0.0, atol=1e-5
    )


def test_convolutions_start_delta_orthogonal() -> None:
    for convolution in make_critic().encoder.convolutions.layers:
        assert_orthogonal(convolution.weight[:, :, 1, 1], gain=math.sqrt(2.0))
        off_centre = torch.ones(3, 3, dtype=torch.bool)
        off_centre[1, 1] = False
        assert (convolution.weight[:, :, off_centre] == 0.0).all()


@pytest.mark.parametrize("make", [make_critic, make_actor])
def test_linear_layers_start_orthogonal_and_biases_at_zero(make) -> None:
    module = make()
    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    assert len(linear) == (7 if isinstance(module, SacCritic) else 4)
    for layer in linear:
        assert_orthogonal(layer.weight, gain=1.0)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0.0).all(), name
    norms = [layer for layer in module.modules() if isinstance(layer, nn.LayerNorm)]
    assert len(norms) == 1
    assert (norms[0].weight == 1.0).all()


def spread_policy() -> tuple[SacActor, Tensor, Tensor, PolicySample]:
    """A policy whose log standard deviations are moderate, so that its actions spread without
    saturating."""
    actor = make_actor().double()
    nn.init.constant_(actor.trunk[4].bias[ACTIONS:], 0.5)
    features, noise = (
        torch.randn(500, 32, dtype=torch.float64),
        torch.randn(500, ACTIONS, dtype=torch.float64),
    )
    return actor, features, noise, actor.sample(actor.head(features), noise)


def gaussian_of(actor: SacActor, features: Tensor) -> Independent:
    mean, raw = actor.trunk(actor.head(features)).chunk(2, dim=1)
    log_std = -10.0 + 12.0 * (torch.tanh(raw) + 1.0) / 2.0
    return Independent(Normal(mean, log_std.exp()), 1)


def test_log_prob_is_that_of_a_squashed_gaussian_away_from_saturation() -> None:
    actor, features, _, sample = spread_policy()
    distribution = TransformedDistribution(gaussian_of(actor, features), TanhTransform())
    inside = sample.action.abs().amax(1) < 0.9
    assert inside.sum() > 100
    expected = distribution.log_prob(sample.action)[inside]
    # 2 actions x 1e-6 / (1 - 0.9^2)
    torch.testing.assert_close(sample.log_prob[inside], expected, rtol=0.0, atol=1.1e-5)
    milder = sample.action.abs().amax(1) < 0.7
    torch.testing.assert_close(
        sample.log_prob[milder], distribution.log_prob(sample.action)[milder], rtol=0.0, atol=1e-5
    )


def test_log_prob_is_finite_where_the_tanh_saturates() -> None:
    actor = make_actor()
    nn.init.constant_(actor.trunk[4].bias[:ACTIONS], 50.0)
    sample = actor.sample(actor.head(torch.randn(4, 32)), torch.randn(4, ACTIONS))
    assert (sample.action == 1.0).all()
    assert sample.log_prob.isfinite().all()


def test_standard_deviation_stays_between_its_bounds() -> None:
    actor = make_actor()
    for bias, log_std in ((-50.0, -10.0), (50.0, 2.0)):
        nn.init.constant_(actor.trunk[4].bias[ACTIONS:], bias)
        entropy = actor.sample(actor.head(torch.randn(3, 32)), torch.zeros(3, ACTIONS)).entropy
        torch.testing.assert_close(
            entropy, torch.full((3,), ACTIONS * (log_std + 0.5 * math.log(2 * math.pi * math.e)))
        )


def test_grid_encoder_is_three_convolutions_and_a_pool() -> None:
    torch.manual_seed(0)
    ours = GridEncoder().double()
    convolutions = [nn.Conv2d(3, 16, 2), nn.Conv2d(16, 32, 2), nn.Conv2d(32, 64, 2)]
    for convolution, weight, bias in zip(convolutions, ours.weights, ours.biases, strict=True):
        outputs, inputs = convolution.weight.shape[:2]
        convolution.weight.data = weight.detach().view(outputs, 2, 2, inputs).permute(0, 3, 1, 2)
        convolution.bias.data = bias.detach()
    first, second, third = convolutions
    textbook = nn.Sequential(
        first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), third, nn.ReLU(), nn.Flatten()
    )
    observation = torch.randint(11, (6, 7, 7, 3))
    windows = torch.from_numpy(grid_windows(observation.numpy().astype("uint8"))).double()
    features = ours(windows)
    assert features.shape == (6, 64)
    torch.testing.assert_close(features, textbook(observation.permute(0, 3, 1, 2).double()))
    for (name, parameter), convolution in zip(
        ours.weights.named_parameters(), convolutions, strict=True
    ):
        # PyTorch's own initialisation, uniform in +-1/sqrt(fan_in)
        bound = 1.0 / math.sqrt(convolution.weight[0].numel())
        assert 0.9 * bound < parameter.abs().max() <= bound, name
