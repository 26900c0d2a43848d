"""Facts about this machine and its packages, for `cclf doctor` and for the manifest of every run:
one source for both.

Standard library alone: nothing here may fail where a package is missing or broken.
"""

import ctypes
import os
import platform
import re
import subprocess
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal

from cclf import __version__

PACKAGES = ("torch", "numpy", "mujoco", "dm_control", "gymnasium", "minigrid", "ale-py")
# dm_control reads MuJoCo's structs by name, so each of its releases fits one of MuJoCo's; its
# metadata gives a lower bound alone.
TESTED_PAIRS = {("1.0.50", "3.17.0")}  # (dm_control, mujoco)
FIRST_BROKEN_MUJOCO_MAJOR = 4  # `MjModel has no attribute flex_vertedge`
SOFTWARE_RENDERERS = ("llvmpipe", "softpipe", "swrast", "software rasterizer")
GL_HELP = (
    "install them (Debian: apt-get install libegl1 libgl1 libgl1-mesa-dri) or set "
    "MUJOCO_GL=osmesa with libosmesa6"
)
NVIDIA_EGL_VENDOR_FILES = ("/usr/share/glvnd/egl_vendor.d", "/etc/glvnd/egl_vendor.d")

Pair = Literal["tested", "untested", "broken", "incomplete", "absent"]


def machine_info() -> dict[str, Any]:
    """What a result must carry about the machine and the packages it came from."""
    found = versions()
    return {
        "cclf": __version__,
        "python": platform.python_version(),
        **{name.replace("-", "_"): version for name, version in found.items()},
        "mujoco_pair": mujoco_pair(found["mujoco"], found["dm_control"]),
        "machine": platform.machine(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "gpu_driver": gpu_driver(),
    }


def versions() -> dict[str, str | None]:
    return {name: version(name) for name in PACKAGES}


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def mujoco_pair(mujoco: str | None, dm_control: str | None) -> Pair:
    """Whether the two fit each other.

    >>> mujoco_pair("3.17.0", "1.0.50"), mujoco_pair("3.16.0", "1.0.50"), mujoco_pair("4.0.0", "1.0.50"), mujoco_pair(None, None)
    ('tested', 'untested', 'broken', 'absent')
    """
    if mujoco is None and dm_control is None:
        return "absent"
    if mujoco is None or dm_control is None:
        return "incomplete"
    if int(re.match(r"\d*", mujoco)[0] or 0) >= FIRST_BROKEN_MUJOCO_MAJOR:  # type: ignore[index]
        return "broken"
    return "tested" if (dm_control, mujoco) in TESTED_PAIRS else "untested"


def usable_processors() -> int:
    """Processors this process may run on; a container or a batch system often gives fewer than the
    machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def available_memory_bytes() -> int:
    """What this process may still take: the machine's free memory, or less where a container sets a
    limit."""
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
    """Version of NVIDIA's kernel driver, where one is loaded."""
    try:
        found = re.search(
            r"Kernel Module\s.*?(\d+\.\d+(?:\.\d+)?)",
            Path("/proc/driver/nvidia/version").read_text(),
        )
    except OSError:
        return None
    return found[1] if found else None


def gpus() -> list[dict[str, Any]]:
    """NVIDIA GPUs as the driver's own tool lists them: it works where PyTorch was built without
    CUDA."""
    query = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total,memory.free",
        "--format=csv,noheader,nounits",
    ]
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, check=True, timeout=20
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [
        [cell.strip() for cell in line.split(",")]
        for line in answer.splitlines()
        if line.count(",") == 3
    ]
    return [
        {
            "name": name,
            "driver": driver,
            "memory_bytes": _mebibytes(total),
            "memory_free_bytes": _mebibytes(free),
        }
        for name, driver, total, free in rows
    ]


def _mebibytes(text: str) -> int | None:
    return int(text) * 2**20 if text.isdigit() else None  # some boards answer [N/A]


def torch_facts() -> dict[str, Any]:
    """PyTorch, the CUDA it was built for, and what it sees."""
    try:
        import torch
    except (ImportError, OSError) as error:  # a missing or a broken shared library
        return {"version": version("torch"), "error": f"{type(error).__name__}: {error}"}
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [torch.cuda.get_device_properties(index) for index in range(count)]
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        # after its import: written by now, where it can be
        "bytecode": Path(util.cache_from_source(torch.__file__)).exists(),
        "location": str(Path(torch.__file__).parents[1]),
        "devices": [
            {"name": device.name, "memory_bytes": device.total_memory} for device in devices
        ],
    }


def is_software_renderer(name: str) -> bool:
    """Whether GL_RENDERER names a CPU.

    >>> is_software_renderer("llvmpipe (LLVM 15.0.6, 256 bits)"), is_software_renderer("NVIDIA H200/PCIe/SSE2")
    (True, False)
    """
    return any(word in name.lower() for word in SOFTWARE_RENDERERS)


def nvidia_egl_vendor_file() -> Path | None:
    """The file that tells GL's dispatcher of NVIDIA's EGL; many CUDA images lack it, and Mesa then
    draws on the CPU."""
    files = [
        path for folder in NVIDIA_EGL_VENDOR_FILES for path in sorted(Path(folder).glob("*.json"))
    ]
    return next((path for path in files if "nvidia" in path.name.lower()), None)


def has_library(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def atari_roms() -> list[str] | None:
    """The games whose ROMs lie in ale-py's own wheel, as it names them; None where it is not
    installed."""
    found = util.find_spec("ale_py") if version("ale-py") else None
    if found is None or found.origin is None:
        return None
    return sorted(path.stem for path in (Path(found.origin).parent / "roms").rglob("*.bin"))
