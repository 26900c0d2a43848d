"""`cclf inspect`: what the page shows is what training computes, for SAC, A2C and Rainbow, and the
folder is only read."""

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


def inspected(folder, page):
    """The page, and its numbers as the command prints them."""
    words = ["inspect", str(folder), "--out", str(page), "--samples", str(SAMPLES), "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert cli.main([*words, "--device", "cpu"]) == 0
    return page, json.loads(printed.getvalue())


@pytest.fixture(scope="module")
def runs(trained):
    return {"sac": trained(SAC), "a2c": trained(A2C), "rainbow": trained(RAINBOW)}


@pytest.fixture(scope="module")
def facts(runs):
    """The numbers of each page, as the command prints them."""
    reports = {name: inspect_run(folder, SAMPLES, CPU) for name, folder in runs.items()}
    return {
        name: json.loads(json.dumps(inspection_page.to_json(each)))
        for name, each in reports.items()
    }


@pytest.fixture(scope="module")
def shown(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("pages")
    return {name: inspected(folder, out / f"{name}.html") for name, folder in runs.items()}


def restored(config, folder):
    """The learner as a resumed run has it, environment and all; and the clock."""
    saved = checkpoint.load(folder / "checkpoint")
    learner = make_learner(config, CPU)
    learner.load_state_dict(saved["learner"])
    return learner, saved["agent_steps"] * config.env.action_repeat


def by_hand(learner, env_steps):
    """Every number of the SAC gallery, from Eq. (3) to (9) written out; rows are transitions in the
    order they are drawn."""
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
            taken = []
            for own, (matches, _, frames) in zip(beliefs, sides, strict=True):
                others = matches[int(own.argmin()), b].clone()
                others[b] = 0.0
                frame = frames[int(others.argmax()), -3:].permute(1, 2, 0).numpy()
                taken.append((frame, float(others.max())))
            c = 1 - beliefs[0].min()
            curiosity = float((c + 1 - beliefs[1].min()) / 2)
            priority = float(batch.priority[b])
            rows.append(
                {
                    "beliefs": [own.tolist() for own in beliefs],
                    "origins": [origins[b].tolist() for _, origins, _ in sides],
                    "curiosity": curiosity,
                    "second_weight": float(c),
                    "priority": [priority, 0.99 * priority + 0.01 * curiosity],
                    "bonus": float(scale) * curiosity,
                    "reward": float(batch.reward[b]),
                    "slot": int(batch.slot[b]),
                    "taken": taken,
                    "newest": batch.observation[b, -3:].permute(1, 2, 0).numpy(),
                }
            )
    return rows


def ordered(rows):
    """From the most curious on, each transition once."""
    found = {}
    for row in sorted(rows, key=lambda row: -row["curiosity"]):
        found.setdefault(row["slot"], row)
    return list(found.values())


@pytest.mark.parametrize("end", ["most", "least"])
def test_sac_looks_are_what_training_would_compute(runs, facts, end):
    learner, env_steps = restored(SAC, runs["sac"])
    expected = ordered(by_hand(learner, env_steps))
    expected = expected[:6] if end == "most" else expected[::-1][:6]
    looks, pictures = facts["sac"][end], getattr(inspect_run(runs["sac"], SAMPLES, CPU), end)
    assert len(looks) == 6
    for look, drawn, row in zip(looks, pictures, expected, strict=True):
        for number, side in enumerate(("now", "next")):
            assert look[side]["origins"] == row["origins"][number]
            assert look[side]["beliefs"] == pytest.approx(row["beliefs"][number], rel=1e-3)
            assert look[side]["chosen"] == 1 + int(np.argmin(row["beliefs"][number]))
            frame, share = (drawn.now, drawn.following)[number].taken_for
            assert share == pytest.approx(row["taken"][number][1], rel=1e-3)
            assert np.array_equal(frame, row["taken"][number][0])
        for name in ("curiosity", "second_weight", "priority", "bonus", "reward"):
            assert look[name] == pytest.approx(row[name], rel=1e-4, abs=1e-6), name
        assert look["step"] == int(learner.replay.ages[row["slot"]])
        assert look["age"] == learner.replay.head - row["slot"]


@pytest.mark.slow("test_sac_looks_are_what_training_would_compute")
def test_the_page_shows_those_numbers_and_pictures(runs, shown, tab):
    page, facts = shown["sac"]
    learner, env_steps = restored(SAC, runs["sac"])
    newest = ordered(by_hand(learner, env_steps))[0]["newest"]
    tab.open(page, 1100)
    tab.open_details()
    look = facts["most"][0]
    card = "document.querySelector('#most + .samples .sample')"
    glance = f"[...{card}.querySelectorAll('.observation')]"
    texts = tab.evaluate(
        f"{glance}.map(g => [...g.querySelectorAll('.views li b')].map(b => b.innerText))"
    )
    for side, told in zip(("now", "next"), texts, strict=True):
        assert told == [
            "anchor",
            *(cards.probability(belief) for belief in look[side]["beliefs"]),
        ]
    places = tab.evaluate(
        f"[...{glance}[0].querySelectorAll('rect')].map(r => [r.className.baseVal.split(' ')[0], "
        "+r.getAttribute('y'), +r.getAttribute('x'), +r.getAttribute('width')])"
    )
    origins = enumerate(look["now"]["origins"])
    assert sorted(places) == [[f"v{n}", y, x, 16] for n, (y, x) in origins]
    sentence = tab.evaluate(f"{card}.querySelector('p').innerText")
    assert f"Step {look['step']} of its episode" in sentence
    assert f"c = {cards.probability(look['now']['curiosity'])}" in sentence
    assert f"from {look['priority'][0]:.4f} to {look['priority'][1]:.4f}" in sentence
    sources = tab.evaluate(f"[...{glance}[0].querySelectorAll('img')].map(i => i.src)")
    older, whole, anchor = (decoded(source) for source in sources[:3])
    y, x = look["now"]["origins"][0]
    assert np.array_equal(whole, newest)
    assert np.array_equal(anchor, newest[y : y + 16, x : x + 16])
    assert older.shape == whole.shape


def decoded(source):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))))


def test_a2c_looks_are_what_training_would_compute(runs, facts):
    learner, env_steps = restored(A2C, runs["a2c"])
    a2c = learner.algorithm
    curiosity, next_curiosity, copies, seen = [], [], [], []
    for _ in range(SAMPLES // 32):
        rollout, _ = learner.collect()
        grids = rollout.observation.reshape(-1, 7, 7, 3)
        windows = torch.from_numpy(grid_windows(grids))
        with torch.no_grad():
            query, key = a2c.head(a2c.policy.encoder(windows)), a2c.key(windows)
            for rows, into in ((slice(0, 32), curiosity), (slice(4, 36), next_curiosity)):
                matches = torch.softmax(query[rows] @ a2c.framework.bilinear @ key[rows].T, 1)
                into += (1 - matches.diagonal()).tolist()
        keys = [grid.tobytes() for grid in grids[:32]]
        copies += [keys.count(one) for one in keys]
        seen += keys
    facts = facts["a2c"]
    assert (facts["env_steps"], facts["updates"]) == (320, 10), "a turn is a rollout of 32 steps"
    distinct = {}
    for row in np.argsort(-np.array(curiosity), kind="stable").tolist():
        distinct.setdefault(seen[row], row)
    order = list(distinct.values())
    for end, rows in (("most", order[:6]), ("least", order[::-1][:6])):
        for look, row in zip(facts[end], rows, strict=False):
            assert look["curiosity"] == pytest.approx(curiosity[row], rel=1e-4)
            assert look["now"]["beliefs"] == pytest.approx([1 - curiosity[row]], rel=1e-3, abs=1e-6)
            assert look["copies"] == [copies[row], 32]
            paid = 2e-4 * np.exp(-2e-5 * env_steps) * (curiosity[row] + next_curiosity[row]) / 2
            assert look["bonus"] == pytest.approx(paid, rel=1e-3)
    floor = 1 - 1 / np.array(copies)
    assert facts["follows"]["1 − 1/n"]["linear"] == pytest.approx(
        np.corrcoef(curiosity, floor)[0, 1], abs=1e-4
    )
    assert facts["curiosity"]["mean"] == pytest.approx(np.mean(curiosity), rel=1e-4)
    learner.close()


def shifted(frames, numbers):
    """One view of a stack (F, H, W): a crop by 4 pixels, 4 replicated at either border, a crop
    back; numbers (2, 2) say where."""
    (first_y, second_y), (first_x, second_x) = (numbers * 5).long().tolist()
    side = frames.shape[-1]
    cut = frames[:, first_y : first_y + side - 4, first_x : first_x + side - 4].numpy()
    padded = np.pad(cut, ((0, 0), (4, 4), (4, 4)), mode="edge")
    return torch.from_numpy(padded[:, second_y : second_y + side, second_x : second_x + side])


def rainbow_by_hand(learner, env_steps):
    """The rows of the Rainbow gallery, as they are drawn, from Eq. (3) to (9) written out."""
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
        both = torch.stack([1 - beliefs.min(1).values for beliefs, _ in sides]).mean(0)
        paid = (
            2e-4
            * np.exp(-2e-5 * env_steps)
            * max(reward_max, float(batch.reward.max()))
            / max(bonus_max, float(both.max()))
        )
        for b in range(size):
            slot = int(batch.slot[0, b])
            before = float(replay.priorities[0, slot])
            rows.append(
                {
                    "slot": slot,
                    "beliefs": [beliefs[b].tolist() for beliefs, _ in sides],
                    "views": [views[:, b, -1].numpy() for _, views in sides],
                    "curiosity": float(both[b]),
                    "second_weight": float(1 - sides[0][0][b].min()),
                    "next_second_weight": float(1 - sides[1][0][b].min()),
                    "priority": [before, 0.99 * before + 0.01 * float(both[b])],
                    "bonus": paid * float(both[b]),
                    "reward": float(replay.rewards[0, slot]),
                    "action": str(int(replay.actions[0, slot])),
                    "step": int(replay.ages[0, slot]),
                    "age": replay.written - slot,
                    "ended_between": bool(replay.ended[0, slot : slot + 3].any()),
                }
            )
    return rows


@pytest.mark.parametrize("end", ["most", "least"])
def test_rainbow_looks_are_what_training_would_compute(runs, facts, end):
    learner, env_steps = restored(RAINBOW, runs["rainbow"])
    expected = ordered(rainbow_by_hand(learner, env_steps))
    expected = expected[:6] if end == "most" else expected[::-1][:6]
    looks, pictures = (
        facts["rainbow"][end],
        getattr(inspect_run(runs["rainbow"], SAMPLES, CPU), end),
    )
    assert len(looks) == len(expected) == 6
    for look, drawn, row in zip(looks, pictures, expected, strict=True):
        for side, glance, beliefs, views in zip(
            ("now", "next"), (drawn.now, drawn.following), row["beliefs"], row["views"], strict=True
        ):
            assert look[side]["beliefs"] == pytest.approx(beliefs, rel=1e-3)
            assert look[side]["chosen"] == 1 + int(np.argmin(beliefs))
            assert all(
                np.array_equal(view.picture[..., 0], own)
                for view, own in zip(glance.views, views, strict=True)
            )
        for name in (
            "curiosity",
            "second_weight",
            "next_second_weight",
            "priority",
            "bonus",
            "reward",
        ):
            assert look[name] == pytest.approx(row[name], rel=1e-4, abs=1e-7), name
        for name in ("action", "step", "age", "ended_between"):
            assert look[name] == row[name], name
        frames = learner.replay.frames[0]
        assert np.array_equal(drawn.now.frames[-1][..., 1], frames[row["slot"]].numpy())
        later = frames[row["slot"] + 3].numpy() * (not row["ended_between"])
        assert np.array_equal(drawn.following.frames[-1][..., 1], later), (
            "three steps later, blank beyond the end"
        )
        assert len(drawn.now.frames) == 2
    learner.close()


@pytest.mark.slow("test_a_replay_that_wrapped_around_is_read_in_its_order")
def test_a_replay_of_games_that_wrapped_around_is_read_in_its_order(trained):
    config = tiny("cclf", replay_capacity_transitions=30)
    config = replace(config, run=replace(config.run, env_steps=50, eval_every_env_steps=50))
    folder = trained(config)
    learner, _ = restored(config, folder)
    learner.close()
    replay = learner.replay
    assert replay.written > replay.slots, "the ring is full"
    gallery = inspect_run(folder, 16, CPU)
    written = range(replay.written - 30, replay.written - 3)  # the newest three have no future yet
    expected = {
        replay.written - number: float(replay.priorities[0, number % replay.slots])
        for number in written
    }
    assert dict(zip(gallery.ages.tolist(), gallery.priorities.tolist(), strict=True)) == expected
    assert {look.age for look in (*gallery.most, *gallery.least)} <= expected.keys()


def test_cards_of_games_say_how_much_later_and_where_the_episode_ended(runs):
    looks = [*(gallery := inspect_run(runs["rainbow"], SAMPLES, CPU)).most, *gallery.least]
    assert {look.ended_between for look in looks} == {True, False}
    for look in looks:
        assert look.steps_between == 3
        assert ("ended within 3 steps" in cards.describe(look)) == look.ended_between
    page = inspection_page.to_html(gallery)
    assert page.count("<h4>observation 3 steps later</h4>") == len(looks)
    assert any("blank" in remark for remark in gallery.remarks)
    assert {"rarity", "age", "shift", "3-step return"} <= {
        measure.name for measure in gallery.measures
    }


def test_a_replay_of_games_with_nothing_to_draw_yet_is_refused(trained):
    young = replace(RAINBOW, run=replace(RAINBOW.run, env_steps=3, eval_every_env_steps=3))
    with pytest.raises(ConfigError, match="no complete transition"):
        inspect_run(trained(young), 8, CPU)


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
def test_only_what_acts_in_a_method_is_shown(name, trained):
    method = name.removeprefix("games-")
    control = tiny_config("toy/reach-1d", method, env_steps=24, eval_every_env_steps=24)
    config = tiny(method) if name != method else control
    gallery = inspect_run(trained(config), 8, CPU)
    look, pieces = gallery.most[0], config.method
    text = cards.describe(look)
    assert (look.priority is not None, "priority" in text) == (pieces.prioritisation,) * 2
    assert (look.second_weight is not None, "Q loss" in text) == (pieces.regularisation,) * 2
    assert (look.bonus is not None, "bonus" in text) == (pieces.reward,) * 2
    assert (gallery.priorities is not None) == pieces.prioritisation
    assert len(look.now.views) == pieces.views
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
def test_methods_without_curiosity_are_refused(task, method, tmp_path, capsys):
    config = tiny(method) if task == "toy/catch" else tiny_config(task, method)
    with create_run_folder(config, tmp_path) as folder:
        pass
    assert cli.main(["inspect", str(folder), "--out", str(tmp_path / "x.html")]) == 2
    error = capsys.readouterr().err
    assert f"{method} has no curiosity" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "x.html").exists()


def test_bad_input_is_one_line(runs, tmp_path, capsys, monkeypatch):
    with create_run_folder(SAC, tmp_path) as untrained:
        pass
    page = str(tmp_path / "x.html")
    for arguments, words in (
        ([str(tmp_path / "nowhere")], "not a run folder"),
        ([str(untrained), "--out", page], "no checkpoint yet"),
        ([str(runs["sac"]), "--out", "x.txt"], "must end in .html"),
        ([str(runs["sac"]), "--samples", "0"], "--samples 0 must lie in"),
        ([str(runs["sac"]), "--samples", "99999999999999999999"], "must lie in [1, 1000000]"),
    ):
        assert cli.main(["inspect", *arguments]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "matplotlib", None)
        assert cli.main(["inspect", str(runs["sac"]), "--out", page, "--samples", "8"]) == 2
        assert "pip install 'cclf[report]'" in capsys.readouterr().err
    monkeypatch.setattr(SacAlgorithm, "inspect", BaseAlgorithm.inspect)
    with pytest.raises(ConfigError, match="sac has no inspect"):
        inspect_run(runs["sac"], 8, CPU)


def test_the_folder_is_only_read_even_while_a_run_holds_it(runs):
    for config, name in ((SAC, "sac"), (A2C, "a2c"), (RAINBOW, "rainbow")):
        out = runs[name].parents[3]
        before = contents(runs[name])
        with create_run_folder(config, out):  # as training holds it
            one = inspect_run(runs[name], 8, CPU)
        two = inspect_run(runs[name], 8, CPU)
        assert contents(runs[name]) == before
        assert np.array_equal(one.curiosity, two.curiosity), "the same run gives the same gallery"


def contents(folder):
    return {
        path: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def test_a_replay_that_wrapped_around_is_read_in_its_order(trained):
    config = tiny_config(
        "toy/reach-1d",
        env_steps=90,
        eval_every_env_steps=90,
        algorithm={"replay_capacity_transitions": 30, "batch_size": 8},
    )
    folder = trained(config)
    learner, _ = restored(config, folder)
    assert learner.replay.written > learner.replay.slots, "the ring is full"
    gallery = inspect_run(folder, 16, CPU)
    assert len(gallery.priorities) == 30
    newest = learner.replay.head
    live = [slot for slot in range(learner.replay.slots) if learner.replay.valid[slot]]
    ages = {
        (newest - slot) % learner.replay.slots: float(learner.replay.priorities[slot])
        for slot in live
    }
    assert dict(zip(gallery.ages.tolist(), gallery.priorities.tolist(), strict=True)) == ages


def test_appraising_leaves_the_running_maxima_of_the_checkpoint(runs):
    """Otherwise the bonus shown would depend on how many batches were looked at before."""
    saved = checkpoint.load(runs["sac"] / "checkpoint")
    sac, replay = SacAlgorithm().load_for_inspection(SAC, saved["learner"], CPU)
    maxima = sac.framework.reward_max, sac.framework.bonus_max
    for maximum in maxima:
        maximum.fill_(1e-5)
    generators = Generators(1, CPU, CPU)
    batch = replay.sample(8, generators["replay"])
    views, first = inspection.appraise(sac, batch, generators, torch.tensor(60.0))
    assert [float(maximum) for maximum in maxima] == pytest.approx([1e-5, 1e-5])
    assert first.bonus.max() > 1e-5
    encoders = (sac.critic.encoder, sac.target_critic.encoder)
    sac.framework.appraise(*views, batch.reward, torch.tensor(60.0), *encoders)
    assert min(float(maximum) for maximum in maxima) > 2e-5, "training does move them"


def test_rarity_is_the_mean_distance_to_the_five_nearest():
    flat = torch.zeros(8, 3, 21, 21, dtype=torch.uint8)
    flat[7] = 255  # far from all the others, which are the same
    found = rarity(flat)
    assert found[:7].tolist() == pytest.approx([0.0] * 7, abs=1e-6)
    assert float(found[7]) == pytest.approx(1.0)


def test_grids_are_drawn_as_the_agent_sees_them():
    observation = np.zeros((7, 7, 3), np.uint8)
    observation[:, :, 0] = 1  # empty and seen
    observation[1, 2] = (8, 1, 0)  # a green goal, one column from the left, two rows down
    drawn = render_observation(observation, tile_pixels=10)
    assert drawn.shape == (70, 70, 3)
    assert drawn[25, 15, 1] > 200
    assert drawn[25, 15, 0] < 120
    assert drawn[65, 35, 0] > 200, "the agent, red, in the middle of the lowest row"
    assert drawn[65, 35, 1] < 120


HOSTILE = '"><img src=x onerror="window.hacked=1"><script>window.hacked=2</script>'


def test_hostile_names_are_escaped(runs, tmp_path):
    """The page of a run whose folder, task, method and profile are code."""
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


@pytest.mark.slow("analysis/test_report.py::test_the_page_works_on_any_screen")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1100, 390])
@pytest.mark.parametrize("name", ["sac", "a2c", "rainbow"])
def test_the_page_works_on_any_screen(tab, shown, name, width, dark):
    page, facts = shown[name]
    tab.open(page, width, dark=dark)
    if width > 1000:
        height = tab.evaluate("document.documentElement.scrollHeight")
        assert height < 5 * 900, "long parts are folded"
    tab.open_details()
    assert tab.problems == []
    assert {request for request in tab.requests if not request.startswith("data:")} == {
        page.as_uri()
    }, "it asks for nothing else"
    assert tab.evaluate("document.documentElement.scrollWidth") <= width, (
        "the page must not scroll sideways"
    )
    edges = "[...document.querySelectorAll('.sample, .sample img, .views li, svg')].map(e => e.getBoundingClientRect())"
    assert max(tab.evaluate(f"{edges}.map(r => r.right)")) <= width
    assert min(tab.evaluate(f"{edges}.map(r => Math.min(r.width, r.height))")) > 0
    assert tab.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert tab.evaluate("document.querySelectorAll('.sample').length") == len(facts["most"]) + len(
        facts["least"]
    )
    ink, paper = (
        tab.evaluate(f"getComputedStyle(document.body).{what}")
        for what in ("color", "backgroundColor")
    )
    assert (brightness(ink) > brightness(paper)) == dark


def brightness(colour):
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3]))
