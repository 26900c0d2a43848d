"""What the facts about a machine mean, and what to repair: `judge`."""

import shlex
from collections import Counter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cclf import extras
from cclf.benchmark import probe
from cclf.envs.atari_games import ATARI_GAMES
from cclf.storage import machine

Facts = dict[str, Any]
PROBLEMS = ("warning", "error")
NO_GRAPHICS = (
    "the container has no graphics driver: start it with -e "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics "
    "(or =all); on a bare machine install the driver's GL libraries (Debian: libnvidia-gl or "
    "nvidia-driver-libs)"
)
NO_VENDOR_FILE = (
    'write {"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}} '
    "to /usr/share/glvnd/egl_vendor.d/10_nvidia.json"
)


NO_BYTECODE = "no bytecode of PyTorch is kept: Python compiles its files at each start, for seconds"


class Finding(NamedTuple):
    name: str
    value: str
    status: Literal["ok", "note", "warning", "error"] = "ok"
    do: str = ""


def judge(facts: Facts) -> list[Finding]:
    """The facts as findings, one line each. Pure: machines that we do not have are tested through
    it."""
    findings = [
        Finding("cclf", f"{facts['cclf']}, Python {facts['python']}"),
        Finding("system", facts["system"]),
    ]
    findings += [_packages(facts), _extras(facts), _pair(facts)]
    findings += [*_gpus(facts), *_renderer(facts), _atari(facts)]
    processors = facts["usable_processors"]
    findings.append(Finding("processors", f"{processors} usable of {facts['processors']}"))
    findings.append(Finding("memory", f"{_gb(facts['memory_free_bytes'])} free"))
    findings.append(Finding("disk", f"{_gb(facts['disk_free_bytes'])} free in {Path.cwd()}"))
    if facts["forecast"] is not None:
        findings += _forecast(facts)
    if facts["stress"] is not None:
        findings.append(_stress(facts["stress"]))
    return findings


def _packages(facts: Facts) -> Finding:
    known = {name: facts[name] for name in ("numpy", "gymnasium", "minigrid")}
    missing = [name for name, version in known.items() if version is None]
    text = ", ".join(f"{name} {version or 'not installed'}" for name, version in known.items())
    return Finding("packages", text, "note" if missing else "ok")


def _extras(facts: Facts) -> Finding:
    lacking = facts["missing_extras"]
    if not lacking:
        return Finding("extras", "video, report, tensorboard, export, ray")
    return Finding("extras", f"not installed: {extras.install_hint(lacking)}", "note")


def _pair(facts: Facts) -> Finding:
    pair, text = (
        facts["mujoco_pair"],
        f"mujoco {facts['mujoco']}, dm_control {facts['dm_control']}: {facts['mujoco_pair']}",
    )
    do = "pip install -c constraints.txt 'cclf[dmc]'"
    if pair == "absent":
        return Finding("MuJoCo", "not installed: no dmc tasks (pip install 'cclf[dmc]')", "note")
    if pair == "broken":
        return Finding(
            "MuJoCo",
            text,
            "error",
            f"dm_control does not load with mujoco {facts['mujoco']}: {do} or 'mujoco<4'",
        )
    if pair == "incomplete":
        return Finding("MuJoCo", text.replace("None", "not installed"), "error", do)
    tested = ", ".join(
        f"dm_control {ours} with mujoco {theirs}" for ours, theirs in sorted(machine.TESTED_PAIRS)
    )
    return Finding(
        "MuJoCo",
        text,
        *(("ok", "") if pair == "tested" else ("warning", f"tested: {tested}; {do}")),
    )


def _gpus(facts: Facts) -> list[Finding]:
    torch, gpus = facts["torch"], facts["gpus"]
    if "error" in torch:
        return [
            Finding(
                "PyTorch",
                f"does not load: {torch['error']}",
                "error",
                "pip install -c constraints.txt torch",
            )
        ]
    built = f"CUDA {torch['cuda']}" if torch["cuda"] else "no CUDA"
    findings = [Finding("PyTorch", f"{torch['version']}, {built}, {torch['threads']} threads")]
    if not torch["bytecode"]:
        do = (
            f"unset PYTHONDONTWRITEBYTECODE, or once: python -m compileall -q -j 0 "
            f"{shlex.quote(torch['location'])}"
        )
        findings.append(Finding("start", NO_BYTECODE, "warning", do))
    if not gpus and not torch["devices"]:
        return [*findings, Finding("GPU", "none visible: dmc tasks train slowly", "note")]
    if not torch["devices"]:
        do = (
            f"install a PyTorch built for CUDA that driver {gpus[0]['driver']} supports; check "
            "CUDA_VISIBLE_DEVICES"
        )
        return [
            *findings,
            Finding(
                "GPU", f"{gpus[0]['name']} is there, but PyTorch does not see it", "warning", do
            ),
        ]
    for index, device in enumerate(torch["devices"]):
        driver = gpus[0]["driver"] if gpus else facts["gpu_driver"] or "unknown"
        findings.append(
            Finding(
                f"cuda:{index}", f"{device['name']}, {_gb(device['memory_bytes'])}, driver {driver}"
            )
        )
    return findings


def _renderer(facts: Facts) -> list[Finding]:
    found, nvidia = facts["renderer"], facts["nvidia_egl"]
    has_gpu = bool(facts["gpus"] or facts["torch"].get("devices"))
    if found is None:
        return [Finding("renderer", "not tried: dm_control is not installed", "note")]
    if found["outcome"] != "ok":
        return [
            Finding("renderer", f"{found['outcome']}: {found['error']}", "error", _repair(facts))
        ]
    text = f"{found['renderer']} through {found['backend']}"
    speed = Finding(
        "speed",
        f"{found['ms_per_frame']:.3g} ms per 100x100 frame, median of {probe.FRAMES_AT_ONCE}",
    )
    rest = [speed, _devices(facts)]
    if found["blank"] or found["differing_frames"]:
        what = (
            "blank frames"
            if found["blank"]
            else f"{found['differing_frames']} of {found['frames']} frames differ"
        )
        return [
            Finding("renderer", f"{text}; {what}", "error", "try MUJOCO_GL=osmesa with libosmesa6"),
            *rest,
        ]
    if has_gpu and machine.is_software_renderer(found["renderer"]):
        do = (
            "unset MUJOCO_GL (it chooses software)" if found["backend"] == "osmesa" else NO_GRAPHICS
        )
        if found["backend"] == "egl" and nvidia["library"]:
            do = (
                NO_VENDOR_FILE
                if nvidia["vendor_file"] is None
                else "check /dev/dri permissions and MUJOCO_EGL_DEVICE_ID"
            )
        return [Finding("renderer", f"THE CPU DRAWS BESIDE A GPU: {text}", "warning", do), *rest]
    return [Finding("renderer", text), *rest]


def _repair(facts: Facts) -> str:
    """What to do about a renderer that does not open, or that hangs."""
    if facts["mujoco_pair"] in ("broken", "incomplete"):
        return "repair MuJoCo first"
    if "MUJOCO_EGL_DEVICE_ID" in facts["renderer"]["error"]:
        return "unset MUJOCO_EGL_DEVICE_ID, or set it to one of EGL's devices"
    if facts["renderer"]["outcome"] == "hung":
        return "set MUJOCO_GL=osmesa with libosmesa6, or update the GPU driver"
    return f"where GL libraries are missing, {machine.GL_HELP}"


def _devices(facts: Facts) -> Finding:
    """Which GPU draws, against the one that learns: the two count devices each in its own way."""
    found = facts["renderer"]
    devices = found["egl_devices"]
    if found["backend"] != "egl" or not devices:
        return Finding(
            "EGL devices",
            "not known: rendering is not through EGL" if devices else "not known: EGL lists none",
            "note",
        )

    def describe(device: Facts) -> str:
        kind = "software" if device["software"] else "a GPU, CUDA number not known"
        kind = kind if device["cuda"] is None else f"cuda:{device['cuda']}"
        return f"{device['index']} is {kind}{' (in use)' if device['in_use'] else ''}"

    text = "; ".join(describe(device) for device in devices)
    if facts["cuda_visible_devices"] and any(device["cuda"] is not None for device in devices):
        # EGL does not read it, so its numbers and PyTorch's may count different GPUs.
        return Finding(
            "EGL devices",
            f"{text}; PyTorch counts by CUDA_VISIBLE_DEVICES={facts['cuda_visible_devices']}",
            "note",
        )
    used = next((device for device in devices if device["in_use"]), None)
    first = next((device["index"] for device in devices if device["cuda"] == 0), None)
    if used is not None and used["cuda"] not in (None, 0) and first is not None:
        return Finding(
            "EGL devices",
            text,
            "warning",
            f"frames are drawn on another GPU than cuda:0: MUJOCO_EGL_DEVICE_ID={first}",
        )
    return Finding("EGL devices", text)


def _atari(facts: Facts) -> Finding:
    found, do = (
        facts["atari"],
        "pip install --force-reinstall 'cclf[atari]': ale-py's wheels hold the ROMs",
    )
    if found is None:
        return Finding(
            "Atari", "ale-py not installed: no atari tasks (pip install 'cclf[atari]')", "note"
        )
    text = f"ale-py {facts['ale_py']}, {found['roms']} ROMs"
    if "error" in found:
        return Finding("Atari", f"{text}, does not start: {found['error']}", "error", do)
    if found["missing"]:
        return Finding("Atari", f"{text}, without {', '.join(found['missing'])}", "warning", do)
    speed = (
        f", {found['ms_per_agent_step']:.3g} ms per agent step of Pong"
        if "ms_per_agent_step" in found
        else ""
    )
    return Finding("Atari", f"{text}, all {len(ATARI_GAMES)} games of Atari 100K{speed}")


def _forecast(facts: Facts) -> list[Finding]:
    needs, free = facts["forecast"], facts["memory_free_bytes"]
    name = needs["task"]
    if "error" in needs:
        return [Finding("task", f"{name} {needs['error']}", "error", needs["do"])]
    if not needs["replay_bytes"]:
        return [Finding("replay", f"{name}: none")]
    memory = f"{needs['replay_transitions']:,} transitions, {_gb(needs['replay_bytes'])}"
    disk = f"up to {_gb(needs['disk_bytes'])} of disk"
    on_gpu = [gpu["memory_free_bytes"] for gpu in facts["gpus"] if gpu["memory_free_bytes"]]
    fits = needs["replay_bytes"] <= 0.9 * free or any(
        needs["replay_bytes"] < 0.8 * room for room in on_gpu
    )
    full = needs["disk_bytes"] > facts["disk_free_bytes"]
    return [
        Finding(
            "replay",
            f"{name}: {memory}",
            *(
                ("ok", "")
                if fits
                else ("error", "lower --replay-capacity-transitions or --frame-pixels")
            ),
        ),
        Finding(
            "checkpoints",
            f"{name}: {disk}",
            *(
                ("error", "free some, or give --out a folder on a larger disk")
                if full
                else ("ok", "")
            ),
        ),
    ]


def _stress(children: list[Facts]) -> Finding:
    outcomes = Counter(child["outcome"] for child in children)
    name, fine = (
        f"{len(children)} renderers",
        [child for child in children if child["outcome"] == "ok"],
    )
    differing = sum(child["differing_frames"] for child in fine)
    if len(fine) == len(children) and not differing and not any(child["blank"] for child in fine):
        slowest = max(child["ms_per_frame"] for child in fine)
        return Finding(
            name,
            f"at once: {sum(child['frames'] for child in fine)} frames, all right, {slowest:.3g} "
            "ms each at most",
        )
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    errors = sorted({child["error"] for child in children if "error" in child})[:1]
    text = "; ".join(
        [f"at once: {counts}", *errors, *([f"{differing} frames differ"] if differing else [])]
    )
    return Finding(
        name, text, "error", "run fewer environments per GPU, or MUJOCO_GL=osmesa with libosmesa6"
    )


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.3g} GB"
