"""The doctor on machines that we do not have, through its facts, and on this one, through its
command."""

import contextlib
import io
import json
import os
import subprocess
import sys
import time

import pytest

from cclf import doctor
from cclf.algorithms.registry import make_learner
from cclf.benchmark import findings, probe
from cclf.cli import main
from cclf.storage import machine, run_folder
from healthy_machine import LLVMPIPE, egl, frames, healthy
from tiny_runs import CPU, tiny_config


def problems(**changed):
    found = [
        finding
        for finding in findings.judge(healthy(**changed))
        if finding.status in findings.PROBLEMS
    ]
    assert all(finding.do for finding in found), "a problem says what to do"
    return found


def test_a_healthy_machine_has_no_problems():
    assert problems() == []
    assert (
        problems(
            gpus=[],
            torch={"version": "2", "cuda": None, "threads": 2, "bytecode": True, "devices": []},
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
    assert problems(atari={"roms": 108, "missing": []}) == [], (
        "not measured where PyTorch is missing"
    )


@pytest.mark.parametrize(
    ("nvidia", "backend", "word"),
    [
        (
            {"library": False, "vendor_file": None},
            "egl",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics",
        ),
        (
            {"library": True, "vendor_file": None},
            "egl",
            "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        ),
        ({"library": True, "vendor_file": "there"}, "egl", "/dev/dri"),
        ({"library": True, "vendor_file": "there"}, "osmesa", "unset MUJOCO_GL"),
    ],
)
def test_a_cpu_that_draws_beside_a_gpu_is_a_loud_warning_with_the_fix(nvidia, backend, word):
    (found,) = problems(renderer=frames(LLVMPIPE, backend=backend), nvidia_egl=nvidia)
    assert found.status == "warning"
    assert "THE CPU DRAWS BESIDE A GPU" in found.value
    assert word in found.do


@pytest.mark.parametrize(
    ("changed", "name", "status"),
    [
        ({"mujoco_pair": "broken", "mujoco": "4.0.0"}, "MuJoCo", "error"),
        ({"mujoco_pair": "untested", "mujoco": "3.16.0"}, "MuJoCo", "warning"),
        ({"mujoco_pair": "incomplete", "mujoco": None}, "MuJoCo", "error"),
        (
            {"torch": healthy()["torch"] | {"cuda": None, "devices": []}},
            "GPU",
            "warning",
        ),
        ({"torch": healthy()["torch"] | {"bytecode": False}}, "start", "warning"),
        ({"torch": {"version": "2.13.0", "error": "OSError: libcudart.so.13"}}, "PyTorch", "error"),
        (
            {"renderer": {"outcome": "hung", "error": "in render (renderer.py:163)"}},
            "renderer",
            "error",
        ),
        ({"renderer": frames(blank=True)}, "renderer", "error"),
        ({"renderer": frames(differing_frames=3)}, "renderer", "error"),
        ({"renderer": frames(devices=[egl(1), egl(0, False, index=1)])}, "EGL devices", "warning"),
        ({"atari": {"roms": 107, "missing": ["Pong"]}}, "Atari", "warning"),
        (
            {"atari": {"roms": 108, "missing": [], "error": "ImportError: libc.so"}},
            "Atari",
            "error",
        ),
        ({"stress": [frames(), {"outcome": "hung", "error": "in render"}]}, "2 renderers", "error"),
        ({"stress": [frames(), frames(differing_frames=1)]}, "2 renderers", "error"),
        (
            {
                "forecast": {
                    "task": "dmc/x",
                    "error": "needs the package dm_control",
                    "do": "pip install",
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


def test_which_gpu_draws_is_not_judged_where_pytorch_counts_otherwise():
    assert (
        problems(
            renderer=frames(devices=[egl(1), egl(0, False, index=1)]), cuda_visible_devices="1"
        )
        == []
    )


@pytest.mark.parametrize(
    ("changed", "error", "do"),
    [
        (
            {"mujoco_pair": "broken", "mujoco": "4.0.0"},
            "AttributeError: flex_vertedge",
            "repair MuJoCo first",
        ),
        ({}, "RuntimeError: MUJOCO_EGL_DEVICE_ID must be an integer", "unset MUJOCO_EGL_DEVICE_ID"),
        ({}, "ImportError: no libEGL.so.1", "apt-get install libegl1"),
    ],
)
def test_a_renderer_that_does_not_open_gets_the_repair_of_its_cause(changed, error, do):
    found = problems(renderer={"outcome": "failed", "error": error}, **changed)
    assert do in next(finding.do for finding in found if finding.name == "renderer")


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
    manifest = run_folder.manifest(config, learner, CPU)
    learner.close()
    ours = machine.machine_info()
    assert {**ours, "torch": None} == {**{key: manifest[key] for key in ours}, "torch": None}
    assert manifest["mujoco_pair"] in ("tested", "untested", "absent")


# --- the probe
# ---------------------------------------------------------------------------------------------------------


def probed(script, processes=1, **limits):
    limits = {"start_limit_seconds": 20.0, "render_limit_seconds": 20.0} | limits
    return probe.render(processes, 0.0, **limits, command=[sys.executable, "-c", script])


READY = "import sys, time, os, faulthandler; print('ready', flush=True); sys.stdin.read(); "


def test_children_begin_together_and_what_they_say_comes_back():
    late = "import sys, time, os; time.sleep(0.5 * (os.getpid() % 2)); print('ready', flush=True); sys.stdin.read(); "
    found = probed(late + "import json; print(json.dumps({'begin': time.time()}))", processes=2)
    assert [child["outcome"] for child in found] == ["ok", "ok"]
    assert abs(found[0]["begin"] - found[1]["begin"]) < 0.3


@pytest.mark.parametrize(
    ("script", "outcome", "error"),
    [
        (READY + "os.abort()", "crashed", "killed by signal 6"),
        (READY + "raise RuntimeError('no display')", "crashed", "RuntimeError: no display"),
        (READY, "crashed", "without a word"),
        ("import sys; sys.exit('no packages')", "crashed", "no packages"),
        (READY + 'print(\'{"error": "GLError"}\')', "failed", "GLError"),
    ],
)
def test_a_crash_is_reported(script, outcome, error):
    (found,) = probed(script)
    assert found["outcome"] == outcome
    assert error in found["error"]


def test_a_hang_is_reported_with_its_place_and_never_waited_for():
    begin = time.monotonic()
    watched = READY + "faulthandler.dump_traceback_later(0.2, exit=True); time.sleep(60)"
    (found,) = probed(watched)
    assert found["outcome"] == "hung"
    assert "<module>" in found["error"]
    deaf = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY + "time.sleep(60)"
    )
    (found,) = probed(deaf, render_limit_seconds=-1.5)
    assert (found["outcome"], found["error"]) == ("hung", "it did not answer and was killed")
    assert time.monotonic() - begin < 20.0


# --- the command
# -------------------------------------------------------------------------------------------------------


def cclf(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def test_the_doctor_on_this_machine_is_one_json_document(monkeypatch):
    monkeypatch.setattr(doctor, "STRESS_SECONDS", 0.0)
    code, out, err = cclf("doctor", "--json", "--task", "dmc/cartpole-swingup", "--stress", "2")
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
        "stress",
    } <= set(facts)
    assert facts["renderer"]["ms_per_frame"] > 0.0
    assert facts["renderer"]["frames"] == 30
    assert facts["atari"]["missing"] == []
    assert facts["atari"]["ms_per_agent_step"] > 0.0
    assert facts["forecast"]["replay_transitions"] == 12_500
    assert facts["forecast"]["replay_bytes"] > 12_500 * 3 * 100 * 100
    assert [child["outcome"] for child in facts["stress"]] == ["ok", "ok"]


def test_the_doctor_for_people_and_strict(monkeypatch):
    monkeypatch.setattr(probe, "render", lambda *_, **__: [frames(LLVMPIPE)])
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
    assert "THE CPU DRAWS BESIDE A GPU" in out
    assert "do: " in out


def test_bad_input_is_one_line(monkeypatch):
    monkeypatch.setattr(probe, "render", lambda *_, **__: [frames()])
    for words in (
        ["--task", "dmc/cartpole-swingupp"],
        ["--task", "nonsense"],
        ["--stress", "-1"],
        ["--strcit"],
    ):
        code, out, err = cclf("doctor", *words)
        assert (code, out, err.count("\n")) == (2, "", 1), words


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
from cclf.benchmark import probe
probe.render = lambda *_, **__: [{{"outcome": "failed", "error": "no display"}}]
from cclf.cli import main
sys.exit(main(["doctor", "--task", "dmc/walker-walk"]))
"""
    environment = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "error: task  do: " in done.stdout


def test_games_that_ale_py_lacks_are_found(monkeypatch):
    there = machine.atari_roms()
    monkeypatch.setattr(
        machine, "atari_roms", lambda: [rom for rom in there if rom not in ("up_n_down", "pong")]
    )
    found = doctor.emulator(healthy())
    assert found == {"roms": len(there) - 2, "missing": ["Pong", "UpNDown"]}
