"""`cclf doctor`: the facts of other machines, and the command on this one."""

import json
import os
import subprocess
import sys
import time

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


def test_a_healthy_machine_has_no_problems():
    assert problems() == []
    assert (
        problems(
            gpus=[],
            torch={"version": "2", "cuda": None, "threads": 2, "bytecode": True, "devices": {}},
            renderer=frames(LLVMPIPE),
        )
        == []
    )
    assert (
        problems(
            mujoco_pair="absent",
            mujoco=None,
            dm_control=None,
            renderer=None,
            minigrid=None,
            gymnasium=None,
        )
        == []
    )
    assert problems(ale_py=None, atari=None) == []


@pytest.mark.parametrize(
    ("nvidia", "backend", "word"),
    [
        (
            "no library",
            "egl",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics",
        ),
        (
            "no vendor file",
            "egl",
            "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        ),
        ("installed", "egl", "/dev/dri"),
        ("installed", "osmesa", "unset MUJOCO_GL"),
    ],
)
def test_a_cpu_that_draws_beside_a_gpu_is_a_loud_warning_with_the_fix(nvidia, backend, word):
    (found,) = problems(renderer=frames(LLVMPIPE, backend=backend), nvidia_egl=nvidia)
    assert found.status == "warning"
    assert "software rendering on the CPU although there is a GPU" in found.value
    assert word in found.fix


@pytest.mark.parametrize(
    ("changed", "name", "status"),
    [
        ({"mujoco_pair": "broken", "mujoco": "4.0.0"}, "MuJoCo", "error"),
        ({"mujoco_pair": "untested", "mujoco": "3.16.0"}, "MuJoCo", "warning"),
        ({"mujoco_pair": "incomplete", "mujoco": None}, "MuJoCo", "error"),
        (
            {"torch": healthy()["torch"] | {"cuda": None, "devices": {}}},
            "GPU",
            "warning",
        ),
        ({"torch": healthy()["torch"] | {"bytecode": False}}, "start", "warning"),
        ({"torch": {"version": "2.13.0", "error": "OSError: libcudart.so.13"}}, "PyTorch", "error"),
        (
            {"renderer": {"error": "worker 0 did not answer within 30 seconds"}},
            "renderer",
            "error",
        ),
        ({"renderer": frames(blank=True)}, "renderer", "error"),
        ({"renderer": frames(differing_frames=3)}, "renderer", "error"),
        ({"atari": {"roms": 107, "missing": ["Pong"]}}, "Atari", "warning"),
        (
            {"atari": {"roms": 108, "missing": [], "error": "ImportError: libc.so"}},
            "Atari",
            "error",
        ),
        (
            {
                "forecast": {
                    "task": "dmc/x",
                    "replay_transitions": 0,
                    "replay_bytes": 0,
                    "error": "needs the package dm_control",
                    "fix": "pip install",
                }
            },
            "task",
            "error",
        ),
    ],
)
def test_what_is_wrong_is_found(changed, name, status):
    (found,) = problems(**changed)
    assert (found.name, found.status) == (name, status)


@pytest.mark.parametrize(
    ("changed", "error", "fix"),
    [
        (
            {"mujoco_pair": "broken", "mujoco": "4.0.0"},
            "AttributeError: flex_vertedge",
            "fix MuJoCo first",
        ),
        ({}, "RuntimeError: MUJOCO_EGL_DEVICE_ID must be an integer", "unset MUJOCO_EGL_DEVICE_ID"),
        ({}, "ImportError: no libEGL.so.1", "apt-get install libegl1"),
    ],
)
def test_a_renderer_that_does_not_open_gets_the_repair_of_its_cause(changed, error, fix):
    found = problems(renderer={"error": error}, **changed)
    assert fix in next(finding.fix for finding in found if finding.name == "renderer")


def test_the_forecast_is_held_against_memory_and_disk():
    needs = {
        "task": "dmc/x",
        "replay_transitions": 10,
        "replay_bytes": 10**10,
        "disk_bytes": 2 * 10**10,
    }
    assert problems(forecast=needs) == []
    assert problems(forecast=needs, memory_free_bytes=10**9) == [], "it fits on the GPU"
    assert [found.name for found in problems(forecast=needs, memory_free_bytes=10**9, gpus=[])] == [
        "replay"
    ]
    assert [found.name for found in problems(forecast=needs, disk_free_bytes=10**9)] == [
        "checkpoints"
    ]


def test_the_manifest_carries_the_doctors_facts():
    config = tiny_config("minigrid/DoorKey-6x6")
    learner = make_learner(config, CPU)
    facts = manifest.manifest(config, learner, CPU)
    learner.close()
    ours = machine.machine_info()
    assert ours == {key: facts[key] for key in ours}
    assert facts["mujoco_pair"] in ("tested", "untested", "absent")


# --- rendering in a worker
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        (HangingRenderer, "did not answer within 0.5 seconds (in hang, faulty_envs.py:"),
        (CrashingRenderer, "ended with exit code 3"),
        (RaisingRenderer, "RuntimeError: a joint broke"),
        (UnusableRenderer, "MuJoCo cannot open a headless renderer"),
    ],
)
def test_a_renderer_that_hangs_or_fails_is_reported(environment, error, monkeypatch):
    monkeypatch.setattr("cclf.envs.dmc.DeepMindControl", environment)
    begin = time.monotonic()
    info = doctor.check_rendering(timeout_seconds=0.5)
    assert info.keys() == {"error"}
    assert error in info["error"]
    assert time.monotonic() - begin < 20.0


def test_rendering_in_a_worker_returns_its_facts(monkeypatch):
    monkeypatch.setattr("cclf.envs.dmc.DeepMindControl", Renderer)
    assert doctor.check_rendering() == {"count": doctor.FRAMES}


# --- the command
# -------------------------------------------------------------------------------------------------------


def test_the_doctor_on_this_machine_is_one_json_document():
    code, out, err = cclf("doctor", "--json", "--task", "dmc/cartpole-swingup")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert {
        "python",
        "torch",
        "mujoco",
        "mujoco_pair",
        "gpus",
        "renderer",
        "findings",
        "problems",
    } <= set(facts)
    assert facts["renderer"]["ms_per_frame"] > 0.0
    assert facts["atari"]["missing"] == []
    assert "error" not in facts["atari"]
    assert facts["forecast"]["replay_transitions"] == 12_500
    assert facts["forecast"]["replay_bytes"] > 12_500 * 3 * 100 * 100


def test_the_doctor_for_people_and_strict(monkeypatch):
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


def test_bad_input_is_one_line(monkeypatch):
    monkeypatch.setattr(doctor, "check_rendering", frames)
    for words in (
        ["--task", "dmc/cartpole-swingupp"],
        ["--task", "nonsense"],
        ["--base", "sac"],
        ["--strcit"],
    ):
        code, out, err = cclf("doctor", *words)
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
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "error: task  fix: " in done.stdout


def test_games_that_ale_py_lacks_are_found(monkeypatch):
    there = doctor.atari_roms()
    monkeypatch.setattr(
        doctor, "atari_roms", lambda: [rom for rom in there if rom not in ("up_n_down", "pong")]
    )
    found = doctor.check_atari(torch_works=True)
    assert found == {"roms": len(there) - 2, "missing": ["Pong", "UpNDown"]}
