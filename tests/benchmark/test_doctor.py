"""`cclf doctor`: the facts of other machines, and the command on this one."""

import json
import os
import subprocess
import sys

import pytest

from cclf import doctor
from cclf.algorithms.registry import make_learner
from cclf.storage import machine, manifest
from faulty_envs import (
    CrashingRenderer,
    HangingRenderer,
    RaisingRenderer,
    Renderer,
    UnusableRenderer,
)
from healthy_machine import LLVMPIPE, frames, healthy
from test_cli import cclf
from tiny_runs import CPU, tiny_config


def problems(forecast=None, **changed):
    findings = doctor.diagnose(healthy(**changed), forecast)
    found = [finding for finding in findings if finding.is_problem]
    assert all(finding.fix for finding in found), "each problem has a fix"
    return found


NO_GPU = {"version": "2", "cuda": None, "threads": 2, "bytecode": True, "devices": {}}
NO_MUJOCO = {"mujoco_pair": "absent", "mujoco": None, "dm_control": None, "renderer": None}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"gpus": [], "torch": NO_GPU, "renderer": frames(LLVMPIPE)},
        NO_MUJOCO | {"minigrid": None, "gymnasium": None},
        {"ale_py": None, "atari": None},
    ],
)
def test_healthy_machine_has_no_problems(changed):
    assert problems(**changed) == []


@pytest.mark.parametrize(
    ("nvidia", "backend", "word"),
    [
        ("no library", "egl", "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics"),
        ("no vendor file", "egl", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
        ("installed", "egl", "/dev/dri"),
        ("installed", "osmesa", "unset MUJOCO_GL"),
    ],
)
def test_rendering_on_the_cpu_of_a_gpu_machine_is_a_warning(nvidia, backend, word):
    (found,) = problems(renderer=frames(LLVMPIPE, backend=backend), nvidia_egl=nvidia)
    assert found.status == "warning"
    assert "software rendering on the CPU although there is a GPU" in found.value
    assert word in found.fix


TORCH = healthy()["torch"]
BROKEN_MUJOCO = {"mujoco_pair": "broken", "mujoco": "4.0.0"}
NEEDS = {
    "task": "dmc/x",
    "replay_transitions": 10,
    "replay_bytes": 10**10,
    "disk_bytes": 2 * 10**10,
}
NOT_INSTALLED = {"task": "dmc/x", "error": "needs the package dm_control", "fix": "pip install"}


@pytest.mark.parametrize(
    ("changed", "name", "status", "fix"),
    [
        (BROKEN_MUJOCO, "MuJoCo", "error", "mujoco<4"),
        ({"mujoco_pair": "untested", "mujoco": "3.16.0"}, "MuJoCo", "warning", "tested: "),
        ({"mujoco_pair": "incomplete", "mujoco": None}, "MuJoCo", "error", "pip install"),
        ({"torch": TORCH | {"cuda": None, "devices": {}}}, "GPU", "warning", "driver 580.1"),
        ({"torch": TORCH | {"bytecode": False}}, "start", "warning", "compileall"),
        (
            {"torch": {"version": "2", "error": "libcudart.so.13"}},
            "PyTorch",
            "error",
            "pip install",
        ),
        ({"renderer": {"error": "worker 0 did not answer"}}, "renderer", "error", "osmesa"),
        ({"renderer": {"error": "no libEGL.so.1"}}, "renderer", "error", "apt-get install libegl1"),
        (
            {"renderer": {"error": "MUJOCO_EGL_DEVICE_ID must be an integer"}},
            *("renderer", "error", "unset MUJOCO_EGL_DEVICE_ID"),
        ),
        ({"renderer": frames(blank=True)}, "renderer", "error", "osmesa"),
        ({"renderer": frames(differing_frames=3)}, "renderer", "error", "osmesa"),
        ({"atari": {"roms": 107, "missing": ["Pong"]}}, "Atari", "warning", "reinstall"),
        ({"atari": {"roms": 1, "missing": [], "error": "libc"}}, "Atari", "error", "reinstall"),
        ({"forecast": NOT_INSTALLED}, "task", "error", "pip install"),
        ({"forecast": NEEDS, "memory_free_bytes": 10**9, "gpus": []}, "replay", "error", "lower"),
        ({"forecast": NEEDS, "disk_free_bytes": 10**9}, "checkpoints", "error", "free space"),
    ],
)
def test_problem_is_found_and_has_its_fix(changed, name, status, fix):
    (found,) = problems(**changed)
    assert (found.name, found.status) == (name, status)
    assert fix in found.fix


def test_replay_may_be_stored_on_the_gpu():
    assert problems(forecast=NEEDS) == problems(forecast=NEEDS, memory_free_bytes=10**9) == []


def test_renderer_that_fails_with_a_broken_mujoco_is_fixed_with_it():
    found = problems(renderer={"error": "AttributeError: flex_vertedge"}, **BROKEN_MUJOCO)
    assert [finding.fix for finding in found if finding.name == "renderer"] == ["fix MuJoCo first"]


def test_manifest_has_the_facts_of_the_doctor():
    learner = make_learner(tiny_config("minigrid/DoorKey-6x6"), CPU)
    facts = manifest.manifest(tiny_config("minigrid/DoorKey-6x6"), learner, CPU)
    learner.close()
    ours = machine.machine_info()
    assert ours == {key: facts[key] for key in ours}
    assert facts["mujoco_pair"] in ("tested", "untested", "absent")


RENDERERS = {
    "hanging": (HangingRenderer, "did not answer within 0.5 seconds (in hang, faulty_envs.py:"),
    "crashing": (CrashingRenderer, "ended with exit code 3"),
    "raising": (RaisingRenderer, "RuntimeError: a joint broke"),
    "unusable": (UnusableRenderer, "MuJoCo cannot open a headless renderer"),
}


@pytest.mark.quick("hanging", "crashing")
@pytest.mark.parametrize("name", RENDERERS)
def test_renderer_that_fails_is_reported(name, monkeypatch):
    environment, error = RENDERERS[name]
    monkeypatch.setattr("cclf.envs.dmc.DeepMindControl", environment)
    info = doctor.check_rendering(timeout_seconds=0.5)
    assert info.keys() == {"error"}
    assert error in info["error"]


def test_rendering_in_a_worker_returns_its_facts(monkeypatch):
    monkeypatch.setattr("cclf.envs.dmc.DeepMindControl", Renderer)
    assert doctor.check_rendering() == {"count": doctor.NUM_FRAMES}


# --- the command


def test_doctor_on_this_machine_prints_one_json_document():
    code, out, err = cclf("doctor", "--json", "--task", "dmc/cartpole-swingup")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert {"python", "torch", "mujoco", "mujoco_pair", "gpus", "findings", "problems"} <= set(
        facts
    )
    assert facts["renderer"]["ms_per_frame"] > 0.0
    assert facts["atari"]["missing"] == []
    assert "error" not in facts["atari"]
    assert facts["forecast"]["replay_transitions"] == 12_500
    assert facts["forecast"]["replay_bytes"] > 12_500 * 3 * 100 * 100


def test_doctor_prints_findings_and_strict_exits_with_1(monkeypatch):
    monkeypatch.setattr(doctor, "check_rendering", lambda: frames(LLVMPIPE))
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = cclf("doctor", "--strict")
    assert (code, err) == (0, "")
    assert "no problems found" in out
    assert max(len(line) for line in out.splitlines()) <= 80
    monkeypatch.setattr(machine, "gpus", lambda: healthy()["gpus"])
    assert cclf("doctor")[0] == 0
    code, out, _ = cclf("doctor", "--strict")
    assert code == 1
    assert "software rendering on the CPU although there is a GPU" in out
    assert "fix: " in out
    for words in ("--task dmc/cartpole-swingupp", "--task nonsense", "--base sac", "--strcit"):
        code, out, err = cclf("doctor", *words.split())
        assert (code, out, err.count("\n")) == (2, "", 1), words


@pytest.mark.quick("missing1")
@pytest.mark.parametrize("missing", [("dm_control", "mujoco", "ale_py", "ale-py"), ("torch",)])
def test_missing_packages_are_lines_and_not_tracebacks(missing):
    script = f"""
import sys
from importlib import metadata
from cclf.storage import machine
class Missing:
    def find_spec(self, name, *_):
        if name in {missing!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
real = metadata.version
def version(name):
    if name in {missing!r}:
        raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.version = version
machine.gpus = lambda: []
from cclf import doctor
doctor.check_rendering = lambda: {{"error": "no display"}}
from cclf.cli import main
sys.exit(main(["doctor", "--task", "dmc/walker-walk"]))
"""
    environment = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "error: task  fix: " in done.stdout


def test_games_that_ale_py_lacks_are_found(monkeypatch):
    roms = [rom for rom in doctor.atari_roms() if rom not in ("up_n_down", "pong")]
    monkeypatch.setattr(doctor, "atari_roms", lambda: roms)
    assert doctor.check_atari(True) == {"roms": len(roms), "missing": ["Pong", "UpNDown"]}
