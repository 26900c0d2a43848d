"""The facts that `cclf doctor` collects on a machine without problems, to be changed by tests."""

import copy

LLVMPIPE, H200 = "llvmpipe (LLVM 15.0.6, 256 bits)", "NVIDIA H200/PCIe/SSE2"


def frames(renderer=H200, **changed):
    facts = {"renderer": renderer, "backend": "egl", "ms_per_frame": 1.5, "blank": False}
    return facts | {"differing_frames": 0} | changed


def healthy(**changed):
    """A GPU machine without problems."""
    facts = {
        "cclf": "0.2.0",
        "python": "3.11.7",
        "system": "Linux",
        "numpy": "2.4.6",
        "gymnasium": "1.4.0",
        "minigrid": "3.2.0",
        "mujoco": "3.17.0",
        "dm_control": "1.0.50",
        "mujoco_pair": "tested",
        "gpu_driver": "580.1",
        "ale_py": "0.12.1",
        "atari": {"roms": 108, "missing": []},
        "torch": {
            "version": "2.13.0",
            "cuda": "13.0",
            "threads": 8,
            "bytecode": True,
            "location": "/usr/lib/python",
            "devices": {"cuda:0 H200": 150 * 10**9},
        },
        "gpus": [
            {
                "name": "H200",
                "driver": "580.1",
                "memory_bytes": 150 * 10**9,
                "memory_free_bytes": 140 * 10**9,
            }
        ],
        "renderer": frames(),
        "nvidia_egl": "installed",
        "processors": 16,
        "missing_extras": {},
        "usable_processors": 16,
        "memory_free_bytes": 10**11,
        "disk_free_bytes": 10**11,
    }
    return copy.deepcopy(facts | changed)
