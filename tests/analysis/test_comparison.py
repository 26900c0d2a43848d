"""`cclf inspect RUN --curiosity A B`: the same transitions under two measures, by hand and on runs
of every base algorithm."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from browser import browser
from cclf import build, cli
from cclf.algorithms.rainbow import inspect as gallery_rainbow
from cclf.algorithms.rainbow.learner import make_rainbow
from cclf.config import Config
from cclf.inspection.comparison import Comparison, facts, moved, places
from cclf.inspection.load import compare, curate
from cclf.inspection.records import About, Gallery, Measure
from cclf.storage import checkpoint, run_folder
from cclf.training.seeding import Generators, derive
from rainbow_inputs import tiny, tiny_cclf
from tiny_runs import CPU, run, tiny_config

CONFIGS = {
    "sac": tiny_config("toy/reach-1d", algorithm={"batch_size": 8}),
    "a2c": tiny_config("minigrid/DoorKey-6x6", env_steps=320, eval_every_env_steps=320),
    "drqv2": tiny_config("toy/reach-1d", "drq-v2+cclf", base="drqv2", algorithm={"batch_size": 8}),
    "rainbow": tiny_cclf(env_steps=60, eval_every_env_steps=60, final_eval_episodes=0),
}
SAMPLES = 64


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out, found = tmp_path_factory.mktemp("runs"), {}
    for name, config in CONFIGS.items():
        with run_folder.create_run_folder(config, out) as folder:
            run(config, folder)
        found[name] = folder
    return found


def made_up(curiosity: list[float], rarity: list[float], **fields: object) -> Gallery:
    values = np.array(curiosity)
    return Gallery(
        About(Path("nowhere"), "a run", {"task": "toy"}),
        *("drawn", "c", values, [Measure("rarity", np.array(rarity), "how rare", 1)]),
        *([], [], [], [], None, None),
        picture=lambda row: np.full((2, 2, 3), row, np.uint8),
        **fields,
    )


RARITY = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
FALLS, RISES = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], [1.0, 2.0, 3.0, 4.0, 6.0, 5.0]
PAIR = Comparison(("belief", "particles"), (made_up(FALLS, RARITY), made_up(RISES, RARITY)))


def test_places_and_moves_by_hand() -> None:
    assert places(np.array(FALLS)).tolist() == [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]
    assert places(np.array(RISES)).tolist() == [0.0, 0.2, 0.4, 0.6, 1.0, 0.8]
    # by 0.8 each for 4 and 5, by 0.2 for 3; down by 1, 0.6 and 0.2
    assert moved(PAIR) == ([4, 5, 3], [0, 1, 2])


def test_the_numbers_by_hand() -> None:
    told = facts(PAIR)
    assert told["samples"] == 6
    follows = {name: one["follows"]["rarity"]["rank"] for name, one in told["measures"].items()}
    assert follows["belief"] == pytest.approx(-1.0)
    assert follows["particles"] == pytest.approx(1 - 6 * 2 / (6 * 35))
    assert told["agreement"]["rank"] == pytest.approx(-(1 - 6 * 2 / (6 * 35)))
    assert told["moved"]["down"][0] == {"sample": 0, "places": [1.0, 0.0]}
    assert told["measures"]["belief"]["again"] is None
    json.dumps(told)


def test_what_a_bonus_pays_for_is_compared_where_a_base_tells_it() -> None:
    paid = Comparison(
        PAIR.names,
        (made_up(FALLS, RARITY), made_up(FALLS, RARITY, reading=np.array(RISES))),
    )
    assert facts(paid)["agreement"] == facts(PAIR)["agreement"]


def test_a_picture_is_shown_once_and_measures_of_other_samples_are_left_out() -> None:
    alike = made_up(FALLS, RARITY)._replace(picture=lambda _: np.zeros((2, 2, 3), np.uint8))
    pair = Comparison(PAIR.names, (alike, made_up(RISES, [9.0, *RARITY[1:]])))
    assert moved(pair) == ([4], [0])
    assert pair.measures == []


@pytest.mark.parametrize("base", CONFIGS)
def test_both_measures_see_the_same_transitions(runs: dict[str, Path], base: str) -> None:
    """Also where one of them draws numbers that the other does not."""
    compared = compare(runs[base], SAMPLES, CPU, ("belief", "shuffled"))
    names = {measure.name for measure in compared.measures}
    assert {"reward", "step in the episode"} <= names
    assert ("1 − 1/n" if base == "a2c" else "copies") in names
    plain, mixed = compared.readings
    assert not np.array_equal(plain, mixed)
    # the numbers of the first batch, whose views are the same, in another order
    size = 16 if base == "a2c" else CONFIGS[base].algorithm.batch_size
    np.testing.assert_allclose(np.sort(plain[:size]), np.sort(mixed[:size]), rtol=1e-5)


@pytest.mark.parametrize("base", CONFIGS)
def test_the_papers_measure_reads_as_the_gallery_does(runs: dict[str, Path], base: str) -> None:
    own = curate(runs[base], SAMPLES, CPU)
    first, _ = compare(runs[base], SAMPLES, CPU, ("belief", "particles")).readings
    if base != "a2c":  # there the gallery is about what was seen alone
        np.testing.assert_array_equal(own.curiosity, first)
    np.testing.assert_array_equal(own.reading, first)


def test_the_page_works_on_a_phone_and_asks_for_nothing(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "two.html"
    words = ["--samples", str(SAMPLES), "--device", "cpu", "--json", "--out", str(page)]
    assert cli.main(["inspect", str(runs["sac"]), "--curiosity", "belief", "ranks", *words]) == 0
    assert set(json.loads(capsys.readouterr().out)["measures"]) == {"belief", "ranks"}
    with browser() as tab:
        tab.open(page, 390)
        assert tab.problems == []
        assert {ask for ask in tab.requests if not ask.startswith("data:")} == {page.as_uri()}
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
        assert "belief or ranks" in tab.evaluate("document.querySelector('h1').textContent")
        names = "[...document.querySelectorAll('#follows ~ .stacked td:first-child')]"
        follows = tab.evaluate(f"{names}.map(cell => cell.firstChild.textContent)")
        assert {"rarity", "age", "reward", "TD error", "copies"} <= set(follows)
        drawn = "[...document.querySelectorAll('svg')].map(s => s.getAttribute('aria-label'))"
        labels = tab.evaluate(drawn)
        assert "what each measure follows" in labels
        assert "places by each along TD error" in labels
        assert tab.evaluate("document.querySelectorAll('.legend li').length") == 2 * 2


def restored(config: Config, folder: Path) -> tuple[Any, torch.Tensor]:
    saved = checkpoint.load(folder / "checkpoint")
    learner = build.make_learner(config, CPU)
    learner.load_state_dict(saved["learner"])
    clock = saved["agent_steps"] * config.env.action_repeat
    return learner, torch.tensor(float(clock), dtype=torch.float64)


def shown(gallery: Gallery) -> np.ndarray:
    (found,) = (measure for measure in gallery.measures if measure.name == "TD error")
    return found.values


@pytest.mark.parametrize("base", ["sac", "drqv2"])
def test_of_twin_critics_it_is_the_mean_distance_to_the_target(
    runs: dict[str, Path], base: str
) -> None:
    config = CONFIGS[base]
    learner, clock = restored(config, runs[base])
    agent, size = learner.algorithm, config.algorithm.batch_size
    generators = Generators(derive(config.seed, "inspect"), CPU, CPU)
    actions = torch.Generator().manual_seed(derive(config.seed, "inspect", "td-error"))
    expected: list[float] = []
    for _ in range(SAMPLES // size):
        batch = learner.replay.sample(size, generators["replay"])
        noise = torch.randn(batch.action.shape, generator=actions)
        with torch.no_grad():
            if base == "sac":
                edge = (config.env.frame_pixels - config.env.crop_pixels) // 2
                middle = slice(edge, edge + config.env.crop_pixels)
                seen, later = (
                    frames[:, :, middle, middle]
                    for frames in (batch.observation, batch.next_observation)
                )
                policy = agent.actor(agent.critic.encoder.convolutions(later), noise)
                q1, q2 = agent.target.values(agent.target.encoder(later), policy.action)
                value = torch.min(q1, q2) - agent.log_temperature.exp() * policy.log_prob
                y = batch.reward + 0.99 * batch.continuation * value
                values = agent.critic.values(agent.critic.encoder(seen), batch.action)
            else:
                later = agent.encoder(batch.next_observation)
                offset = (agent.noise_std(clock) * noise).clamp(-0.3, 0.3)
                action = (agent.actor(later) + offset).clamp(-1 + 1e-6, 1 - 1e-6)
                q1, q2 = agent.target.values(agent.target.trunk(later), action)
                steps = config.algorithm.n_steps
                y = batch.n_step_return + 0.99**steps * batch.continuation * torch.min(q1, q2)
                features = agent.critic.trunk(agent.encoder(batch.observation))
                values = agent.critic.values(features, batch.action)
        expected += ((values[0] - y).abs() / 2 + (values[1] - y).abs() / 2).tolist()
    assert config.algorithm.discount == 0.99
    found = shown(curate(runs[base], SAMPLES, CPU))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert np.ptp(found) > 0.0


def test_of_rainbow_it_is_the_loss_of_plain_rainbow(runs: dict[str, Path]) -> None:
    """An update of the method without views and pieces, with the same weights, has its mean."""
    config = CONFIGS["rainbow"]
    saved = checkpoint.load(runs["rainbow"] / "checkpoint")
    draws, rainbow, replay = gallery_rainbow.load(config, saved["learner"], CPU)
    plain_config = tiny("rainbow-uniform")
    settings = replace(plain_config.algorithm, batch_size=config.algorithm.batch_size)
    plain = make_rainbow(replace(plain_config, algorithm=settings), 3)
    shared = {name: rainbow.state_dict()[name] for name in plain.state_dict()}
    plain.load_state_dict(shared)
    batch, noise = gallery_rainbow.draw(draws, replay, 0)
    error = gallery_rainbow.td_error(rainbow, batch, noise)
    step = plain(batch, noise, torch.tensor(60.0), torch.tensor(0.4), torch.ones(3))
    assert float(error.mean()) == pytest.approx(float(step.metrics["q_loss"]), rel=1e-5)
    size = config.algorithm.batch_size
    np.testing.assert_allclose(shown(curate(runs["rainbow"], SAMPLES, CPU))[:size], error)


def test_of_a2c_it_is_the_size_of_the_advantage(runs: dict[str, Path]) -> None:
    config = CONFIGS["a2c"]
    learner, _ = restored(config, runs["a2c"])
    a2c, settings = learner.algorithm, config.algorithm
    rollout, _ = learner.collect()
    steps, envs = rollout.action.shape
    with torch.no_grad():
        values = a2c.policy.critic(a2c.features(rollout)).view(steps + 1, envs).numpy()
    expected = np.zeros((steps, envs))
    for env in range(envs):
        for t in range(steps):
            fade = 1.0
            for later in range(t, steps):
                goes_on = not rollout.ended[later, env]
                ahead = settings.discount * values[later + 1, env] * goes_on
                expected[t, env] += fade * (rollout.reward[later, env] + ahead - values[later, env])
                fade *= settings.discount * settings.gae_lambda * goes_on
    found = shown(curate(runs["a2c"], SAMPLES, CPU))
    np.testing.assert_allclose(
        found[: steps * envs], np.abs(expected).ravel(), rtol=1e-4, atol=1e-6
    )
    learner.close()


@pytest.mark.parametrize("base", CONFIGS)
def test_two_measures_are_both_set_beside_it(runs: dict[str, Path], base: str) -> None:
    """Also where one of them draws numbers that the other does not, and pays another bonus."""
    compared = compare(runs[base], SAMPLES, CPU, ("belief", "shuffled"))
    assert "TD error" in {measure.name for measure in compared.measures}
    for told in facts(compared)["measures"].values():
        assert told["follows"]["TD error"]["rank"] is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("belief", "debias"), "did you mean debiased"),
        (("belief", "belief"), "compares nothing"),
        (("belief",), "name two measures"),
    ],
)
def test_bad_measures_are_one_line(
    words: tuple[str, ...],
    said: str,
    runs: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "x.html"
    assert cli.main(["inspect", str(runs["a2c"]), "--curiosity", *words, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_run_without_curiosity_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_folder.create_run_folder(tiny_config(method="curl"), tmp_path) as folder:
        pass
    page = str(tmp_path / "x.html")
    assert cli.main(["inspect", str(folder), "--curiosity", "belief", "even", "--out", page]) == 2
    assert "curl has no curiosity to look at" in capsys.readouterr().err
