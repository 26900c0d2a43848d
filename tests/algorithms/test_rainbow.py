"""The loss of Rainbow against a slow textbook version, the pieces of CCLF in it, and batched runs
against each run alone."""

import copy
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from cclf.algorithms.rainbow import equations as rainbow_equations
from cclf.algorithms.rainbow.networks import (
    DuelingHead,
    GameEncoder,
    LayerNoise,
    NoisyLinear,
    Projection,
)
from cclf.algorithms.rainbow.presets import METHODS as RAINBOW_METHODS
from cclf.algorithms.rainbow.rainbow import make_rainbow
from cclf.data import augmentations
from rainbow_inputs import batch_of, rainbow_of, tiny, update
from tiny_runs import differing

METHODS = tuple(RAINBOW_METHODS)
F64 = torch.float64


def one_run(config, num_actions=3, dtype=F64):
    return make_rainbow(config, num_actions).to(dtype)


def noise_of(rainbow, index=7):
    """The noise of the first run, without the axis of runs."""
    return rainbow.noise.sample_single(index)[1]


def loss_of(config, batch, dtype=F64, beta=0.6, prepare=lambda _: None):
    """The step of one run with its own noise, and the module."""
    rainbow, module = rainbow_of([config], dtype=dtype), one_run(config, dtype=dtype)
    prepare(module)
    one = type(batch)(*(part[0] for part in batch))
    valid = torch.ones(3, dtype=dtype)
    return module(
        one, noise_of(rainbow), torch.tensor(100.0, dtype=F64), torch.tensor(beta, dtype=F64), valid
    ), module


# The network


@pytest.mark.parametrize(("kind", "pixels"), [("nature", 40), ("data-efficient", 30)])
def test_encoder_of_patches_and_matrices_equals_convolutions(kind, pixels):
    encoder = GameEncoder(4, pixels, kind).double()
    images = torch.randint(0, 256, (3, 4, pixels, pixels), dtype=torch.uint8)
    x = images.double() / 255.0
    channels = 4
    for (filters, side, stride), weight, bias in zip(
        encoder.layers, encoder.weights, encoder.biases, strict=True
    ):
        kernel = weight.view(filters, side, side, channels).permute(0, 3, 1, 2)
        x, channels = F.relu(F.conv2d(x, kernel, bias, stride)), filters
    torch.testing.assert_close(encoder(images), x.permute(0, 2, 3, 1).flatten(1))


@pytest.mark.parametrize(
    ("actions", "count"), [(3, 750_200), (6, 828_842), (9, 907_484), (18, 1_143_410)]
)
def test_parameter_counts_equal_those_of_curls_code(actions, count):
    encoder, head = (
        GameEncoder(4, 84, "data-efficient"),
        DuelingHead(576, 256, actions, 51, 0.1, dueling=True),
    )
    assert sum(p.numel() for p in encoder.parameters()) == 54_496
    assert sum(p.numel() for p in (*encoder.parameters(), *head.parameters())) == count
    assert sum(p.numel() for p in Projection(576, 256, 128).parameters()) + 128 * 128 == 196_992


def test_initial_weights_are_distributed_as_in_curls_code():
    torch.manual_seed(0)
    layer, projection = NoisyLinear(400, 100, sigma=0.1), Projection(50, 40, 30)
    assert layer.weight_mean.abs().max() <= 1 / 20
    assert layer.bias_mean.abs().max() <= 1 / 20
    assert layer.weight_mean.std().item() == pytest.approx(1 / 20 / math.sqrt(3), rel=0.02)
    assert torch.equal(layer.weight_sigma, torch.full((100, 400), 0.1 / 20))
    assert torch.equal(layer.bias_sigma, torch.full((100,), 0.1 / 10))
    for weight in (projection.hidden_weight, projection.weight):
        assert weight.min() >= 0
        assert weight.max() < 1
        assert weight.mean().item() == pytest.approx(0.5, abs=0.03)
    assert not projection.hidden_bias.any()
    assert not projection.bias.any()


def test_noisy_layer_by_hand():
    layer = NoisyLinear(2, 1, sigma=0.1)
    for parameter, value in zip(
        layer.parameters(), ([[1.0, 2.0]], [3.0], [[10.0, 20.0]], [30.0]), strict=True
    ):
        parameter.data = torch.tensor(value)
    x, noise = (
        torch.tensor([[1.0, 1.0]]),
        LayerNoise(torch.tensor([2.0, -1.0]), torch.tensor([0.5])),
    )
    # weights 1 + 10 * 0.5 * 2 and 2 + 20 * 0.5 * -1, bias 3 + 30 * 0.5
    assert layer(x, noise).item() == 11.0 - 8.0 + 18.0
    assert layer(x, None).item() == 6.0


# The loss against an independent slow one


def slow_projection(probabilities, places, support):
    """C51's projection atom by atom, with floor and ceiling, and the case that they are one."""
    out = np.zeros(len(support))
    low, high = support[0], support[-1]
    gap = (high - low) / (len(support) - 1)
    for p, place in zip(probabilities, places, strict=True):
        b = (min(max(place, low), high) - low) / gap
        left, right = math.floor(b + 1e-12), math.ceil(b - 1e-12)
        if left == right:
            out[left] += p
        else:
            out[left] += p * (right - b)
            out[right] += p * (b - left)
    return out


def test_projection_conserves_mass_and_mean_also_on_whole_atoms():
    support = torch.linspace(-10, 10, 51, dtype=F64)
    random = torch.Generator().manual_seed(0)
    p = torch.rand(64, 51, generator=random, dtype=F64).softmax(1)
    places = torch.randn(64, 51, generator=random, dtype=F64) * 6
    places[:8] = support[torch.randint(51, (8, 51), generator=random)]  # integer b
    m = rainbow_equations.project_categorical(p, places, support)
    torch.testing.assert_close(m.sum(1), torch.ones(64, dtype=F64))
    assert (m >= 0).all()
    torch.testing.assert_close((m * support).sum(1), (p * places.clamp(-10, 10)).sum(1))
    for row in range(64):
        expected = slow_projection(p[row].numpy(), places[row].numpy(), support.numpy())
        np.testing.assert_allclose(m[row].numpy(), expected, atol=1e-9)


def textbook_losses(module, batch, noise, discount, double):
    """C51, with double Q or without, sample by sample, straight from the papers."""
    losses = []
    support = module.online.support.numpy()
    valid = torch.ones(3, dtype=F64)

    def distributions(encoder, head, image, head_noise):
        return head(encoder(image[None]), head_noise, valid)[0].softmax(1).detach().numpy()

    for b in range(len(batch.action)):
        online = distributions(
            module.online.encoder, module.online.head, batch.next_observation[b], noise.online
        )
        target = distributions(
            module.target_encoder, module.target_head, batch.next_observation[b], noise.target
        )
        action = int(np.argmax([float(p @ support) for p in (online if double else target)]))
        places = float(batch.n_step_return[b]) + discount * float(batch.continuation[b]) * support
        m = slow_projection(target[action], places, support)
        now = distributions(
            module.online.encoder, module.online.head, batch.observation[b], noise.online
        )
        losses.append(-float(m @ np.log(now[int(batch.action[b])])))
    return np.array(losses)


@pytest.mark.parametrize("double", [True, False])
def test_loss_with_every_piece_off_equals_the_textbook_rainbow(double):
    config = tiny("rainbow", batch_size=16, double_q=double)
    batch = batch_of(config, dtype=F64)
    rainbow, module = rainbow_of([config], dtype=F64), one_run(config)
    # A target network unlike the online one: equal ones would hide which of the two is used.
    torch.manual_seed(5)
    for parameter in (*module.target_encoder.parameters(), *module.target_head.parameters()):
        parameter.data += 0.3 * torch.randn_like(parameter)
    # the target network prefers action 0, the online one action 2
    module.target_head.layers[1].bias_mean.data[4] += 5.0
    module.online.head.layers[1].bias_mean.data[14] += 5.0
    one = type(batch)(*(part[0] for part in batch))
    noise = noise_of(rainbow)
    step = module(
        one, noise, torch.tensor(0.0), torch.tensor(0.6, dtype=F64), torch.ones(3, dtype=F64)
    )
    losses = textbook_losses(module, one, noise, 0.99**3, double)
    weights = one.priority.numpy() ** -0.6
    weights /= weights.max()
    assert step.loss.item() == pytest.approx((weights * losses).mean(), rel=1e-9)
    np.testing.assert_allclose(step.priority.numpy(), losses**0.5, rtol=1e-9)
    assert (losses != textbook_losses(module, one, noise, 0.99**3, not double)).any(), (
        "the two networks choose differently"
    )


def test_huber_loss_without_atoms_by_hand():
    config = tiny("efficient-dqn")
    batch = batch_of(config, dtype=F64)
    step, module = loss_of(config, batch)
    one = type(batch)(*(part[0] for part in batch))
    valid = torch.ones(3, dtype=F64)
    q = module.online.head(module.online.encoder(one.observation), (), valid)[..., 0]
    # target == online at the start
    next_q = module.online.head(module.online.encoder(one.next_observation), (), valid)[..., 0]
    y = one.n_step_return + 0.99**3 * one.continuation * next_q.max(1).values
    error = (q.gather(1, one.action[:, None])[:, 0] - y).abs()
    huber = torch.where(error < 1, 0.5 * error**2, error - 0.5)
    assert step.loss.item() == pytest.approx(huber.mean().item(), rel=1e-9)
    assert torch.equal(step.priority, torch.ones(4, dtype=F64)), "uniform replay"


# The pieces of CCLF


def forced(curiosity):
    """Every belief is replaced by the one that gives this curiosity; the selected views do not
    change."""

    def prepare(module):
        choose = module.framework._select_view

        def chosen(views, *rest):
            found = choose(views, *rest)
            c = torch.full_like(found.curiosity, curiosity)
            return found._replace(curiosity=c, bonus_signal=c)

        module.framework._select_view = chosen

    return prepare


def view_losses(config, batch):
    """Cross-entropies (V, V', B) of each view of o with the target from each view of o', one of
    each at a time."""
    _, module = loss_of(config, batch)
    noise = noise_of(rainbow_of([config], dtype=F64))
    one = type(batch)(*(part[0] for part in batch))
    views = module.views(one.observation, noise.shifts, noise.intensity)
    next_views = module.views(one.next_observation, noise.next_shifts, noise.next_intensity)
    appraisal = module.framework.appraise(
        views, next_views, one.reward, torch.tensor(100.0, dtype=F64), module.query, module.key
    )
    losses = torch.zeros(2, 2, len(one.action), dtype=F64)
    ones = torch.ones(1, len(one.action), dtype=F64)
    for v in range(2):
        for w in range(2):
            single = appraisal._replace(
                views=appraisal.views[v : v + 1],
                weights=ones,
                next_views=appraisal.next_views[w : w + 1],
                next_weights=ones,
                bonus=torch.zeros_like(appraisal.bonus),
            )
            valid = torch.ones(3, dtype=F64)
            target = module._target(
                single, one, noise, valid, module.online.encoder(single.next_views[0])
            )
            outputs = module._outputs(
                module.online.encoder(single.views[0]), single.views, noise.online, valid
            )
            losses[v, w] = module._view_losses(outputs, one.action, target)[0].detach()
    return losses


@pytest.mark.parametrize("c", [0.0, 0.5, 1.0, 0.25])
def test_curiosity_is_the_weight_of_the_selected_view(c):
    """c = 1/2 is the even average of two views, c = 0 the anchor alone, c = 1 the chosen view
    alone."""
    config = tiny("selection+prioritisation+regularisation", cclf_coefficient=0.0)
    batch = batch_of(config, dtype=F64)
    step, _ = loss_of(config, batch, prepare=forced(c))
    losses = view_losses(config, batch)
    weights = torch.tensor([1 - c, c], dtype=F64)
    expected = torch.einsum("vwb,v,w->b", losses, weights, weights)
    assert step.loss.item() == pytest.approx(expected.mean().item(), rel=1e-9)
    assert not torch.allclose(losses[0, 0], losses[1, 1]), "the views differ"
    if c in (0.0, 1.0):
        only = int(c)
        assert step.loss.item() == pytest.approx(losses[only, only].mean().item(), rel=1e-9)


@pytest.mark.parametrize("method", ["cclf", "curl", "prioritisation"])
def test_beliefs_and_contrastive_loss_by_hand(method):
    """Logits 0.1 q W k of the online anchor and momentum keys, view by view; the view with the
    lowest belief is selected, with the weight c."""

    def unlike(module):
        torch.manual_seed(5)
        for network in (module.momentum_encoder, module.momentum_projection):
            for parameter in network.parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)

    config = tiny(method, batch_size=6)
    batch = batch_of(config, dtype=F64)
    step, module = loss_of(config, batch, prepare=unlike)
    noise = noise_of(rainbow_of([config], dtype=F64))
    w = module.framework.bilinear.detach().numpy()

    def beliefs(images, shifts):
        """(views, B) beliefs, and the features of anchor and keys."""
        views = module.views(images, shifts, noise.intensity).inputs
        query = module.online.projection(module.online.encoder(views[0])).detach().numpy()
        keys = [
            module.momentum_projection(module.momentum_encoder(view)).detach().numpy()
            for view in views[1:]
        ]
        return np.array([log_matches(query, key) for key in keys]), query, keys

    def log_matches(query, key):
        out = []
        for b in range(len(query)):
            logits = np.array([0.1 * query[b] @ w @ other for other in key])
            out.append(logits[b] - np.log(np.exp(logits).sum()))
        return np.array(out)

    found, query, keys = beliefs(batch.observation[0], noise.shifts)
    chosen = np.exp(found).argmin(0)
    c = 1 - np.exp(found).min(0)
    chosen_keys = np.stack([keys[j][b] for b, j in enumerate(chosen)])
    weights = c if config.method.regularisation else np.ones(6)
    expected = -(weights * log_matches(query, chosen_keys)).sum() / weights.sum()
    assert step.metrics["contrastive_loss"].item() == pytest.approx(expected, rel=1e-9)
    if method != "curl":
        assert step.metrics["curiosity_mean"].item() == pytest.approx(c.mean(), rel=1e-9)
        next_c = 1 - np.exp(beliefs(batch.next_observation[0], noise.next_shifts)[0]).min(0)
        assert step.metrics["next_curiosity_mean"].item() == pytest.approx(next_c.mean(), rel=1e-9)
        momentum = 0.99 * batch.priority[0].numpy() + 0.01 * (c + next_c) / 2
        np.testing.assert_allclose(step.priority.numpy(), momentum, rtol=1e-9)
    if method == "cclf":
        assert len(set(chosen.tolist())) > 1, "not always the same view"


def test_bonus_is_small_and_enters_the_return_once():
    config = tiny("cclf")
    batch = batch_of(config, dtype=F64)
    batch = batch._replace(reward=batch.reward.abs())
    seen = []

    def spy(module):
        inner = module._target
        module._target = lambda each, *rest: seen.append(each.bonus) or inner(each, *rest)

    step, module = loss_of(config, batch, prepare=spy)
    assert seen[0].max() <= 2e-4
    assert seen[0].min() > 0
    c, n = step.metrics["curiosity_mean"], step.metrics["next_curiosity_mean"]
    expected = 2e-4 * math.exp(-2e-5 * 100.0) * (c + n) / 2 / module.framework.bonus_max
    assert step.metrics["bonus_mean"].item() == pytest.approx(expected.item(), rel=1e-9)
    shifted, _ = loss_of(
        tiny("selection+prioritisation+regularisation"),
        batch._replace(n_step_return=batch.n_step_return + seen[0]),
    )
    assert step.loss.item() == pytest.approx(shifted.loss.item(), rel=1e-12)


@pytest.mark.quick("rainbow", "curl", "cclf")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_updates_all_trained_parameters(method):
    """Every trained parameter changes, all numbers are finite, and importance weights are those of
    the method."""
    config = tiny(method)
    rainbow = rainbow_of([config])
    before = {group: row.detach().clone() for group, row in rainbow.rows.items()}
    for moment in range(3):
        metrics, priority = update(rainbow, batch_of(config, seed=moment), moment)
        assert set(metrics) <= {*rainbow.metric_names}
        assert all(torch.isfinite(value).all() for value in metrics.values())
    assert torch.equal(before["target"], rainbow.rows["target"])
    assert torch.equal(before["momentum"], rainbow.rows["momentum"]) != config.method.contrastive
    named, old = (
        rainbow.layouts["online"].unflatten(rainbow.rows["online"][0]),
        rainbow.layouts["online"].unflatten(before["online"][0]),
    )
    still = {name for name in named if torch.equal(named[name], old[name])}
    expected = set() if config.method.contrastive else {"framework.bilinear"}
    if not config.algorithm.noisy:
        expected |= {name for name in named if name.endswith("sigma")}
    assert still == expected
    uniform = config.algorithm.base_replay == "uniform" and not config.method.prioritisation
    assert torch.equal(priority, torch.ones_like(priority)) == uniform


# Random numbers


def test_epsilon_greedy_explores_valid_actions_only():
    configs = [tiny("rainbow", seed=seed) for seed in (1, 2)]
    rainbow = rainbow_of(configs, (3, 6))
    images = batch_of(configs[0], runs=2).observation[:, 0]
    random = torch.stack(
        [rainbow.act(images, torch.tensor(moment), torch.tensor(1.0)) for moment in range(40)]
    )
    assert set(random[:, 0].tolist()) == {0, 1, 2}
    assert set(random[:, 1].tolist()) == set(range(6))
    greedy = torch.stack(
        [rainbow.act(images, torch.tensor(moment), torch.tensor(0.0)) for moment in range(40)]
    )
    mixed = torch.stack(
        [rainbow.act(images, torch.tensor(moment), torch.tensor(0.5)) for moment in range(40)]
    )
    assert greedy[:, 0].max() < 3
    assert 0.3 < (mixed == greedy).float().mean() < 0.9


# Several runs in one batch


BATCHED = ("rainbow", "curl", "cclf", "drq", "otrainbow")


def trained(configs, actions, which, dtype, updates=8):
    """Parameters of each run after some updates; `which` are the indices of their batches."""
    rainbow = rainbow_of(configs, actions, dtype)
    for number in range(updates):
        parts = [batch_of(configs[0], runs=max(which) + 1, seed=number, dtype=dtype)]
        batch = type(parts[0])(*(part[list(which)] for part in parts[0]))
        update(rainbow, batch, update_index=number, env_steps=4.0 * number)
        if number == 4:
            rainbow.update_target()
    return [run.state_dict() for run in rainbow.runs]


@pytest.mark.quick("rainbow", "cclf")
@pytest.mark.parametrize("method", BATCHED)
def test_batched_updates_equal_those_of_each_run_alone(method):
    """Eight updates in float64, games of 3, 18 and 6 actions: all parameters, moments and maxima to
    1e-9."""
    configs = [tiny(method, seed=seed) for seed in (1, 2, 3)]
    actions = (3, 18, 6)
    together = trained(configs, actions, (0, 1, 2), F64)
    for number, config in enumerate(configs):
        alone = trained([config], actions[number : number + 1], (number,), F64)[0]
        for group in ("networks", "maxima"):
            for name, value in alone[group].items():
                torch.testing.assert_close(
                    together[number][group][name],
                    value,
                    rtol=1e-9,
                    atol=1e-9,
                    msg=f"{number} {name}",
                )
        for moment in ("mean", "square"):
            for name, value in alone["moments"][moment].items():
                torch.testing.assert_close(
                    together[number]["moments"][moment][name], value, rtol=1e-9, atol=1e-12
                )


def test_gradients_are_clipped_run_by_run():
    """A run with a huge loss must not shorten the step of another run. Adam's first moment shows
    the clipped gradient."""
    configs = [
        tiny("rainbow", seed=seed, max_gradient_norm=0.5, distributional=False) for seed in (1, 2)
    ]
    batch = batch_of(configs[0], runs=2, dtype=F64)
    batch = batch._replace(
        n_step_return=batch.n_step_return * torch.tensor([[1e4], [1e-4]], dtype=F64)
    )
    rainbow = rainbow_of(configs, (3, 3), F64)
    metrics, _ = update(rainbow, batch)
    first = rainbow.adam_moments["mean"] / 0.1
    norms = first.norm(dim=1)
    assert metrics["gradient_norm"][0] > 0.5 > metrics["gradient_norm"][1] > 0
    assert norms[0].item() == pytest.approx(0.5, rel=1e-4)
    assert norms[1].item() == pytest.approx(metrics["gradient_norm"][1].item(), rel=1e-6)


def test_parameters_of_a_run_are_views_of_its_rows_without_padding():
    configs = [tiny("curl", seed=seed) for seed in (1, 2)]
    rainbow = rainbow_of(configs, (3, 6), F64)
    images = batch_of(configs[0], dtype=F64).observation[0]
    before = [copy.deepcopy(run.networks.state_dict()) for run in rainbow.runs]
    update(rainbow, batch_of(configs[0], runs=2, dtype=F64))
    for run, config, actions, old in zip(rainbow.runs, configs, (3, 6), before, strict=True):
        row, mask = rainbow.rows["online"][run.index], rainbow.action_mask[run.index]
        weights = run.networks.state_dict()
        assert differing(old, weights)
        module = one_run(config, actions)
        module.load_state_dict(weights, strict=False)
        expected = rainbow.q_values(row, images, (), mask)[:, :actions]
        torch.testing.assert_close(module.online(images), expected)


def test_parameters_written_to_a_run_change_its_rows_only():
    rainbow = rainbow_of([tiny("cclf", seed=seed) for seed in (1, 2)], (3, 6))
    before = {network: row.detach().clone() for network, row in rainbow.rows.items()}
    weights = rainbow.runs[0].networks.state_dict()
    rainbow.runs[0].networks.load_state_dict(
        {n: torch.full_like(w, 0.5) for n, w in weights.items()}
    )
    for network, rows in rainbow.rows.items():
        assert torch.equal(rows[1], before[network][1])
        assert set(rows[0].unique().tolist()) == {0.0, 0.5}, "the padding stays zero"


def test_every_parameter_of_every_run_is_aligned():
    """To 256 bytes in float32: matrix products read 16 aligned bytes at once."""
    rainbow = rainbow_of([tiny("cclf", seed=seed) for seed in (1, 2)], (3, 6))
    for group, layout in rainbow.layouts.items():
        rows = rainbow.rows[group]
        parts = {
            (run, name): part
            for run in range(2)
            for name, part in layout.unflatten(rows[run]).items()
        }
        assert not {
            name
            for name, part in parts.items()
            if (part.data_ptr() - rows.data_ptr()) % (64 * rows.element_size())
        }


# Augmentation


def test_curls_augmentation_is_crop_pad_crop():
    images = torch.randint(0, 256, (6, 2, 84, 84), dtype=torch.uint8)
    uniform = torch.rand(3, 6, 2, 2, generator=torch.Generator().manual_seed(0))
    rows, columns = (
        augmentations.crop_pad_crop_indices(uniform[:, :, axis], 84, 84) for axis in (0, 1)
    )
    views = augmentations.gather_pixels(images, rows, columns)
    offsets = (uniform * 5).long()
    for k in range(3):
        for b in range(6):
            (y, v), (x, u) = offsets[k, b].tolist()
            cropped = images[b, :, y : y + 80, x : x + 80]
            padded = F.pad(cropped[None].float(), (4, 4, 4, 4), mode="replicate")[0]
            assert torch.equal(views[k, b].float(), padded[:, v : v + 84, u : u + 84])
    assert set(offsets.unique().tolist()) == {0, 1, 2, 3, 4}


def test_drqs_augmentation_is_pad_crop():
    images = torch.randint(0, 256, (6, 2, 30, 30), dtype=torch.uint8)
    uniform = torch.rand(40, 6, 2, 1, generator=torch.Generator().manual_seed(0))
    rows, columns = (augmentations.shift_indices(uniform[:, :, axis], 30, 30) for axis in (0, 1))
    views = augmentations.gather_pixels(images, rows, columns)
    padded = F.pad(images.float(), (4, 4, 4, 4), mode="replicate")
    offsets = (uniform[..., 0] * 9).long()
    for k, b in ((0, 0), (1, 5), (39, 3)):
        y, x = offsets[k, b].tolist()
        assert torch.equal(views[k, b].float(), padded[b, :, y : y + 30, x : x + 30])
    assert set(offsets.unique().tolist()) == set(range(9))


def test_views_hold_the_visible_pixels_of_the_network():
    config = tiny("cclf", env={"frame_pixels": 30, "crop_pixels": 30})
    module = one_run(config)
    noise = noise_of(rainbow_of([config], dtype=F64))
    images = batch_of(config).observation[0]
    assert module.views(images, noise.shifts, noise.intensity).inputs.shape == (5, 4, 2, 25, 25)


@pytest.mark.quick("cclf")
@pytest.mark.parametrize("method", ["cclf", "drq"])
def test_packed_views_give_the_same_update(monkeypatch, method):
    """As on a GPU: the four stacked frames of a pixel in one 32-bit word, through selection, losses
    and gradients."""
    configs = [tiny(method, seed=seed, env={"frame_stack": 4}) for seed in (1, 2)]
    moved = []
    for words in (False, True):
        monkeypatch.setattr(
            GameEncoder, "accepts_packed", lambda self, _, w=words: w and self._tiled
        )
        rainbow = rainbow_of(configs, (3, 3), dtype=F64)
        update(rainbow, batch_of(configs[0], runs=2, dtype=F64))
        moved.append(rainbow.rows["online"].detach())
    torch.testing.assert_close(*moved, rtol=0.0, atol=1e-12)
