"""The page of `cclf demo`, opened in a real browser: it shows what was curious, whole on a phone,
to somebody who knows no equation."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from browser import Page
from cclf.analysis import demo_page, load
from cclf.inspection import cards as observation_cards
from cclf.inspection.load import curate
from cclf.inspection.records import Gallery
from cclf.storage import run_folder
from tiny_rows import row
from tiny_runs import CPU, run, tiny_config

A2C = tiny_config("minigrid/DoorKey-6x6", env_steps=320, eval_every_env_steps=320)


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    with run_folder.create_run_folder(A2C, tmp_path_factory.mktemp("runs")) as folder:
        run(A2C, folder)
    return curate(folder, 64, CPU)


@pytest.fixture(scope="module")
def shown(gallery: Gallery) -> demo_page.Shown:
    rows = [
        row(method, seed, steps, value * steps / 400_000)
        for method, value in (("a2c", 0.5), ("cclf", 0.95))
        for seed in (1, 2, 3)
        for steps in (100_000, 200_000, 400_000)
    ]
    clock = np.array([100_000.0, 400_000.0])
    log = {"env_steps": clock, "curiosity_mean": 1e5 / clock, "bonus_mean": 1e1 / clock}
    pictures = [np.full((32, 32, 3), n, np.uint8) for n in range(20)]
    words = (
        "the curious agent of seed 1",
        gallery,
        pictures,
        b"",
        "cclf train <task>\ncclf methods",
    )
    return demo_page.Shown("minigrid/DoorKey-6x6", rows, [log] * 3, *words)


@pytest.fixture(scope="module")
def path(shown: demo_page.Shown, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "index.html"
    out.write_text(demo_page.html(shown))
    return out


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1100, 390])
def test_everything_is_whole_on_any_screen(tab: Page, path: Path, width: int, dark: bool) -> None:
    tab.open(path, width, dark=dark)
    assert tab.problems == []
    assert {ask for ask in tab.requests if not ask.startswith("data:")} == {path.as_uri()}
    assert tab.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    wide = "[...document.querySelectorAll('*')].filter(e => e.scrollWidth > e.clientWidth + 1)"
    shown = f"{wide}.filter(e => getComputedStyle(e).overflowX != 'visible').map(e => e.className)"
    assert tab.evaluate(shown) == [], "nothing is cut off or has to be scrolled sideways"
    sizes = tab.evaluate(
        "[...document.querySelectorAll('svg[role=img]')].map(s => s.getBoundingClientRect())"
        ".map(r => [r.left, r.right, r.width])"
    )
    assert len(sizes) == 3
    assert all(left >= 0 and right <= width and across > 200 for left, right, across in sizes)


def test_it_shows_what_was_curious_in_plain_words(tab: Page, path: Path, gallery: Gallery) -> None:
    tab.open(path, 1100)
    cards = tab.evaluate("[...document.querySelectorAll('.look p')].map(p => p.innerText)")
    ends = [*gallery.most[:3], *gallery.least[:3]]
    assert len(cards) == len(ends)
    for card, look in zip(cards, ends, strict=True):
        assert f"Its next move: {look.action}." in card
        assert f"It was {observation_cards.percent(look.now.belief)} sure." in card
    assert tab.evaluate("document.querySelectorAll('.look img').length") == 2 * len(ends)
    text = tab.evaluate("document.querySelector('main').innerText")  # without what is folded away
    assert not re.search(
        r"\bEq\.|\bIB\b|belief|contrastive|c′|\bcclf\b", text.partition("Go on")[0]
    )
    assert "3 of 3\ncurious agents solved it" in text
    assert "0 of 3\nplain agents solved it" in text
    assert "curious, seed 2" in text
    assert "cclf train <task>" in text
    folded = tab.evaluate("document.querySelector('details').textContent")
    assert all(f"({number})" in folded for number in (3, 5, 6, 7, 8, 9))


def test_without_pictures_there_is_still_a_page(shown: demo_page.Shown) -> None:
    text = demo_page.html(shown._replace(gallery=None, pictures=[]))
    assert "There are no pictures of it here" in text
    assert text.count("<svg") == 3


def test_the_card_of_the_front_page_says_what_the_gallery_says(gallery: Gallery) -> None:
    path = Path(__file__).parents[2] / "scripts" / "front.py"
    front = runpy.run_path(str(path))
    look = gallery.most[0]
    drawn = " ".join(" ".join(text.get_text() for text in front["card"](look).texts).split())
    assert f"{observation_cards.percent(look.curiosity)} curious" in drawn
    assert observation_cards.simple_sentence(look) in drawn
    labels = [line.get_label() for line in front["curves"]().axes[0].lines]
    rows = load.read(path.parents[1] / "results" / "curiosity")
    seeds = {
        method: len({row.seed for row in rows if (row.method, row.task, row.profile) == which})
        for method in front["CONTROLS"]
        for which in [(method, *front["SHOWN"])]
    }
    assert labels == [f"{method} ({count} seeds)" for method, count in seeds.items()]
