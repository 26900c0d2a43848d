"""What the facts about a machine mean for `cclf doctor`, and how to fix what is wrong."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NotRequired, TypedDict

from cclf.envs.atari_games import ATARI_GAMES
from cclf.errors import install_hint
from cclf.storage import machine

Status = Literal["ok", "note", "warning", "error"]
PROBLEMS = ("warning", "error")
SOFTWARE_RENDERERS = ("llvmpipe", "softpipe", "swrast", "software rasterizer")
FIX_NO_GRAPHICS = (
    "the container has no graphics driver: start it with -e "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics "
    "(or =all); on a bare machine install the driver's GL libraries (Debian: libnvidia-gl or "
    "nvidia-driver-libs)"
)
FIX_NO_VENDOR_FILE = (
    'write {"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}} '
    "to /usr/share/glvnd/egl_vendor.d/10_nvidia.json"
)
FIX_OSMESA = "set MUJOCO_GL=osmesa with libosmesa6"
FIX_ATARI = "pip install --force-reinstall 'cclf[atari]': ale-py's wheels hold the ROMs"


class TorchDevice(TypedDict):
    name: str
    memory_bytes: int


class TorchFacts(TypedDict, total=False):
    version: str | None
    error: str  # instead of the following if PyTorch cannot be imported
    cuda: str | None
    threads: int
    bytecode: bool
    location: str
    devices: list[TorchDevice]


class NvidiaEgl(TypedDict):
    library: bool
    vendor_file: str | None


class AtariFacts(TypedDict):
    roms: int
    missing: list[str]
    error: NotRequired[str]
    ms_per_agent_step: NotRequired[float]


class Forecast(TypedDict):
    task: str
    replay_transitions: int
    replay_bytes: int
    disk_bytes: NotRequired[int]
    error: NotRequired[str]
    fix: NotRequired[str]


class Facts(machine.MachineInfo):
    torch: TorchFacts
    gpus: list[machine.Gpu]
    renderer: machine.RendererInfo | None  # None without dm_control
    nvidia_egl: NvidiaEgl
    atari: AtariFacts | None  # None without ale-py
    missing_extras: dict[str, list[str]]
    usable_processors: int
    memory_free_bytes: int
    disk_free_bytes: int


@dataclass(frozen=True)
class Finding:
    name: str
    value: str
    status: Status = "ok"
    fix: str = ""


class DoctorReport(Facts):
    forecast: Forecast | None
    findings: list[Finding]
    problems: list[Finding]


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
        *(_forecast(forecast, facts) if forecast is not None else ()),
    ]


def _packages(facts: Facts) -> list[Finding]:
    versions = {name: facts[name] for name in ("numpy", "gymnasium", "minigrid")}
    text = ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
    packages = Finding("packages", text, "ok" if all(versions.values()) else "note")
    missing = facts["missing_extras"]
    if missing:
        hint = f"not installed: {install_hint(missing)}"
        return [packages, Finding("extras", hint, "note")]
    return [packages, Finding("extras", "all installed")]


def _mujoco(facts: Facts) -> Finding:
    mujoco, dm_control, pair = facts["mujoco"], facts["dm_control"], facts["mujoco_pair"]
    if pair == "absent":
        return Finding("MuJoCo", "not installed: no dmc tasks (pip install 'cclf[dmc]')", "note")
    versions = f"mujoco {mujoco}, dm_control {dm_control}".replace("None", "not installed")
    text, fix = f"{versions}: {pair}", "pip install -c constraints.txt 'cclf[dmc]'"
    if pair == "broken":
        fix = f"dm_control does not load with mujoco {mujoco}: {fix} or 'mujoco<4'"
        return Finding("MuJoCo", text, "error", fix)
    if pair == "incomplete":
        return Finding("MuJoCo", text, "error", fix)
    if pair == "tested":
        return Finding("MuJoCo", text)
    tested = ", ".join(f"dm_control {a} with mujoco {b}" for a, b in sorted(machine.TESTED_PAIRS))
    return Finding("MuJoCo", text, "warning", f"tested: {tested}; {fix}")


def _torch(facts: Facts) -> list[Finding]:
    torch, gpus = facts["torch"], facts["gpus"]
    if "error" in torch:
        fix = "pip install -c constraints.txt torch"
        return [Finding("PyTorch", f"does not load: {torch['error']}", "error", fix)]
    built = f"CUDA {torch['cuda']}" if torch["cuda"] else "no CUDA"
    findings = [Finding("PyTorch", f"{torch['version']}, {built}, {torch['threads']} threads")]
    if not torch["bytecode"]:
        text = (
            "no bytecode of PyTorch is stored: Python compiles its files at each start, for seconds"
        )
        compile_once = f"python -m compileall -q -j 0 {shlex.quote(torch['location'])}"
        fix = f"unset PYTHONDONTWRITEBYTECODE, or once: {compile_once}"
        findings.append(Finding("start", text, "warning", fix))
    driver = gpus[0]["driver"] if gpus else facts["gpu_driver"] or "unknown"
    for index, device in enumerate(torch["devices"]):
        text = f"{device['name']}, {_gb(device['memory_bytes'])}, driver {driver}"
        findings.append(Finding(f"cuda:{index}", text))
    if gpus and not torch["devices"]:
        text = f"{gpus[0]['name']} is not visible to PyTorch"
        fix = (
            f"install a PyTorch for CUDA that driver {driver} supports; check CUDA_VISIBLE_DEVICES"
        )
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
        fix = _fix_of_software_rendering(facts["nvidia_egl"], info["backend"])
        return [Finding("renderer", warning, "warning", fix), speed]
    return [Finding("renderer", text), speed]


def _fix_of_software_rendering(nvidia: NvidiaEgl, backend: str) -> str:
    if backend == "osmesa":
        return "unset MUJOCO_GL, which selects software rendering"
    if backend != "egl" or not nvidia["library"]:
        return FIX_NO_GRAPHICS
    if nvidia["vendor_file"] is None:
        return FIX_NO_VENDOR_FILE
    return "check /dev/dri permissions and MUJOCO_EGL_DEVICE_ID"


def _fix_of_renderer(facts: Facts, error: str) -> str:
    if facts["mujoco_pair"] in ("broken", "incomplete"):
        return "fix MuJoCo first"
    if "MUJOCO_EGL_DEVICE_ID" in error:
        return "unset MUJOCO_EGL_DEVICE_ID, or set it to one of EGL's devices"
    if "did not answer" in error:
        return f"{FIX_OSMESA}, or update the GPU driver"
    return f"if GL libraries are missing, {machine.GL_HELP}"


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
    text += f", all {len(ATARI_GAMES)} games of Atari 100K"
    if "ms_per_agent_step" in atari:
        text += f", {atari['ms_per_agent_step']:.3g} ms per agent step of Pong"
    return Finding("Atari", text)


def _forecast(forecast: Forecast, facts: Facts) -> list[Finding]:
    task, size = forecast["task"], forecast["replay_bytes"]
    if "error" in forecast:
        return [Finding("task", f"{task} {forecast['error']}", "error", forecast["fix"])]
    if not size:
        return [Finding("replay", f"{task}: none")]
    replay = Finding(
        "replay", f"{task}: {forecast['replay_transitions']:,} transitions, {_gb(size)}"
    )
    gpu_memory = [gpu["memory_free_bytes"] or 0 for gpu in facts["gpus"]]
    if size > 0.9 * facts["memory_free_bytes"] and not any(
        size < 0.8 * free for free in gpu_memory
    ):
        fix = "lower --replay-capacity-transitions or --frame-pixels"
        replay = replace(replay, status="error", fix=fix)
    checkpoints = Finding("checkpoints", f"{task}: up to {_gb(forecast['disk_bytes'])} of disk")
    if forecast["disk_bytes"] > facts["disk_free_bytes"]:
        fix = "free space, or use --out on a larger disk"
        checkpoints = replace(checkpoints, status="error", fix=fix)
    return [replay, checkpoints]


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.3g} GB"
