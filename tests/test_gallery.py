"""`cclf inspect`: the page shows what training computes, for SAC, A2C and Rainbow, and the run folder
is not changed."""

import base64
import contextlib
import io
import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from cclf import cli
from cclf.algorithms.a2c.networks import grid_windows
from cclf.algorithms.base import BaseAlgorithm
from cclf.algorithms.common import inspection
from cclf.algorithms.rainbow.rainbow import make_rainbow
from cclf.algorithms.registry import make_learner
from cclf.algorithms.sac import SacAlgorithm
from cclf.envs.minigrid_package import render_observation
from cclf.errors import ConfigError
from cclf.inspection import cards
from cclf.inspection import page as inspection_page
from cclf.inspection.load import inspect_run
from cclf.inspection.samples import rarity
from cclf.storage import checkpoint
from cclf.training.seeding import Generators, derive
from rainbow_inputs import rainbow_of, tiny, tiny_cclf
from tiny_runs import CPU, create_run_folder, tiny_config

SAC = tiny_config("toy/reach-1d", env={"frame_stack": 2}, algorithm={"batch_size": 8})
A2C = tiny_config(
    "minigrid/DoorKey-6x6",
    env_steps=320,
    eval_every_env_steps=320,
    algorithm={"num_envs": 4, "rollout_steps": 8},
)
RAINBOW = tiny_cclf(env_steps=60, eval_every_env_steps=60, final_eval_episodes=0)
SAMPLES = 64


def run_inspect_command(folder, page):
    """The path of the page, and its numbers as the command prints them."""
    words = ["inspect", str(folder), "--out", str(page), "--samples", str(SAMPLES), "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert cli.main([*words, "--device", "cpu"]) == 0
    return page, json.loads(printed.getvalue())


@pytest.fixture(scope="module")
def runs(trained):
    return {"sac": trained(SAC), "a2c": trained(A2C), "rainbow": trained(RAINBOW)}


@pytest.fixture(scope="module")
def reports(runs):
    """The numbers of each page, as the command prints them."""
    galleries = {name: inspect_run(folder, SAMPLES, CPU) for name, folder in runs.items()}
    return {
        name: json.loads(json.dumps(inspection_page.to_json(each)))
        for name, each in galleries.items()
    }


@pytest.fixture(scope="module")
def pages(runs, tmp_path_factory):
    """The path of each page, and its numbers."""
    out = tmp_path_factory.mktemp("pages")
    return {
        name: run_inspect_command(folder, out / f"{name}.html") for name, folder in runs.items()
    }


def restore_learner(config, folder):
    """The learner of a resumed run with its environment, and the number of env steps."""
    saved = checkpoint.load(folder / "checkpoint")
    learner = make_learner(config, CPU)
    learner.load_state_dict(saved["learner"])
    return learner, saved["agent_steps"] * config.env.action_repeat


def sac_reference_rows(learner, env_steps):
    """The numbers of the SAC page for each transition in sampling order, computed with Eq. (3) to (9)
    independently of the algorithm. A side is an observation or the next observation."""
    sac, size = learner.algorithm, SAC.algorithm.batch_size
    generators = Generators(derive(SAC.seed, "inspect"), CPU, CPU)
    scale = 0.2 * np.exp(-2e-5 * env_steps) * sac.framework.reward_max / sac.framework.bonus_max
    rows = []
    for _ in range(SAMPLES // size):
        batch = learner.replay.sample(size, generators["replay"])
        noise, _ = (
            sac.draw_noise(size, generators["augment"], generators["policy"]) for _ in range(2)
        )
        sides = []
        for frames, origins in (
            (batch.observation, noise.augmentation),
            (batch.next_observation, noise.next_augmentation),
        ):
            crops = [
                torch.stack([frames[b, :, y : y + 16, x : x + 16] for b, (y, x) in enumerate(view)])
                for view in origins.tolist()
            ]
            with torch.no_grad():
                query = sac.critic.encoder(crops[0])
                keys = [sac.target_critic.encoder(crop) for crop in crops[1:]]
                matches = [torch.softmax(query @ sac.framework.bilinear @ k.T, 1) for k in keys]
            sides.append((torch.stack(matches), origins.transpose(0, 1), frames))
        for b in range(size):
            beliefs = [matches[:, b, b] for matches, _, _ in sides]
            mistaken = []  # the frame of another sample that is most probable, and its probability
            for view_beliefs, (matches, _, frames) in zip(beliefs, sides, strict=True):
                others = matches[int(view_beliefs.argmin()), b].clone()
                others[b] = 0.0
                frame = frames[int(others.argmax()), -3:].permute(1, 2, 0).numpy()
                mistaken.append((frame, float(others.max())))
            current_curiosity = 1 - beliefs[0].min()
            curiosity = float((current_curiosity + 1 - beliefs[1].min()) / 2)
            priority = float(batch.priority[b])
            rows.append(
                {
                    "beliefs": [view_beliefs.tolist() for view_beliefs in beliefs],
                    "origins": [origins[b].tolist() for _, origins, _ in sides],
                    "curiosity": curiosity,
                    "second_weight": float(current_curiosity),
                    "priority": [priority, 0.99 * priority + 0.01 * curiosity],
                    "bonus": float(scale) * curiosity,
                    "reward": float(batch.reward[b]),
                    "slot": int(batch.slot[b]),
                    "mistaken": mistaken,
                    "newest_frame": batch.observation[b, -3:].permute(1, 2, 0).numpy(),
                }
            )
    return rows


def by_curiosity(rows):
    """The rows from the highest curiosity to the lowest, each transition once."""
    distinct = {}
    for row in sorted(rows, key=lambda row: -row["curiosity"]):
        distinct.setdefault(row["slot"], row)
    return list(distinct.values())


@pytest.mark.parametrize("end", ["most", "least"])
def test_samples_of_sac_equal_what_training_computes(runs, reports, end):
    learner, env_steps = restore_learner(SAC, runs["sac"])
    expected = by_curiosity(sac_reference_rows(learner, env_steps))
    expected = expected[:6] if end == "most" else expected[::-1][:6]
    samples, pictures = reports["sac"][end], getattr(inspect_run(runs["sac"], SAMPLES, CPU), end)
    assert len(samples) == 6
    for sample, drawn, row in zip(samples, pictures, expected, strict=True):
        for index, side in enumerate(("now", "next")):
            assert sample[side]["origins"] == row["origins"][index]
            assert sample[side]["beliefs"] == pytest.approx(row["beliefs"][index], rel=1e-3)
            assert sample[side]["chosen"] == 1 + int(np.argmin(row["beliefs"][index]))
            frame, probability = (drawn.now, drawn.following)[index].best_other_match
            assert probability == pytest.approx(row["mistaken"][index][1], rel=1e-3)
            assert np.array_equal(frame, row["mistaken"][index][0])
        for name in ("curiosity", "second_weight", "priority", "bonus", "reward"):
            assert sample[name] == pytest.approx(row[name], rel=1e-4, abs=1e-6), name
        assert sample["step"] == int(learner.replay.ages[row["slot"]])
        assert sample["age"] == learner.replay.head - row["slot"]


@pytest.mark.slow("test_samples_of_sac_equal_what_training_computes")
def test_page_of_sac_shows_the_numbers_and_pictures_of_its_samples(runs, pages, tab):
    page, report = pages["sac"]
    learner, env_steps = restore_learner(SAC, runs["sac"])
    newest_frame = by_curiosity(sac_reference_rows(learner, env_steps))[0]["newest_frame"]
    tab.open(page, 1100)
    tab.open_details()
    sample = report["most"][0]
    card = "document.querySelector('#most + .samples .sample')"
    observations = f"[...{card}.querySelectorAll('.observation')]"
    texts = tab.evaluate(
        f"{observations}.map(g => [...g.querySelectorAll('.views li b')].map(b => b.innerText))"
    )
    for side, labels in zip(("now", "next"), texts, strict=True):
        assert labels == [
            "anchor",
            *(cards.probability(belief) for belief in sample[side]["beliefs"]),
        ]
    rectangles = tab.evaluate(
        f"[...{observations}[0].querySelectorAll('rect')].map(r => [r.className.baseVal.split(' ')[0], "
        "+r.getAttribute('y'), +r.getAttribute('x'), +r.getAttribute('width')])"
    )
    origins = enumerate(sample["now"]["origins"])
    assert sorted(rectangles) == [[f"v{n}", y, x, 16] for n, (y, x) in origins]
    sentence = tab.evaluate(f"{card}.querySelector('p').innerText")
    assert f"Step {sample['step']} of its episode" in sentence
    assert f"c = {cards.probability(sample['now']['curiosity'])}" in sentence
    assert f"from {sample['priority'][0]:.4f} to {sample['priority'][1]:.4f}" in sentence
    sources = tab.evaluate(f"[...{observations}[0].querySelectorAll('img')].map(i => i.src)")
    older_frame, frame, anchor = (decode_image(source) for source in sources[:3])
    y, x = sample["now"]["origins"][0]
    assert np.array_equal(frame, newest_frame)
    assert np.array_equal(anchor, newest_frame[y : y + 16, x : x + 16])
    assert older_frame.shape == frame.shape


def decode_image(source):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))))


def test_samples_of_a2c_equal_what_training_computes(runs, reports):
    learner, env_steps = restore_learner(A2C, runs["a2c"])
    a2c = learner.algorithm
    curiosity, next_curiosity, copies, observations = [], [], [], []
    for _ in range(SAMPLES // 32):
        rollout, _ = learner.collect()
        grids = rollout.observation.reshape(-1, 7, 7, 3)
        windows = torch.from_numpy(grid_windows(grids))
        with torch.no_grad():
            query, key = a2c.head(a2c.policy.encoder(windows)), a2c.key(windows)
            for rows, values in ((slice(0, 32), curiosity), (slice(4, 36), next_curiosity)):
                matches = torch.softmax(query[rows] @ a2c.framework.bilinear @ key[rows].T, 1)
                values += (1 - matches.diagonal()).tolist()
        keys = [grid.tobytes() for grid in grids[:32]]
        copies += [keys.count(one) for one in keys]
        observations += keys
    report = reports["a2c"]
    assert (report["env_steps"], report["updates"]) == (320, 10), "a rollout has 32 steps"
    distinct = {}
    for row in np.argsort(-np.array(curiosity), kind="stable").tolist():
        distinct.setdefault(observations[row], row)
    order = list(distinct.values())
    for end, rows in (("most", order[:6]), ("least", order[::-1][:6])):
        for sample, row in zip(report[end], rows, strict=False):
            assert sample["curiosity"] == pytest.approx(curiosity[row], rel=1e-4)
            assert sample["now"]["beliefs"] == pytest.approx(
                [1 - curiosity[row]], rel=1e-3, abs=1e-6
            )
            assert sample["copies"] == [copies[row], 32]
            bonus = 2e-4 * np.exp(-2e-5 * env_steps) * (curiosity[row] + next_curiosity[row]) / 2
            assert sample["bonus"] == pytest.approx(bonus, rel=1e-3)
    least_curiosity = 1 - 1 / np.array(copies)  # of one of n equal observations in a batch
    assert report["follows"]["1 − 1/n"]["linear"] == pytest.approx(
        np.corrcoef(curiosity, least_curiosity)[0, 1], abs=1e-4
    )
    assert report["curiosity"]["mean"] == pytest.approx(np.mean(curiosity), rel=1e-4)
    learner.close()


def shifted(frames, uniform):
    """One view of a stack (F, H, W): a random crop that is 4 pixels smaller, padded by 4 replicated
    pixels on every side, and a random crop of this to the first size. The uniform numbers (2, 2) are
    the positions of the crops."""
    (first_y, second_y), (first_x, second_x) = (uniform * 5).long().tolist()
    side = frames.shape[-1]
    crop = frames[:, first_y : first_y + side - 4, first_x : first_x + side - 4].numpy()
    padded = np.pad(crop, ((0, 0), (4, 4), (4, 4)), mode="edge")
    return torch.from_numpy(padded[:, second_y : second_y + side, second_x : second_x + side])


def rainbow_reference_rows(learner, env_steps):
    """The rows of `sac_reference_rows` for Rainbow."""
    state, replay, size = learner.state_dict(), learner.replay, RAINBOW.algorithm.batch_size
    module = make_rainbow(RAINBOW, 3)
    module.load_state_dict(module.state_dict() | state["algorithm"]["networks"])
    reward_max, bonus_max = (
        float(state["algorithm"]["maxima"][f"framework.{name}"])
        for name in ("reward_max", "bonus_max")
    )
    stream = rainbow_of([replace(RAINBOW, seed=derive(RAINBOW.seed, "inspect"))]).noise
    rows = []
    for number in range(SAMPLES // size):
        uniform, _ = stream.sample(torch.tensor(2 * number))
        batch = replay.sample(uniform["replay"])
        sides = []
        for frames, shifts in (
            (batch.observation[0], "shifts"),
            (batch.next_observation[0], "next_shifts"),
        ):
            views = torch.stack(
                [
                    torch.stack([shifted(*one) for one in zip(frames, view, strict=True)])
                    for view in uniform[shifts][0]
                ]
            )
            with torch.no_grad():
                query = module.online.projection(module.online.encoder(views[0]))
                keys = [
                    module.momentum_projection(module.momentum_encoder(view)) for view in views[1:]
                ]
                logits = [
                    RAINBOW.algorithm.logit_scale * query @ module.framework.bilinear @ key.T
                    for key in keys
                ]
            matches = torch.stack([torch.softmax(one, 1) for one in logits])
            sides.append((matches.diagonal(dim1=1, dim2=2).T, views))
        curiosity = torch.stack([1 - beliefs.min(1).values for beliefs, _ in sides]).mean(0)
        bonus_scale = (
            2e-4
            * np.exp(-2e-5 * env_steps)
            * max(reward_max, float(batch.reward.max()))
            / max(bonus_max, float(curiosity.max()))
        )
        for b in range(size):
            slot = int(batch.slot[0, b])
            before = float(replay.priorities[0, slot])
            rows.append(
                {
                    "slot": slot,
                    "beliefs": [beliefs[b].tolist() for beliefs, _ in sides],
                    "views": [views[:, b, -1].numpy() for _, views in sides],
                    "curiosity": float(curiosity[b]),
                    "second_weight": float(1 - sides[0][0][b].min()),
                    "next_second_weight": float(1 - sides[1][0][b].min()),
                    "priority": [before, 0.99 * before + 0.01 * float(curiosity[b])],
                    "bonus": bonus_scale * float(curiosity[b]),
                    "reward": float(replay.rewards[0, slot]),
                    "action": str(int(replay.actions[0, slot])),
                    "step": int(replay.ages[0, slot]),
                    "age": replay.written - slot,
                    "ended_between": bool(replay.ended[0, slot : slot + 3].any()),
                }
            )
    return rows


@pytest.mark.parametrize("end", ["most", "least"])
def test_samples_of_rainbow_equal_what_training_computes(runs, reports, end):
    learner, env_steps = restore_learner(RAINBOW, runs["rainbow"])
    expected = by_curiosity(rainbow_reference_rows(learner, env_steps))
    expected = expected[:6] if end == "most" else expected[::-1][:6]
    samples, pictures = (
        reports["rainbow"][end],
        getattr(inspect_run(runs["rainbow"], SAMPLES, CPU), end),
    )
    assert len(samples) == len(expected) == 6
    for sample, drawn, row in zip(samples, pictures, expected, strict=True):
        for side, observation, beliefs, views in zip(
            ("now", "next"), (drawn.now, drawn.following), row["beliefs"], row["views"], strict=True
        ):
            assert sample[side]["beliefs"] == pytest.approx(beliefs, rel=1e-3)
            assert sample[side]["chosen"] == 1 + int(np.argmin(beliefs))
            assert all(
                np.array_equal(shown.picture[..., 0], view)
                for shown, view in zip(observation.views, views, strict=True)
            )
        for name in (
            "curiosity",
            "second_weight",
            "next_second_weight",
            "priority",
            "bonus",
            "reward",
        ):
            assert sample[name] == pytest.approx(row[name], rel=1e-4, abs=1e-7), name
        for name in ("action", "step", "age", "ended_between"):
            assert sample[name] == row[name], name
        frames = learner.replay.frames[0]
        assert np.array_equal(drawn.now.frames[-1][..., 1], frames[row["slot"]].numpy())
        later = frames[row["slot"] + 3].numpy() * (not row["ended_between"])
        assert np.array_equal(drawn.following.frames[-1][..., 1], later), (
            "the frame three steps later is blank if the episode has ended"
        )
        assert len(drawn.now.frames) == 2
    learner.close()


@pytest.mark.slow("test_ages_in_a_full_sac_replay_count_back_from_the_newest_transition")
def test_ages_in_a_full_rainbow_replay_count_back_from_the_newest_transition(trained):
    config = tiny("cclf", replay_capacity_transitions=30)
    config = replace(config, run=replace(config.run, env_steps=50, eval_every_env_steps=50))
    folder = trained(config)
    learner, _ = restore_learner(config, folder)
    learner.close()
    replay = learner.replay
    assert replay.written > replay.slots, "the ring is full"
    gallery = inspect_run(folder, 16, CPU)
    # The three newest transitions are not complete yet: their n-step returns need later steps.
    complete = range(replay.written - 30, replay.written - 3)
    expected = {
        replay.written - index: float(replay.priorities[0, index % replay.slots])
        for index in complete
    }
    assert dict(zip(gallery.ages.tolist(), gallery.priorities.tolist(), strict=True)) == expected
    assert {sample.age for sample in (*gallery.most, *gallery.least)} <= expected.keys()


def test_cards_of_rainbow_name_the_n_steps_and_the_end_of_an_episode(runs):
    gallery = inspect_run(runs["rainbow"], SAMPLES, CPU)
    samples = [*gallery.most, *gallery.least]
    assert {sample.ended_between for sample in samples} == {True, False}
    for sample in samples:
        assert sample.steps_between == 3
        assert ("ended within 3 steps" in cards.describe(sample)) == sample.ended_between
    page = inspection_page.to_html(gallery)
    assert page.count("<h4>observation 3 steps later</h4>") == len(samples)
    assert any("blank" in remark for remark in gallery.remarks)
    assert {"rarity", "age", "shift", "3-step return"} <= {
        measure.name for measure in gallery.measures
    }


def test_rainbow_replay_without_a_complete_transition_is_refused(trained):
    short = replace(RAINBOW, run=replace(RAINBOW.run, env_steps=3, eval_every_env_steps=3))
    with pytest.raises(ConfigError, match="no complete transition"):
        inspect_run(trained(short), 8, CPU)


@pytest.mark.quick("select+", "games-prioritisation")
@pytest.mark.parametrize(
    "name",
    [
        prefix + method
        for prefix in ("", "games-")
        for method in ("selection", "prioritisation", "regularisation", "reward", "select+")
        if prefix + method != "games-select+"
    ],
)
def test_page_shows_only_the_uses_of_curiosity_in_the_method(name, trained):
    method = name.removeprefix("games-")
    sac_config = tiny_config("toy/reach-1d", method, env_steps=24, eval_every_env_steps=24)
    config = tiny(method) if name != method else sac_config
    gallery = inspect_run(trained(config), 8, CPU)
    sample, pieces = gallery.most[0], config.method
    text = cards.describe(sample)
    assert (sample.priority is not None, "priority" in text) == (pieces.prioritisation,) * 2
    assert (sample.second_weight is not None, "Q loss" in text) == (pieces.regularisation,) * 2
    assert (sample.bonus is not None, "bonus" in text) == (pieces.reward,) * 2
    assert (gallery.priorities is not None) == pieces.prioritisation
    assert len(sample.now.views) == pieces.views
    assert inspection_page.to_html(gallery).count("<article") == 2 * len(gallery.most)


@pytest.mark.parametrize(
    ("task", "method"),
    [
        ("toy/reach", "rad"),
        ("toy/reach", "curl"),
        ("minigrid/Empty-8x8", "a2c"),
        ("toy/catch", "rainbow"),
        ("toy/catch", "curl"),
    ],
)
def test_method_without_curiosity_is_refused(task, method, tmp_path, capsys):
    config = tiny(method) if task == "toy/catch" else tiny_config(task, method)
    with create_run_folder(config, tmp_path) as folder:
        pass
    assert cli.main(["inspect", str(folder), "--out", str(tmp_path / "x.html")]) == 2
    error = capsys.readouterr().err
    assert f"{method} has no curiosity" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x.html").exists()


def test_invalid_input_is_reported_in_one_line(runs, tmp_path, capsys, monkeypatch):
    with create_run_folder(SAC, tmp_path) as untrained:
        pass
    page = str(tmp_path / "x.html")
    for arguments, message in (
        ([str(tmp_path / "nowhere")], "not a run folder"),
        ([str(untrained), "--out", page], "no checkpoint yet"),
        ([str(runs["sac"]), "--out", "x.txt"], "must end in .html"),
        ([str(runs["sac"]), "--samples", "0"], "--samples 0 must lie in"),
        ([str(runs["sac"]), "--samples", "99999999999999999999"], "must lie in [1, 1000000]"),
    ):
        assert cli.main(["inspect", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        assert cli.main(["inspect", str(runs["sac"]), "--out", page, "--samples", "8"]) == 2
        assert "pip install 'cclf[report]'" in capsys.readouterr().err
    monkeypatch.setattr(SacAlgorithm, "inspect", BaseAlgorithm.inspect)
    with pytest.raises(ConfigError, match="sac has no inspect"):
        inspect_run(runs["sac"], 8, CPU)


def test_run_folder_is_not_changed_even_while_a_run_holds_its_lock(runs):
    for config, name in ((SAC, "sac"), (A2C, "a2c"), (RAINBOW, "rainbow")):
        out = runs[name].parents[3]
        before = contents(runs[name])
        with create_run_folder(config, out):  # holds the lock, as training does
            while_locked = inspect_run(runs[name], 8, CPU)
        afterwards = inspect_run(runs[name], 8, CPU)
        assert contents(runs[name]) == before
        assert np.array_equal(while_locked.curiosity, afterwards.curiosity)


def contents(folder):
    return {
        path: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def test_ages_in_a_full_sac_replay_count_back_from_the_newest_transition(trained):
    config = tiny_config(
        "toy/reach-1d",
        env_steps=90,
        eval_every_env_steps=90,
        algorithm={"replay_capacity_transitions": 30, "batch_size": 8},
    )
    folder = trained(config)
    learner, _ = restore_learner(config, folder)
    assert learner.replay.written > learner.replay.slots, "the ring is full"
    gallery = inspect_run(folder, 16, CPU)
    assert len(gallery.priorities) == 30
    newest = learner.replay.head
    valid_slots = [slot for slot in range(learner.replay.slots) if learner.replay.valid[slot]]
    ages = {
        (newest - slot) % learner.replay.slots: float(learner.replay.priorities[slot])
        for slot in valid_slots
    }
    assert dict(zip(gallery.ages.tolist(), gallery.priorities.tolist(), strict=True)) == ages


def test_appraise_of_inspection_does_not_change_running_maxima(runs):
    """Otherwise the bonus shown would depend on the number of batches appraised before."""
    saved = checkpoint.load(runs["sac"] / "checkpoint")
    sac, replay = SacAlgorithm().load_for_inspection(SAC, saved["learner"], CPU)
    maxima = sac.framework.reward_max, sac.framework.bonus_max
    for maximum in maxima:
        maximum.fill_(1e-5)
    generators = Generators(1, CPU, CPU)
    batch = replay.sample(8, generators["replay"])
    views, appraisal = inspection.appraise(sac, batch, generators, torch.tensor(60.0))
    assert [float(maximum) for maximum in maxima] == pytest.approx([1e-5, 1e-5])
    assert appraisal.bonus.max() > 1e-5
    encoders = (sac.critic.encoder, sac.target_critic.encoder)
    sac.framework.appraise(*views, batch.reward, torch.tensor(60.0), *encoders)
    assert min(float(maximum) for maximum in maxima) > 2e-5, "training does change them"


def test_rarity_is_the_mean_distance_to_the_five_nearest_observations():
    observations = torch.zeros(8, 3, 21, 21, dtype=torch.uint8)
    observations[7] = 255  # far from the others, which are equal
    rarities = rarity(observations)
    assert rarities[:7].tolist() == pytest.approx([0.0] * 7, abs=1e-6)
    assert float(rarities[7]) == pytest.approx(1.0)


def test_render_observation_has_the_orientation_of_the_agent():
    observation = np.zeros((7, 7, 3), np.uint8)
    observation[:, :, 0] = 1  # empty and seen
    observation[1, 2] = (8, 1, 0)  # a green goal, one column from the left, two rows down
    drawn = render_observation(observation, tile_pixels=10)
    assert drawn.shape == (70, 70, 3)
    assert drawn[25, 15, 1] > 200
    assert drawn[25, 15, 0] < 120
    assert drawn[65, 35, 0] > 200, "the agent is red and in the middle of the lowest row"
    assert drawn[65, 35, 1] < 120


HOSTILE = '"><img src=x onerror="window.hacked=1"><script>window.hacked=2</script>'


def test_page_escapes_hostile_names(runs, tmp_path):
    """The names of the folder, task, method and profile contain HTML and JavaScript."""
    folder = tmp_path / f"<b>{HOSTILE.replace('/', '∕')}"
    folder.mkdir()
    for path in runs["sac"].iterdir():
        if path.name != "config.json":
            (folder / path.name).symlink_to(path)
    config = replace(SAC, task=f"toy/{HOSTILE}", method_name=HOSTILE, profile=HOSTILE)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    page = inspection_page.to_html(inspect_run(folder, 8, CPU))
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;window.hacked=2" in page


@pytest.mark.slow("analysis/test_report.py::test_page_fits_each_screen_and_color_scheme")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1100, 390])
@pytest.mark.parametrize("name", ["sac", "a2c", "rainbow"])
def test_page_fits_each_width_and_color_scheme(tab, pages, name, width, dark):
    page, report = pages[name]
    tab.open(page, width, dark=dark)
    if width > 1000:
        height = tab.evaluate("document.documentElement.scrollHeight")
        assert height < 5 * 900, "long parts are collapsed"
    tab.open_details()
    assert tab.problems == []
    assert {request for request in tab.requests if not request.startswith("data:")} == {
        page.as_uri()
    }, "the page loads no other resource"
    assert tab.evaluate("document.documentElement.scrollWidth") <= width, (
        "the page must not scroll sideways"
    )
    edges = "[...document.querySelectorAll('.sample, .sample img, .views li, svg')].map(e => e.getBoundingClientRect())"
    assert max(tab.evaluate(f"{edges}.map(r => r.right)")) <= width
    assert min(tab.evaluate(f"{edges}.map(r => Math.min(r.width, r.height))")) > 0
    assert tab.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert tab.evaluate("document.querySelectorAll('.sample').length") == len(report["most"]) + len(
        report["least"]
    )
    text_color, background = (
        tab.evaluate(f"getComputedStyle(document.body).{style}")
        for style in ("color", "backgroundColor")
    )
    assert (brightness(text_color) > brightness(background)) == dark


def brightness(colour):
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3]))
