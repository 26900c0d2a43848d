"""Draw the pictures of README: the speed chart, and a strip of trained agents as an animated image.

.venv/bin/python scripts/front.py speed
.venv/bin/python scripts/front.py agents LABEL=EPISODE.mp4 [...]      # videos of `cclf play`
"""

import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cclf.analysis import figures
from cclf.analysis.figures import TEXT_COLOR, new_figure, settings
from cclf.analysis.styles import GREY, RED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
SIDE_PIXELS, LABEL_PIXELS, GAP_PIXELS = 164, 22, 4  # of a clip in the strip
SECONDS, FRAMES_PER_SECOND, VIDEO_FRAMES_PER_SECOND = 6, 12, 30  # of the strip; of `cclf play`
OUT, BENCHMARKS = ROOT / "docs" / "figures", ROOT / "benchmarks"
TEXT_COLORS = {"light": "#1f2328", "dark": "#f0f6fc"}


class Comparison(NamedTuple):
    """What one step costs here and in the code of the authors (docs/performance.md)."""

    label: str
    here_ms: float
    theirs_ms: float


def measured(file: str, *keys: str) -> float:
    """A value of a JSON file in benchmarks/."""
    value = json.loads((BENCHMARKS / file).read_text())
    for key in keys:
        value = value[key]
    return float(value)


def comparisons() -> list[Comparison]:
    frames = [
        measured("cpu2-minigrid.json", method, "frames_per_second") for method in ("re3", "a2c")
    ]
    return [
        Comparison("RE3 on MiniGrid, per frame (two CPU cores)", 1000 / frames[0], 1000 / 450),
        Comparison(
            "CCLF on SAC, per update (H200)",
            measured("h200-update-fused-bf16.json", "cclf", "median_ms"),
            338.0,
        ),
        Comparison("A2C on MiniGrid, per frame (two CPU cores)", 1000 / frames[1], 1000 / 4200),
        Comparison(
            "DrQ-v2, per update (H200)",
            measured("h200-drqv2-update-bf16.json", "drq-v2", "median_ms"),
            13.2,
        ),
    ]


@settings()
def speed_chart() -> "Figure":
    """Time of one step here and in the authors' code, on a logarithmic scale."""
    drawing = new_figure((7.6, 2.5))
    axis = drawing.add_subplot()
    rows = comparisons()
    for height, row in enumerate(reversed(rows)):
        axis.plot([row.here_ms, row.theirs_ms], [height, height], color=GREY, lw=2, zorder=1)
        axis.plot(row.theirs_ms, height, "o", color=GREY, ms=8, label="authors' code")
        axis.plot(row.here_ms, height, "o", color=RED, ms=8, label="cclf")
        axis.annotate(
            f"{row.theirs_ms / row.here_ms:.0f} times as fast",
            ((row.here_ms * row.theirs_ms) ** 0.5, height),
            xytext=(0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    axis.set_yticks(range(len(rows)), [row.label for row in reversed(rows)], fontsize=9.5)
    axis.set_ylim(-0.5, len(rows) - 0.3)
    axis.set_xscale("log")
    axis.set_xticks([0.01, 0.1, 1, 10, 100], ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms"])
    axis.minorticks_off()
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", alpha=0.25)
    axis.spines[["top", "right", "left"]].set_visible(False)
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(
        handles[1::-1],
        labels[1::-1],
        loc="lower left",
        bbox_to_anchor=(0, 0.97),
        ncols=2,
        frameon=False,
        fontsize=9.5,
    )
    return drawing


def agents_strip(videos: dict[str, Path], path: Path) -> None:
    """Write an animated WebP of the videos, next to each other, each repeated until all have ended."""
    import imageio.v3 as imageio
    import imageio_ffmpeg
    from PIL import Image, ImageDraw, ImageFont, ImageOps

    count, stride = SECONDS * FRAMES_PER_SECOND, VIDEO_FRAMES_PER_SECOND // FRAMES_PER_SECOND
    size = (SIDE_PIXELS, SIDE_PIXELS)
    clips: dict[str, list[Image.Image]] = {}
    for label, video in videos.items():
        is_long = imageio_ffmpeg.count_frames_and_secs(str(video))[0] > count
        pictures = imageio.imiter(video)
        kept = itertools.islice(
            pictures, 0, count * stride if is_long else None, stride if is_long else 1
        )
        clips[label] = [
            ImageOps.pad(Image.fromarray(picture), size, color=tuple(picture[0, 0]))
            for picture in kept
        ]
    font = ImageFont.load_default(14)
    strip = []
    for index in range(count):
        width = len(clips) * (SIDE_PIXELS + GAP_PIXELS) - GAP_PIXELS
        image = Image.new("RGBA", (width, SIDE_PIXELS + LABEL_PIXELS), (0, 0, 0, 0))
        for place, (label, frames) in enumerate(clips.items()):
            left = place * (SIDE_PIXELS + GAP_PIXELS)
            image.paste(frames[index % len(frames)], (left, 0))
            ImageDraw.Draw(image).text(
                (left + SIDE_PIXELS / 2, SIDE_PIXELS + 3), label, "#808080", font, anchor="ma"
            )
        strip.append(image)
    strip[0].save(
        path,
        save_all=True,
        append_images=strip[1:],
        duration=1000 // FRAMES_PER_SECOND,
        loop=0,
        quality=70,
        method=6,
    )


def main() -> None:
    if sys.argv[1:2] == ["agents"]:
        path = OUT / "front-agents.webp"
        pairs = (argument.partition("=") for argument in sys.argv[2:])
        agents_strip({label: Path(video) for label, _, video in pairs}, path)
        print(path)
        return
    drawing = speed_chart()
    for name, color in TEXT_COLORS.items():
        path = OUT / f"front-speed-{name}.svg"
        figures.save(drawing, path, transparent=True)
        path.write_text(path.read_text().replace(TEXT_COLOR, color))
        print(path)


if __name__ == "__main__":
    main()
