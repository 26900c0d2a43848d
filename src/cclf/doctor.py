"""`cclf doctor`: facts about this machine, and what to fix.

`collect` gathers the facts; a package that is missing or broken is a fact too. `diagnose` in
`cclf.diagnosis` judges them. Frames are rendered in a worker process, so that a graphics driver
that hangs or crashes is reported instead of stopping the doctor.
"""

import ctypes
import shutil
import statistics
import time
from collections.abc import Sequence
from functools import partial
from importlib import util
from pathlib import Path
from typing import cast

from cclf import presets
from cclf.config import Config, ObservationType
from cclf.diagnosis import (
    PROBLEMS,
    AtariFacts,
    DoctorReport,
    Facts,
    Forecast,
    NvidiaEgl,
    TorchFacts,
    diagnose,
)
from cclf.envs.atari_games import ATARI_GAMES
from cclf.envs.registry import suite_of, task_kind
from cclf.errors import ConfigError, WorkerError, missing_packages, short_error
from cclf.storage import machine

# Always the same task and size, so that machines can be compared.
RENDER_TASK, FRAME_PIXELS, FRAMES = "cartpole-swingup", 100, 30
RENDER_SECONDS = 30.0  # before a worker that does not answer is stopped
ATARI_STEPS = 200
EXTRAS = ("video", "report", "tensorboard", "export", "ray")
NVIDIA_EGL_VENDOR_FOLDERS = ("/usr/share/glvnd/egl_vendor.d", "/etc/glvnd/egl_vendor.d")


def examine(
    task: str | None, base_name: str | None = None, observe: ObservationType = "pixels"
) -> DoctorReport:
    """The facts about this machine and the findings; with a task also a forecast of its memory."""
    # First, since an unknown name is an error.
    config = presets.resolve(task, base_name=base_name, observe=observe) if task else None
    facts = collect()
    forecast = forecast_run(config, facts) if config is not None else None
    findings = diagnose(facts, forecast)
    return {
        **facts,
        "forecast": forecast,
        "findings": findings,
        "problems": [finding for finding in findings if finding.status in PROBLEMS],
    }


def collect() -> Facts:
    torch_facts = inspect_torch()
    return {
        **machine.machine_info(),
        "torch": torch_facts,
        "gpus": machine.gpus(),
        "renderer": check_rendering() if machine.version("dm_control") else None,
        "nvidia_egl": inspect_nvidia_egl(),
        "atari": check_atari("error" not in torch_facts),
        "missing_extras": missing_packages(EXTRAS),
        "usable_processors": machine.usable_processors(),
        "memory_free_bytes": machine.available_memory_bytes(),
        "disk_free_bytes": shutil.disk_usage(".").free,
    }


def inspect_torch() -> TorchFacts:
    """PyTorch, the CUDA version it was built for, and the GPUs that it sees."""
    try:
        import torch
    except (ImportError, OSError) as error:  # it is missing, or one of its shared libraries is
        return {"version": machine.version("torch"), "error": short_error(error)}
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [torch.cuda.get_device_properties(index) for index in range(count)]
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        # The import above has written it if it can be written.
        "bytecode": Path(util.cache_from_source(torch.__file__)).exists(),
        "location": str(Path(torch.__file__).parents[1]),
        "devices": [
            {"name": device.name, "memory_bytes": device.total_memory} for device in devices
        ],
    }


def check_rendering(timeout_seconds: float = RENDER_SECONDS) -> machine.RendererInfo:
    """What renders in a new process, how fast and whether the frames are right; or the
    `error` if the process raises, crashes or does not answer."""
    from cclf.envs.dmc import DeepMindControl
    from cclf.training.workers import WorkerPool

    make = partial(DeepMindControl, RENDER_TASK, FRAME_PIXELS, 1, 0)
    pool = WorkerPool([make], name="rendering", timeout_seconds=timeout_seconds)
    try:
        pool.wait([pool.submit(0, DeepMindControl.reset, 0)])
        (info,) = pool.wait([pool.submit(0, DeepMindControl.renderer, FRAMES)])
        return cast(machine.RendererInfo, info)
    except (WorkerError, ConfigError) as error:
        return {"error": str(error)}
    finally:
        pool.close()


def inspect_nvidia_egl() -> NvidiaEgl:
    """Whether NVIDIA's EGL library is installed, and the file that makes EGL find it. Many CUDA
    images lack that file, and Mesa then renders on the CPU."""
    try:
        ctypes.CDLL("libEGL_nvidia.so.0")
        has_library = True
    except OSError:
        has_library = False
    files = [path for name in NVIDIA_EGL_VENDOR_FOLDERS for path in Path(name).glob("*.json")]
    vendor_file = next((str(path) for path in files if "nvidia" in path.name.lower()), None)
    return {"library": has_library, "vendor_file": vendor_file}


def atari_roms() -> Sequence[str] | None:
    """The games in the wheel of ale-py, by its names for them; None if it is not installed."""
    spec = util.find_spec("ale_py") if machine.version("ale-py") else None
    if spec is None or spec.origin is None:
        return None
    return sorted(path.stem for path in (Path(spec.origin).parent / "roms").rglob("*.bin"))


def check_atari(torch_works: bool) -> AtariFacts | None:
    """The ROMs of ale-py and the time of an agent step of Pong; None if it is not installed."""
    roms = atari_roms()
    if roms is None:
        return None
    names = {rom.replace("_", "") for rom in roms}
    facts: AtariFacts = {
        "roms": len(roms),
        "missing": [game for game in ATARI_GAMES if game.lower() not in names],
    }
    if not torch_works or "Pong" in facts["missing"]:
        return facts
    try:
        from cclf.envs.atari import AtariGame

        env = AtariGame("Pong", 0, clip_reward=True, life_loss_terminates=True)
    except (ConfigError, ImportError, OSError) as error:
        return {**facts, "error": short_error(error)}
    env.reset()
    milliseconds = []
    for _ in range(ATARI_STEPS):
        start = time.perf_counter()
        env.step(0)
        milliseconds.append(1e3 * (time.perf_counter() - start))
    return {**facts, "ms_per_agent_step": round(statistics.median(milliseconds), 3)}


def forecast_run(config: Config, facts: Facts) -> Forecast:
    """Memory and disk of a run. It makes an environment, whose frames have a shape, and allocates
    nothing."""
    suite, package = config.task.partition("/")[0], suite_of(config.task).package
    forecast: Forecast = {"task": config.task, "replay_transitions": 0, "replay_bytes": 0}
    error = fix = None
    if package is not None and machine.version(package) is None:
        error, fix = f"needs the package {package}", f"pip install 'cclf[{suite}]'"
    elif suite == "dmc" and "error" in (facts["renderer"] or {}):
        error, fix = "cannot run, rendering does not work", "fix the renderer"
    elif "error" in facts["torch"]:
        error, fix = "cannot run, PyTorch does not load", "fix PyTorch"
    if error and fix:
        return {**forecast, "error": error, "fix": fix}
    from cclf.envs.make import make_env
    from cclf.training.trainer import replay_size

    if task_kind(config.task) == "grid":
        make_env.vector(config, 1, 0).close()  # raises ConfigError for an unknown name
    else:
        forecast["replay_transitions"], forecast["replay_bytes"] = replay_size(config)
    # A checkpoint contains the replay, and the one before is deleted after it is written.
    return {**forecast, "disk_bytes": 2 * forecast["replay_bytes"]}


def show(report: DoctorReport) -> None:
    """Print one line per finding, then what to fix."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "note": "dim", "warning": "bold yellow", "error": "bold red"}
    table = Table("", "what", "found", box=box.SIMPLE_HEAD, pad_edge=False)
    for finding in report["findings"]:
        status = Text(finding.status, colours[finding.status])
        table.add_row(status, Text(finding.name), Text(finding.value))
    console = Console()
    console.print(table)
    for problem in report["problems"]:
        name = f"{problem.status}: {problem.name}", colours[problem.status]
        # one line, so that it can be copied
        console.print(Text.assemble(name, f"  fix: {problem.fix}"), soft_wrap=True)
    if not report["problems"]:
        console.print("no problems found")
