"""The page of `cclf demo`, for somebody who has not read the paper."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cclf.analysis import evaluations, figures, learning, page
from cclf.analysis.evaluations import Row
from cclf.analysis.page import escape
from cclf.analysis.styles import styles
from cclf.inspection.cards import STYLE, cards, signed
from cclf.inspection.correlation import correlate, words
from cclf.inspection.records import Gallery

SOLVED_RETURN = 0.9
OPTIMUM = 0.969  # mean return of the shortest paths over all layouts of DoorKey-6x6
SHOWN_CARDS = 3
NAMES = {"a2c": "plain", "cclf": "curious"}  # methods in plain words
IN_THE_PAPERS_WORDS = """<details><summary>The same in the paper's words</summary>
<p>The plain agent is A2C. The curious one is A2C with CCLF. “How sure it is” is the belief IB,
a softmax over the batch, which the contrastive loss trains, Eq. (8). Curiosity is 1 − IB, Eq.
(3). The pay is the intrinsic reward, Eq. (9). A grid has no augmented views, so the selection
of views (5) and the weights of the Q loss (7) do nothing here, and there is no replay to
prioritise (6). All nine equations are on one page, <code>src/cclf/equations.py</code>.</p></details>"""


class Shown(NamedTuple):
    """What came of the runs of the demo."""

    task: str
    rows: Sequence[Row]  # evaluations of all runs
    logs: Sequence[Mapping[str, np.ndarray]]  # train.csv of each curious run
    best: str  # of the curious runs, in words
    gallery: Gallery | None  # what it was curious about
    pictures: Sequence[np.ndarray]  # an episode of it
    video: bytes
    next_commands: str


def html(shown: Shown) -> str:
    return page.page(
        "What curiosity did",
        [
            "<h1>What curiosity did</h1>",
            _told(shown),
            page.tiles(_tiles(shown.rows)),
            "<h2>Did it learn faster?</h2>",
            *_learning(shown),
            "<h2>What was it curious about?</h2>",
            *_curious_about(shown),
            "<h2>How curious was it, over time?</h2>",
            *_over_time(shown),
            "<h2>Watch it</h2>",
            *_episode(shown),
            "<h2>Go on</h2>",
            f"<pre><code>{escape(shown.next_commands)}</code></pre>",
            IN_THE_PAPERS_WORDS,
        ],
        STYLE,
    )


def _told(shown: Shown) -> str:
    runs = len(evaluations.runs(shown.rows))
    return (
        f"<p>{runs} small agents have just learned on this machine, all in the same game "
        f"(<code>{escape(shown.task)}</code>): find the key, open the locked door, reach the green "
        "square. An agent sees only the 7×7 cells in front of it, and is paid once, at the very "
        "end.</p><p>Half of them are <b>plain</b>: they learn from that pay alone. The others are "
        "also <b>curious</b>. They are asked again and again: of all the moments you have just "
        "lived, which one is this? The less sure the answer, the more curious the agent is about "
        "that moment, and it is paid a little for having got there.</p>"
    )


def _tiles(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    tiles = []
    for method, name in reversed(NAMES.items()):
        steps = [
            evaluations.steps_to(readings, SOLVED_RETURN)
            for run, readings in evaluations.runs(rows).items()
            if run.method == method
        ]
        solved = sum(np.isfinite(steps))
        median = float(np.median(steps)) if steps else np.inf
        tiles.append((f"{solved} of {len(steps)}", f"{name} agents solved it", ""))
        when = f"{median:,.0f}" if np.isfinite(median) else "never"
        tiles.append((when, f"steps of practice to solve it ({name}, median)", ""))
    return tiles


def _learning(shown: Shown) -> list[str]:
    curves = {NAMES[method]: curve for method, curve in learning.curves(shown.rows).items()}
    drawn = {NAMES[method]: style for method, style in styles(NAMES).items()}
    title = "score after so much practice"
    curve = figures.learning_curves(
        {title: curves}, {title: OPTIMUM}, legend=False, looks=drawn, ylabel="score"
    )
    seeds = max((len(curve.seeds) for curve in curves.values()), default=0)
    caption = (
        f"Up is better: 1 is a reached goal, less a little for every step on the way; dashed in "
        f"grey, the shortest paths ({OPTIMUM}). A line is the mean of {seeds} runs in "
        f"{shown.rows[0].episodes} fresh games each, the thin lines are those runs. "
        f"{seeds} runs prove nothing. Many more (docs/curiosity.md) say that being asked is what "
        "helps: agents that are asked and not paid for curiosity learn as well."
    )
    header = ("run", "score", "steps to solve", "seconds")
    solved = f"The score is that of the last games; solved is a score of {SOLVED_RETURN}."
    lines = [_line(readings) for readings in evaluations.runs(shown.rows).values()]
    return [
        page.legend({name: drawn[name] for name in curves}),
        page.panels([figures.inline_svg(curve, "learning curves")], caption),
        page.table(header, lines, title="Every run", caption=solved),
    ]


def _line(readings: Sequence[Row]) -> tuple[str, str, str, str]:
    last = readings[-1]
    reached = evaluations.steps_to(readings, SOLVED_RETURN)
    return (
        f"{NAMES[last.method]}, seed {last.seed}",
        f"{last.return_mean:.3f}",
        f"{reached:,.0f}" if np.isfinite(reached) else "never",
        f"{last.wall_seconds:.0f}",
    )


def _curious_about(shown: Shown) -> list[str]:
    if shown.gallery is None:
        return ['<p class="soft">There are no pictures of it here.</p>']
    gallery = shown.gallery
    text = (
        f"<p>Here {escape(shown.best)} walks on after training, without learning any more. A card "
        "shows what it saw (it is the red triangle and looks up), and what it saw after its next "
        "move. The bar says how sure it was which moment this is.</p>"
    )
    common = next((one for one in gallery.measures if one.novelty < 0), None)
    said = ""
    if common is not None:
        found = correlate(common.values, gallery.curiosity)
        rank = f" (rank correlation {signed(found.rank)})" if np.isfinite(found.rank) else ""
        said = (
            f"<p>Look closely: with how <i>common</i> a sight is, its curiosity "
            f"{escape(words(found))}{rank}. Copies of one sight cannot be told apart, so the agent "
            "is never sure of them, however well it knows them. It is not the new that it is "
            "curious about; <code>docs/curiosity.md</code> asks what follows from that.</p>"
        )
    return [
        text,
        "<h3>The most curious</h3>",
        cards(gallery.most[:SHOWN_CARDS], simple=True),
        "<h3>The least curious</h3>",
        cards(gallery.least[:SHOWN_CARDS], simple=True),
        said,
    ]


def _over_time(shown: Shown) -> list[str]:
    def drawn(column: str, title: str, ylabel: str) -> str:
        series = {"cclf": [(log["env_steps"], log[column]) for log in shown.logs]}
        return figures.inline_svg(figures.over_training(series, title, ylabel), title)

    panels = [
        drawn("curiosity_mean", "how curious it was", "1: recognises nothing"),
        drawn("bonus_mean", "what that paid", "pay for each step"),
    ]
    caption = (
        "One line per curious agent. Curiosity falls as the agent learns to tell its moments "
        "apart, but not to zero: copies stay copies. The pay fades with time as well, so that the "
        "game decides in the end."
    )
    return [page.panels(panels, caption)]


def _episode(shown: Shown) -> list[str]:
    pictures = shown.pictures
    text = f"One game of {shown.best}: {len(pictures)} steps."
    parts = [f'<p class="soft">{escape(text)}</p>']
    if pictures:
        steps = np.unique(np.linspace(0, len(pictures) - 1, 8).round().astype(int))
        parts.append(page.picture_strip([pictures[i] for i in steps], [f"step {i}" for i in steps]))
    if shown.video:
        parts.append(page.video(shown.video, "an episode of the trained agent", pictures[0]))
    return parts
