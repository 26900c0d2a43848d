"""Videos of episodes, recorded and written by ffmpeg."""

import errno
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from cclf.errors import short_error
from cclf.storage.atomic_files import replacing
from cclf.training.worker_process import error_message


class VideoRecorder:
    """The rendered images of an episode. An error of the renderer must not end the run: it is
    stored in `error`, the images are discarded, and recording stops."""

    def __init__(self, enabled: bool):
        self.enabled, self.pictures, self.error = enabled, list[np.ndarray](), ""

    def add(self, render: Callable[[], np.ndarray]) -> None:
        try:
            self.pictures.append(render())
        except Exception as error:
            self.enabled, self.error = False, error_message(error)
            self.pictures.clear()


VIDEO_SUFFIXES = (".mp4", ".gif")


def save_video(path: Path, pictures: Sequence[np.ndarray]) -> str:
    """Write a video if there are pictures. Returns an error instead of raising it: whatever a library
    raises, it must not end the run."""
    try:
        if pictures:
            write_video(str(path), pictures)
    except Exception as error:
        path.unlink(missing_ok=True)
        return short_error(error)
    return ""


def write_video(path: str, pictures: Iterable[np.ndarray], frames_per_second: int = 30) -> None:
    """Write an .mp4 or .gif file, complete or not at all. A link at this path is replaced, not
    followed."""
    import imageio.v2 as imageio

    is_gif = path.endswith(".gif")
    options: dict[str, float | str | None] = {
        "fps": frames_per_second,
        "macro_block_size": None,  # no resizing if a side is not a multiple of 16
        "ffmpeg_log_level": "quiet",  # otherwise ffmpeg prints to standard error
    }
    if is_gif:
        options = {"duration": 1000 / frames_per_second, "loop": 0}  # loop without end
    with replacing(Path(path)) as temporary:
        shape, count = (0, 0), 0
        try:
            with imageio.get_writer(str(temporary), mode="I", **options) as video:  # type: ignore[arg-type]
                for picture in pictures:
                    shape, count = picture.shape[:2], count + 1
                    video.append_data(picture)  # type: ignore[attr-defined]
        except OSError as error:
            # If ffmpeg exits, imageio raises an OSError that contains ffmpeg's command line.
            if "FFMPEG COMMAND" not in str(error):
                raise
            complete = False
        else:
            complete = is_gif or _number_of_frames(temporary) == count
        if not complete:
            free_megabytes = shutil.disk_usage(temporary.parent).free // 10**6
            raise OSError(
                errno.EIO,
                f"ffmpeg failed after {count} pictures of {shape[1]} x {shape[0]} pixels, with "
                f"{free_megabytes:,} MB of disk free",
            )


def _number_of_frames(path: Path) -> int:
    """The number of readable frames. ffmpeg does not report a disk that was full when it wrote."""
    import imageio_ffmpeg

    try:
        return int(imageio_ffmpeg.count_frames_and_secs(str(path))[0])
    except RuntimeError:
        return 0
