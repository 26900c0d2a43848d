"""`cclf doctor`: measures this machine and says what to repair.

First the facts, where a missing or broken piece is a fact too; then what they mean. Rendering is
tried in processes of its own (`cclf.benchmark.probe`), so that no driver can take the doctor down.
"""

import os
import shutil
import statistics
import time
from pathlib import Path

from cclf import extras, presets
from cclf.benchmark import probe
from cclf.benchmark.findings import PROBLEMS, Facts, Finding, judge
from cclf.config import Config, ObservationType
from cclf.envs.atari_games import ATARI_GAMES
from cclf.envs.registry import suite_of, task_kind
from cclf.errors import ConfigError, short_error
from cclf.storage import machine

STRESS_SECONDS = 3.0
ATARI_STEPS = 200


def examine(
    task: str | None,
    stress_processes: int,
    base_name: str | None = None,
    observe: ObservationType = "pixels",
) -> Facts:
    """Everything the doctor knows, as one JSON-like document; `findings` say what it means."""
    # a bad name ends it here, before the slow part
    config = None
    if task is not None:
        config = presets.resolve(task, base_name=base_name, observe=observe)
    facts: Facts = {
        **machine.machine_info(),
        "torch": machine.torch_facts(),
        "gpus": machine.gpus(),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "renderer": probe.render(1, 0.0)[0] if machine.version("dm_control") else None,
        "nvidia_egl": {
            "library": machine.has_library("libEGL_nvidia.so.0"),
            "vendor_file": _text(machine.nvidia_egl_vendor_file()),
        },
        "missing_extras": extras.missing_packages(
            ("video", "report", "tensorboard", "export", "ray")
        ),
        "usable_processors": machine.usable_processors(),
        "memory_free_bytes": machine.available_memory_bytes(),
        "disk_free_bytes": shutil.disk_usage(".").free,
    }
    facts["atari"] = emulator(facts)
    facts["forecast"] = forecast(config, facts) if config is not None else None
    works = facts["renderer"] is not None and facts["renderer"]["outcome"] == "ok"
    facts["stress"] = (
        probe.render(stress_processes, STRESS_SECONDS) if stress_processes and works else None
    )
    findings = judge(facts)
    if stress_processes and not works:
        findings.append(
            Finding(f"{stress_processes} renderers", "not tried: one alone does not render", "note")
        )
    facts["findings"] = [finding._asdict() for finding in findings]
    facts["problems"] = [finding._asdict() for finding in findings if finding.status in PROBLEMS]
    return facts


def emulator(facts: Facts) -> Facts | None:
    """ale-py, the games of Atari 100K that it lacks, and how long a step of Pong takes here; None
    where it is not installed."""
    roms = machine.atari_roms()
    if roms is None:
        return None
    spelt = {rom.replace("_", "") for rom in roms}
    answer: Facts = {
        "roms": len(roms),
        "missing": [game for game in ATARI_GAMES if game.lower() not in spelt],
    }
    if "error" in facts["torch"] or "Pong" in answer["missing"]:
        return answer
    try:
        from cclf.envs.atari import AtariGame

        env = AtariGame("Pong", 0, clip_reward=True, life_loss_terminates=True)
    except (ConfigError, ImportError, OSError) as error:
        return answer | {"error": short_error(error)}
    env.reset()
    milliseconds = []
    for _ in range(ATARI_STEPS):
        start = time.perf_counter()
        env.step(0)
        milliseconds.append(1e3 * (time.perf_counter() - start))
    return answer | {"ms_per_agent_step": round(statistics.median(milliseconds), 3)}


def forecast(config: Config, facts: Facts) -> Facts:
    """What a run of the task will take. The environment is made, to know its frames; nothing is
    allocated."""
    suite, package = config.task.partition("/")[0], suite_of(config.task).package
    answer: Facts = {"task": config.task, "replay_transitions": 0, "replay_bytes": 0}
    if package is not None and machine.version(package) is None:
        return answer | {
            "error": f"needs the package {package}",
            "do": f"pip install 'cclf[{suite}]'",
        }
    if suite == "dmc" and facts["renderer"]["outcome"] != "ok":
        return answer | {
            "error": "cannot run, rendering does not work",
            "do": "repair the renderer",
        }
    if "error" in facts["torch"]:
        return answer | {"error": "cannot run, PyTorch does not load", "do": "repair PyTorch"}
    from cclf.envs.make import make_grids
    from cclf.training.trainer import replay_size

    if task_kind(config.task) == "grid":
        make_grids(config, 1, 0).close()  # refuses an unknown name
    else:
        answer["replay_transitions"], answer["replay_bytes"] = replay_size(config)
    # A checkpoint holds the replay and is written beside the one before.
    return answer | {"disk_bytes": 2 * answer["replay_bytes"]}


def show(facts: Facts) -> None:
    """For people: a line per finding, then what to do."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "note": "dim", "warning": "bold yellow", "error": "bold red"}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "what", "found"):
        table.add_column(column, overflow="fold")
    for finding in facts["findings"]:
        table.add_row(
            Text(finding["status"], colours[finding["status"]]),
            Text(finding["name"]),
            Text(finding["value"]),
        )
    console = Console()
    console.print(table)
    for problem in facts["problems"]:
        line = Text.assemble(
            (f"{problem['status']}: {problem['name']}", colours[problem["status"]]),
            f"  do: {problem['do']}",
        )
        console.print(line, soft_wrap=True)  # one line, so that it can be copied
    if not facts["problems"]:
        console.print("no problems found")


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
