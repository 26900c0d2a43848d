"""`cclf demo`: two agents of the paper on MiniGrid, on a laptop in minutes, and a page that shows
what curiosity did."""

import sys
import tempfile
from pathlib import Path

import numpy as np

from cclf import presets
from cclf.errors import ConfigError
from cclf.runtime.stop import Stop
from cclf.study import figures, load, page
from cclf.study.load import Row
from cclf.study.sweep.local import LocalBackend
from cclf.study.sweep.loop import run_all
from cclf.study.sweep.plan import STOPPED, Call, call_of

TASK = "minigrid/DoorKey-6x6"
METHODS = ("a2c", "cclf")
SEEDS = (1, 2, 3)
PROFILE = "paper"
SOLVED_RETURN = 0.9
OPTIMUM = 0.969  # mean return of the shortest paths over all layouts of DoorKey-6x6
NEXT_COMMANDS = "cclf train minigrid/DoorKey-8x8 --method re3+cclf\ncclf train dmc/cartpole-swingup --method cclf\ncclf methods"
OPTIONS = (
    "--eval-every-env-steps",
    "12800",
    "--log-every-agent-steps",
    "3200",
    "--no-tensorboard",
    "--no-video",
)


def run(out: Path, stop: Stop) -> Path | None:
    """Train, then write the page; returns its path, or None where it was stopped. Run again, it
    only redraws."""
    names = [(method, seed) for seed in SEEDS for method in METHODS]
    calls = [
        call_of(presets.resolve(TASK, method, seed=seed, profile=PROFILE), out, OPTIONS)
        for method, seed in names
    ]
    for outcome in run_all(calls, LocalBackend(), stop):
        if outcome.exit_code == STOPPED:
            return None
        if outcome.failed:
            raise ConfigError(f"training {outcome.call.label} failed: {outcome.last_line}")
    path = out / "index.html"
    path.write_text(_page(out, calls))
    return path


def _page(out: Path, calls: list[Call]) -> str:
    rows = [row for row in load.read_runs(out / TASK) if row.method in METHODS]
    curve = figures.learning_curves({TASK: figures.curves(rows)}, {TASK: OPTIMUM})
    curious = [call for call in calls if call.config.method_name == "cclf"]
    logs = [load.read_train(call.folder, ("curiosity_mean", "bonus_mean")) for call in curious]
    curiosity, bonus = (
        {"cclf": [(log["env_steps"], log[name]) for log in logs]}
        for name in ("curiosity_mean", "bonus_mean")
    )
    final = {row.seed: row.return_mean for row in rows if row.method == "cclf"}
    best = max(curious, key=lambda call: final[call.config.seed])
    header = ("run", "final return", f"env steps to {SOLVED_RETURN}", "seconds")
    return page.page(
        "What curiosity did",
        [
            "<h1>What curiosity did</h1>",
            f"<p>Two agents learned <code>{page.escape(TASK)}</code> on this machine: find the "
            "key, open the locked door, "
            "reach the green square, seeing only the 7×7 cells in front. One is plain A2C. The "
            "other is A2C with CCLF: it also "
            "learns to recognise its own observations, and is paid a little for those it fails to "
            "recognise.</p>",
            "<h2>Learning</h2>",
            page.figure(
                figures.inline_svg(curve, "learning curves"),
                f"Return of {rows[0].episodes} evaluation episodes; mean of {len(SEEDS)} seeds "
                "with a 95 % bootstrap interval. "
                f"Dashed: the shortest paths ({OPTIMUM}). {len(SEEDS)} seeds prove nothing: "
                "docs/minigrid.md has more, and a "
                "control which says that most of the gain is the contrastive loss itself, whatever "
                "curiosity adds.",
                wide=True,
            ),
            page.table(header, [_summary(call, rows) for call in calls]),
            "<h2>Curiosity</h2>",
            '<div class="pair">',
            page.figure(
                figures.inline_svg(
                    figures.over_training(curiosity, TASK, "curiosity 1 − IB"), "curiosity"
                ),
                "Eq. (3), mean over the batch of each update, one line per seed. It falls as the "
                "agent learns to tell its "
                "observations apart, but not to zero: one that stands n times in a batch cannot be "
                "believed above 1/n.",
            ),
            page.figure(
                figures.inline_svg(
                    figures.over_training(bonus, TASK, "intrinsic reward per step"),
                    "intrinsic reward",
                ),
                "Eq. (9): what that curiosity pays. It fades with time, so that the task decides "
                "in the end.",
            ),
            "</div>",
            "<h2>The trained agent</h2>",
            *_episode(best),
            "<h2>Go on</h2>",
            f"<pre><code>{page.escape(NEXT_COMMANDS)}</code></pre>",
        ],
    )


def _summary(call: Call, rows: list[Row]) -> tuple[str, str, str, str]:
    mine = [
        row
        for row in rows
        if row.method == call.config.method_name and row.seed == call.config.seed
    ]
    reached = load.steps_to(mine, SOLVED_RETURN)
    label = "never" if np.isinf(reached) else f"{reached:,.0f}"
    return (
        f"{call.config.method_name}, seed {call.config.seed}",
        f"{mine[-1].return_mean:.3f}",
        label,
        f"{mine[-1].wall_seconds:.0f}",
    )


def _episode(best: Call) -> list[str]:
    """One episode of a trained agent, for the page; a picture that cannot be made is a warning, six
    runs are trained by then."""
    pictures, reason = _watch(best.folder)
    parts = [
        f'<p class="soft">One episode of cclf, seed {best.config.seed}: {len(pictures)} steps, actions sampled.</p>'
    ]
    if pictures:
        shown = np.unique(np.linspace(0, len(pictures) - 1, 8).round().astype(int))
        parts.append(page.picture_strip([pictures[i] for i in shown], [f"step {i}" for i in shown]))
        try:
            parts.append(_video(pictures))
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
    if reason:
        print(
            f"cclf: warning: the page lacks pictures of the agent: {reason}",
            file=sys.stderr,
            flush=True,
        )
    return parts


def _watch(folder: Path) -> tuple[list[np.ndarray], str]:
    """Pictures of one episode of the agent in a run folder, or why there are none."""
    import torch

    from cclf.build import load_agent

    agent, _, _ = load_agent(folder, torch.device("cpu"), episodes=1)
    try:
        result = agent.evaluate([0], True)
        return result.pictures, result.no_pictures
    finally:
        agent.close()


def _video(pictures: list[np.ndarray]) -> str:
    from cclf.runtime.evaluate import write_video

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episode.mp4"
        write_video(str(path), pictures, frames_per_second=6)
        return page.video(path.read_bytes(), "an episode of the trained agent")
