"""Rendering in processes of their own, watched: a GL driver that hangs or crashes is reported,
never waited for without end.

Each child is a fresh interpreter (forked GL contexts are a known cause of hangs), says `ready` once
its packages are imported, and opens its renderer when all others do. A child that takes too long
writes down where it stands and ends itself; one that cannot even do that is killed and left behind.
"""

import contextlib
import ctypes
import faulthandler
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from cclf.training import subprocesses

# always the same: machines can be compared
TASK, FRAME_PIXELS, FRAMES_AT_ONCE = "cartpole-swingup", 100, 30
READY = "ready"


class Child(NamedTuple):
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]

    def said(self) -> str:
        return _text(self.out)

    def ready_or_gone(self) -> bool:
        return self.said().startswith(READY) or self.gone()

    def gone(self) -> bool:
        return self.process.poll() is not None


def render(
    processes: int,
    seconds: float,
    start_limit_seconds: float = 90.0,
    render_limit_seconds: float = 30.0,
    command: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Draw frames in `processes` at once for `seconds`, at least 30 each. What each found; its
    `outcome` is ok, failed, crashed or hung."""
    allowed = seconds + render_limit_seconds
    command = command or subprocesses.python_command(
        "-m", "cclf.benchmark.probe", str(seconds), str(start_limit_seconds), str(allowed)
    )
    grace_seconds = 2.0  # for a child's own watchdog to speak first
    with contextlib.ExitStack() as files:

        def child() -> Child:
            out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=subprocesses.child_environment(),
            )
            return Child(process, out, err)

        children = [child() for _ in range(processes)]
        try:
            _wait(children, Child.ready_or_gone, start_limit_seconds + grace_seconds)
            for one in children:
                with contextlib.suppress(OSError):  # it is gone
                    assert one.process.stdin is not None, "opened as a pipe"
                    one.process.stdin.close()
            _wait(children, Child.gone, allowed + grace_seconds)
            return [_outcome(one) for one in children]
        finally:
            for one in children:
                if not one.gone():
                    one.process.kill()


def _wait(children: list[Child], arrived: Callable[[Child], bool], limit_seconds: float) -> None:
    end = time.monotonic() + limit_seconds
    while time.monotonic() < end and not all(arrived(one) for one in children):
        time.sleep(0.02)


def _outcome(child: Child) -> dict[str, Any]:
    code = child.process.poll()
    said, trouble = child.said(), _text(child.err)
    if code == 0:
        try:
            facts = json.loads(said.splitlines()[-1])
            return {"outcome": "failed" if "error" in facts else "ok", **facts}
        except (ValueError, IndexError, TypeError):
            return {"outcome": "crashed", "error": f"it ended without a word: {said[-200:]!r}"}
    if code is None or trouble.startswith("Timeout ("):
        return {"outcome": "hung", "error": _where(trouble) or "it did not answer and was killed"}
    last = trouble.strip().splitlines()[-1:] or [f"exit code {code}"]
    return {"outcome": "crashed", "error": f"killed by signal {-code}" if code < 0 else last[0]}


def _text(file: IO[bytes]) -> str:
    # the child shares the file's position: leave it alone
    return os.pread(file.fileno(), 100_000, 0).decode(errors="replace")


def _where(dump: str) -> str | None:
    """The innermost frame of faulthandler's report: where a child stood when its time was up."""
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', dump)
    return f"in {frames[0][2]} ({Path(frames[0][0]).name}:{frames[0][1]})" if frames else None


def main(seconds: float, start_limit_seconds: float, render_limit_seconds: float) -> dict[str, Any]:
    """The child."""
    faulthandler.dump_traceback_later(start_limit_seconds, exit=True)
    try:
        from cclf.envs.dmc import DeepMindControl

        env = DeepMindControl(TASK, FRAME_PIXELS, 1, 0)
        print(READY, flush=True)
        sys.stdin.read()  # until the parent closes it
        faulthandler.dump_traceback_later(render_limit_seconds, exit=True)
        env.reset(0)
        end = time.monotonic() + seconds
        facts = env.renderer(FRAMES_AT_ONCE)
        frames, differing = FRAMES_AT_ONCE, facts["differing_frames"]
        while time.monotonic() < end:
            more = env.renderer(FRAMES_AT_ONCE)
            frames, differing = frames + FRAMES_AT_ONCE, differing + more["differing_frames"]
        facts |= {"frames": frames, "differing_frames": differing, "egl_devices": egl_devices()}
        env.close()
        return facts
    # GL backends raise each its own kind: whatever it is, the doctor reports it
    except Exception as error:
        cause = error.__cause__ or error  # ours guess at a reason; below lies what the driver said
        return {"error": " ".join(f"{type(cause).__name__}: {cause}".split())}


# EGL's numbers for what is asked below, from its registry.
_EGL_EXTENSIONS, _EGL_DEVICE_EXT, _EGL_CUDA_DEVICE_NV = 0x3055, 0x322C, 0x323A


def egl_devices() -> list[dict[str, Any]] | None:
    """EGL's devices in its own order, each with the CUDA device it is and whether this thread
    renders there; None: not known."""
    try:
        egl = ctypes.CDLL("libEGL.so.1")
        egl.eglGetProcAddress.restype, egl.eglGetProcAddress.argtypes = (
            ctypes.c_void_p,
            [ctypes.c_char_p],
        )
        egl.eglGetCurrentDisplay.restype = ctypes.c_void_p

        def function(name: str, result: Any, *arguments: Any) -> Any:
            address = egl.eglGetProcAddress(name.encode())
            if not address:
                raise OSError(f"this EGL has no {name}")
            return ctypes.CFUNCTYPE(result, *arguments)(address)

        pointer, integer, attribute = ctypes.c_void_p, ctypes.c_int32, ctypes.c_ssize_t
        query = function(
            "eglQueryDevicesEXT",
            ctypes.c_uint,
            integer,
            ctypes.POINTER(pointer),
            ctypes.POINTER(integer),
        )
        words = function("eglQueryDeviceStringEXT", ctypes.c_char_p, pointer, integer)
        number = function(
            "eglQueryDeviceAttribEXT", ctypes.c_uint, pointer, integer, ctypes.POINTER(attribute)
        )
        of_display = function(
            "eglQueryDisplayAttribEXT", ctypes.c_uint, pointer, integer, ctypes.POINTER(attribute)
        )
    except (OSError, AttributeError):
        return None
    found, count, in_use = (pointer * 64)(), integer(), attribute()
    if not query(64, found, ctypes.byref(count)):
        return None
    display = egl.eglGetCurrentDisplay()
    known = bool(display) and bool(of_display(display, _EGL_DEVICE_EXT, ctypes.byref(in_use)))
    devices = []
    for index in range(count.value):
        extensions = (words(found[index], _EGL_EXTENSIONS) or b"").decode().split()
        cuda = attribute()
        is_cuda = "EGL_NV_device_cuda" in extensions and number(
            found[index], _EGL_CUDA_DEVICE_NV, ctypes.byref(cuda)
        )
        devices.append(
            {
                "index": index,
                "cuda": cuda.value if is_cuda else None,
                "software": "EGL_MESA_device_software" in extensions,
                "in_use": found[index] == in_use.value if known else None,
            }
        )
    return devices


if __name__ == "__main__":
    print(json.dumps(main(*map(float, sys.argv[1:]))))
