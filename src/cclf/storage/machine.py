"""Information about this machine and its packages, for `cclf doctor` and for the manifest of every run.

This module imports only the standard library, so that it works where a package is missing or
broken.
"""

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Literal, TypedDict

from cclf import __version__

# dm_control reads MuJoCo's structs by name, so each of its releases works with one release of MuJoCo;
# its metadata gives only a lower bound.
TESTED_PAIRS = {("1.0.50", "3.17.0")}  # (dm_control, mujoco)
FIRST_BROKEN_MUJOCO_MAJOR = 4  # dm_control raises `MjModel has no attribute flex_vertedge`
GL_HELP = (
    "install them (Debian: apt-get install libegl1 libgl1 libgl1-mesa-dri) or set "
    "MUJOCO_GL=osmesa with libosmesa6"
)

PairStatus = Literal["tested", "untested", "broken", "incomplete", "absent"]


class MachineInfo(TypedDict):
    """The packages and the machine that produced a result. A missing package has version None."""

    cclf: str
    python: str
    numpy: str | None
    mujoco: str | None
    dm_control: str | None
    gymnasium: str | None
    minigrid: str | None
    ale_py: str | None
    mujoco_pair: PairStatus
    machine: str
    system: str
    processors: int | None
    gpu_driver: str | None


class RendererInfo(TypedDict, total=False):
    """What `renderer` of an environment that renders with OpenGL returns."""

    renderer: str | None  # GL_RENDERER, None for other environments
    vendor: str
    gl_version: str
    backend: str  # MUJOCO_GL
    ms_per_frame: float
    blank: bool  # all values of a frame are equal
    differing_frames: int  # among repeated frames of the same scene
    error: str  # only in `cclf doctor`, instead of the others


class Gpu(TypedDict):
    name: str
    driver: str
    memory_bytes: int | None
    memory_free_bytes: int | None


def machine_info() -> MachineInfo:
    mujoco, dm_control = version("mujoco"), version("dm_control")
    return MachineInfo(
        cclf=__version__,
        python=platform.python_version(),
        numpy=version("numpy"),
        mujoco=mujoco,
        dm_control=dm_control,
        gymnasium=version("gymnasium"),
        minigrid=version("minigrid"),
        ale_py=version("ale-py"),
        mujoco_pair=mujoco_pair(mujoco, dm_control),
        machine=platform.machine(),
        system=platform.platform(),
        processors=os.cpu_count(),
        gpu_driver=gpu_driver(),
    )


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def mujoco_pair(mujoco: str | None, dm_control: str | None) -> PairStatus:
    """Whether these versions work together.

    >>> mujoco_pair("3.17.0", "1.0.50"), mujoco_pair("3.16.0", "1.0.50"), mujoco_pair("4.0.0", "1.0.50"), mujoco_pair(None, None)
    ('tested', 'untested', 'broken', 'absent')
    """
    if mujoco is None and dm_control is None:
        return "absent"
    if mujoco is None or dm_control is None:
        return "incomplete"
    major = mujoco.partition(".")[0]
    if major.isdecimal() and int(major) >= FIRST_BROKEN_MUJOCO_MAJOR:
        return "broken"
    return "tested" if (dm_control, mujoco) in TESTED_PAIRS else "untested"


def usable_processors() -> int:
    """Number of processors that this process may use, which containers and batch systems limit."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory_bytes() -> int:
    """Free memory of this machine, or of its container if that is less."""
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        available = min(available, int(limit.read_text()) - int(used.read_text()))
    return available


def gpu_driver() -> str | None:
    """Version of NVIDIA's kernel driver; None if none is loaded."""
    try:
        match = re.search(
            r"Kernel Module\s.*?(\d+\.\d+(?:\.\d+)?)",
            Path("/proc/driver/nvidia/version").read_text(),
        )
    except OSError:
        return None
    return match[1] if match else None


def gpus() -> list[Gpu]:
    """NVIDIA GPUs as nvidia-smi lists them, which works without PyTorch and without CUDA."""
    query = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total,memory.free",
        "--format=csv,noheader,nounits",
    ]
    try:
        output = subprocess.run(
            query, capture_output=True, text=True, check=True, timeout=20
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    return [
        Gpu(
            name=row[0],
            driver=row[1],
            memory_bytes=_mebibytes_to_bytes(row[2]),
            memory_free_bytes=_mebibytes_to_bytes(row[3]),
        )
        for row in rows
        if len(row) == 4
    ]


def _mebibytes_to_bytes(text: str) -> int | None:
    return int(text) * 2**20 if text.isdigit() else None  # some boards answer [N/A]
