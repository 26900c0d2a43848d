"""`cclf doctor`: facts about this machine, and what to fix.

`collect` gathers the facts, where a missing or broken package is no error but a fact; `diagnose`
turns them into findings. Frames are rendered in a worker process, so that a graphics driver that
hangs or crashes is reported.
"""

import ctypes
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import util
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

from cclf import presets
from cclf.config import Config, ObservationType
from cclf.envs.atari_games import ATARI_GAMES
from cclf.envs.registry import suite_of, task_kind
from cclf.errors import ConfigError, WorkerError, install_hint, missing_packages, short_error
from cclf.storage import machine

# The rendered frames are the same on every machine, so that the speeds can be compared.
RENDER_TASK, FRAME_PIXELS, NUM_FRAMES = "cartpole-swingup", 100, 30
RENDER_SECONDS = 30.0  # timeout of the rendering worker for each call
EXTRAS = ("video", "report", "tensorboard", "export", "ray")
SOFTWARE_RENDERERS = ("llvmpipe", "softpipe", "swrast", "software rasterizer")
NVIDIA_EGL_VENDOR_FOLDERS = ("/usr/share/glvnd/egl_vendor.d", "/etc/glvnd/egl_vendor.d")

FIX_NO_GRAPHICS = (
    "the container has no graphics driver: start it with -e "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics (or =all); without a container install the "
    "driver's GL libraries (Debian: libnvidia-gl or nvidia-driver-libs)"
)
FIX_NO_VENDOR_FILE = (
    'write {"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}} '
    "to /usr/share/glvnd/egl_vendor.d/10_nvidia.json"
)
FIX_OSMESA = "set MUJOCO_GL=osmesa with libosmesa6"
FIX_ATARI = "pip install --force-reinstall 'cclf[atari]', whose ale-py contains the ROMs"

Status = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    name: str
    value: str
    status: Status = "ok"
    fix: str = ""

    @property
    def is_problem(self) -> bool:
        return self.status in ("warning", "error")


class TorchFacts(TypedDict, total=False):
    version: str | None
    error: str  # instead of the following if PyTorch cannot be imported
    cuda: str | None
    threads: int
    bytecode: bool  # whether Python has cached PyTorch's bytecode
    location: str
    devices: dict[str, int]  # the memory in bytes of each visible GPU


class AtariFacts(TypedDict):
    roms: int
    missing: list[str]
    error: NotRequired[str]


class Forecast(TypedDict, total=False):
    """The memory and disk that a run needs, or why it cannot run."""

    task: str
    replay_transitions: int
    replay_bytes: int
    disk_bytes: int
    error: str
    fix: str


class Facts(machine.MachineInfo):
    torch: TorchFacts
    gpus: list[machine.Gpu]
    renderer: machine.RendererInfo | None  # None without dm_control
    nvidia_egl: Literal["no library", "no vendor file", "installed"]
    atari: AtariFacts | None  # None without ale-py
    missing_extras: dict[str, list[str]]
    usable_processors: int
    memory_free_bytes: int
    disk_free_bytes: int


class DoctorReport(Facts):
    forecast: Forecast | None
    findings: list[Finding]
    problems: list[Finding]


def examine(
    task: str | None, base_name: str | None = None, observe: ObservationType = "pixels"
) -> DoctorReport:
    """The facts about this machine and the findings; with a task also a forecast of its memory."""
    # First, so that an unknown name is reported before the slow checks.
    config = presets.resolve(task, base_name=base_name, observe=observe) if task else None
    facts = collect()
    forecast = forecast_run(config, facts) if config else None
    findings = diagnose(facts, forecast)
    problems = [finding for finding in findings if finding.is_problem]
    return {**facts, "forecast": forecast, "findings": findings, "problems": problems}


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
    """PyTorch, the CUDA version it was built for, and the GPUs that are visible to it."""
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
        # The import above has cached the bytecode, unless the environment forbids it.
        "bytecode": Path(util.cache_from_source(torch.__file__)).exists(),
        "location": str(Path(torch.__file__).parents[1]),
        "devices": {f"cuda:{n} {each.name}": each.total_memory for n, each in enumerate(devices)},
    }


def check_rendering(timeout_seconds: float = RENDER_SECONDS) -> machine.RendererInfo:
    """The renderer of a new process, its speed, and whether its frames are right; or the `error` if
    the process raises, crashes or does not answer."""
    from cclf.envs.dmc import DeepMindControl
    from cclf.training.workers import WorkerPool

    make = partial(DeepMindControl, RENDER_TASK, FRAME_PIXELS, 1, 0)
    pool = WorkerPool([make], name="rendering", timeout_seconds=timeout_seconds)
    try:
        pool.wait([pool.submit(0, DeepMindControl.reset, 0)])
        (info,) = pool.wait([pool.submit(0, DeepMindControl.renderer_facts, NUM_FRAMES)])
        return cast(machine.RendererInfo, info)
    except (WorkerError, ConfigError) as error:
        return {"error": str(error)}
    finally:
        pool.close()


def inspect_nvidia_egl() -> Literal["no library", "no vendor file", "installed"]:
    """NVIDIA's EGL library, and the vendor file by which EGL loads it. Many CUDA images lack that
    file, and Mesa then renders on the CPU."""
    try:
        ctypes.CDLL("libEGL_nvidia.so.0")
    except OSError:
        return "no library"
    files = [path for folder in NVIDIA_EGL_VENDOR_FOLDERS for path in Path(folder).glob("*.json")]
    has_file = any("nvidia" in path.name.lower() for path in files)
    return "installed" if has_file else "no vendor file"


def atari_roms() -> Sequence[str] | None:
    """The names of the ROMs in ale-py; None if it is not installed."""
    spec = util.find_spec("ale_py") if machine.version("ale-py") else None
    if spec is None or spec.origin is None:
        return None
    return sorted(path.stem for path in (Path(spec.origin).parent / "roms").rglob("*.bin"))


def check_atari(torch_works: bool) -> AtariFacts | None:
    """The ROMs of ale-py, and whether Pong starts; None if ale-py is not installed."""
    roms = atari_roms()
    if roms is None:
        return None
    names = {rom.replace("_", "") for rom in roms}
    missing = [game for game in ATARI_GAMES if game.lower() not in names]
    facts: AtariFacts = {"roms": len(roms), "missing": missing}
    if torch_works and "Pong" not in missing:
        try:
            from cclf.envs.atari import AtariGame

            AtariGame("Pong", 0, clip_reward=True, life_loss_terminates=True).reset()
        except (ConfigError, ImportError, OSError) as error:
            return {**facts, "error": short_error(error)}
    return facts


def forecast_run(config: Config, facts: Facts) -> Forecast:
    """The memory and disk that a run needs. This creates an environment, which has the shape of the
    frames, but does not allocate the replay."""
    task, suite = config.task, config.task.partition("/")[0]
    package = suite_of(task).package
    is_missing = package is not None and machine.version(package) is None
    no_frames = suite == "dmc" and "error" in (facts["renderer"] or {})
    for cannot_run, error, fix in (
        (is_missing, f"needs the package {package}", f"pip install 'cclf[{suite}]'"),
        (no_frames, "needs rendering, which fails", "fix the renderer"),
        ("error" in facts["torch"], "needs PyTorch, which fails", "fix PyTorch"),
    ):
        if cannot_run:
            return {"task": task, "error": error, "fix": fix}
    from cclf.envs.make import make_env
    from cclf.training.trainer import replay_size

    transitions, num_bytes = 0, 0
    if task_kind(task) == "grid":
        make_env.vector(config, 1, 0).close()  # raises ConfigError for an unknown name
    else:
        transitions, num_bytes = replay_size(config)
    # Each checkpoint contains the replay, and two exist until the older one is deleted.
    return {
        "task": task,
        "replay_transitions": transitions,
        "replay_bytes": num_bytes,
        "disk_bytes": 2 * num_bytes,
    }


def diagnose(facts: Facts, forecast: Forecast | None = None) -> list[Finding]:
    """One finding per line of the report."""
    return [
        Finding("cclf", f"{facts['cclf']}, Python {facts['python']}"),
        Finding("system", facts["system"]),
        *_packages(facts),
        _mujoco(facts),
        *_torch(facts),
        *_renderer(facts),
        _atari(facts),
        Finding("processors", f"{facts['usable_processors']} usable of {facts['processors']}"),
        Finding("memory", f"{_gb(facts['memory_free_bytes'])} free"),
        Finding("disk", f"{_gb(facts['disk_free_bytes'])} free in {Path.cwd()}"),
        *(_forecast(forecast, facts) if forecast else ()),
    ]


def _packages(facts: Facts) -> list[Finding]:
    versions = {name: facts[name] for name in ("numpy", "gymnasium", "minigrid")}
    text = ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
    packages = Finding("packages", text, "ok" if all(versions.values()) else "note")
    if missing := facts["missing_extras"]:
        return [packages, Finding("extras", f"not installed: {install_hint(missing)}", "note")]
    return [packages, Finding("extras", "all installed")]


def _mujoco(facts: Facts) -> Finding:
    mujoco, dm_control, pair = facts["mujoco"], facts["dm_control"], facts["mujoco_pair"]
    if pair == "absent":
        return Finding("MuJoCo", "not installed: no dmc tasks (pip install 'cclf[dmc]')", "note")
    text = f"mujoco {mujoco}, dm_control {dm_control}: {pair}".replace("None", "not installed")
    install = "pip install -c constraints.txt 'cclf[dmc]'"
    tested = ", ".join(f"dm_control {a} with mujoco {b}" for a, b in sorted(machine.TESTED_PAIRS))
    broken = f"dm_control does not load with mujoco {mujoco}: {install} or 'mujoco<4'"
    statuses: dict[machine.PairStatus, tuple[Status, str]] = {
        "broken": ("error", broken),
        "incomplete": ("error", install),
        "tested": ("ok", ""),
        "untested": ("warning", f"tested: {tested}; {install}"),
    }
    return Finding("MuJoCo", text, *statuses[pair])


def _torch(facts: Facts) -> list[Finding]:
    torch, gpus = facts["torch"], facts["gpus"]
    if "error" in torch:
        fix = "pip install -c constraints.txt torch"
        return [Finding("PyTorch", f"does not load: {torch['error']}", "error", fix)]
    built = f"CUDA {torch['cuda']}" if torch["cuda"] else "no CUDA"
    findings = [Finding("PyTorch", f"{torch['version']}, {built}, {torch['threads']} threads")]
    if not torch["bytecode"]:
        text = "PyTorch's bytecode is not cached: Python compiles its files at each start"
        compile_once = f"python -m compileall -q -j 0 {shlex.quote(torch['location'])}"
        fix = f"unset PYTHONDONTWRITEBYTECODE, or once: {compile_once}"
        findings.append(Finding("start", text, "warning", fix))
    driver = gpus[0]["driver"] if gpus else facts["gpu_driver"] or "unknown"
    for device, memory_bytes in torch["devices"].items():
        findings.append(Finding("GPU", f"{device}, {_gb(memory_bytes)}, driver {driver}"))
    if gpus and not torch["devices"]:
        text = f"{gpus[0]['name']} is not visible to PyTorch"
        fix = f"install a PyTorch for a CUDA that driver {driver} supports; check CUDA_VISIBLE_DEVICES"
        findings.append(Finding("GPU", text, "warning", fix))
    elif not torch["devices"]:
        findings.append(Finding("GPU", "none visible: dmc tasks train slowly", "note"))
    return findings


def _renderer(facts: Facts) -> list[Finding]:
    info = facts["renderer"]
    if info is None:
        return [Finding("renderer", "not tested: dm_control is not installed", "note")]
    if "error" in info:
        return [Finding("renderer", info["error"], "error", _fix_of_renderer(facts, info["error"]))]
    name = info["renderer"] or "unknown"
    text, differing = f"{name} through {info['backend']}", info["differing_frames"]
    speed = Finding("speed", f"{info['ms_per_frame']:.3g} ms per 100x100 frame, median")
    if info["blank"] or differing:
        what = "blank frames" if info["blank"] else f"{differing} frames differ from the first"
        return [Finding("renderer", f"{text}; {what}", "error", FIX_OSMESA), speed]
    has_gpu = bool(facts["gpus"] or facts["torch"].get("devices"))
    if has_gpu and any(word in name.lower() for word in SOFTWARE_RENDERERS):
        warning = f"software rendering on the CPU although there is a GPU: {text}"
        fix = _fix_of_software_rendering(facts, info["backend"])
        return [Finding("renderer", warning, "warning", fix), speed]
    return [Finding("renderer", text), speed]


def _fix_of_software_rendering(facts: Facts, backend: str) -> str:
    if backend == "osmesa":
        return "unset MUJOCO_GL, which selects software rendering"
    fixes = {
        "no library": FIX_NO_GRAPHICS,
        "no vendor file": FIX_NO_VENDOR_FILE,
        "installed": "check /dev/dri permissions and MUJOCO_EGL_DEVICE_ID",
    }
    return fixes[facts["nvidia_egl"]] if backend == "egl" else FIX_NO_GRAPHICS


def _fix_of_renderer(facts: Facts, error: str) -> str:
    if facts["mujoco_pair"] in ("broken", "incomplete"):
        return "fix MuJoCo first"
    fixes = {
        "MUJOCO_EGL_DEVICE_ID": "unset MUJOCO_EGL_DEVICE_ID, or set it to one of EGL's devices",
        "did not answer": f"{FIX_OSMESA}, or update the GPU driver",
    }
    missing_libraries = f"if GL libraries are missing, {machine.GL_HELP}"
    return next((fix for text, fix in fixes.items() if text in error), missing_libraries)


def _atari(facts: Facts) -> Finding:
    atari = facts["atari"]
    if atari is None:
        text = "ale-py not installed: no atari tasks (pip install 'cclf[atari]')"
        return Finding("Atari", text, "note")
    text = f"ale-py {facts['ale_py']}, {atari['roms']} ROMs"
    if "error" in atari:
        return Finding("Atari", f"{text}, does not start: {atari['error']}", "error", FIX_ATARI)
    if atari["missing"]:
        missing = ", ".join(atari["missing"])
        return Finding("Atari", f"{text}, without {missing}", "warning", FIX_ATARI)
    return Finding("Atari", f"{text}, all {len(ATARI_GAMES)} games of Atari 100K")


def _forecast(forecast: Forecast, facts: Facts) -> list[Finding]:
    task = forecast["task"]
    if "error" in forecast:
        return [Finding("task", f"{task} {forecast['error']}", "error", forecast["fix"])]
    size, disk_bytes = forecast["replay_bytes"], forecast["disk_bytes"]
    if not size:
        return [Finding("replay", f"{task}: none")]
    gpu_memory = max((gpu["memory_free_bytes"] or 0 for gpu in facts["gpus"]), default=0)
    replay = Finding(
        "replay", f"{task}: {forecast['replay_transitions']:,} transitions, {_gb(size)}"
    )
    # The same margins as in `devices.choose_replay_device`.
    if size > 0.9 * facts["memory_free_bytes"] and size >= 0.8 * gpu_memory:
        lower = "lower --replay-capacity-transitions or --frame-pixels"
        replay = replace(replay, status="error", fix=lower)
    checkpoints = Finding("checkpoints", f"{task}: up to {_gb(disk_bytes)} of disk")
    if disk_bytes > facts["disk_free_bytes"]:
        free = "free space, or use --out on a larger disk"
        checkpoints = replace(checkpoints, status="error", fix=free)
    return [replay, checkpoints]


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.3g} GB"


def show(report: DoctorReport) -> None:
    """Print one line per finding, then what to fix."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "note": "dim", "warning": "bold yellow", "error": "bold red"}
    table = Table("", "what", "finding", box=box.SIMPLE_HEAD, pad_edge=False)
    for finding in report["findings"]:
        status = Text(finding.status, colours[finding.status])
        table.add_row(status, Text(finding.name), Text(finding.value))
    console = Console()
    console.print(table)
    for problem in report["problems"]:
        name = f"{problem.status}: {problem.name}", colours[problem.status]
        # One line, so that it can be copied.
        console.print(Text.assemble(name, f"  fix: {problem.fix}"), soft_wrap=True)
    if not report["problems"]:
        console.print("no problems found")
