"""The paper's tables and figures as runs: the methods, tasks, training steps and
seeds of each.

`paper` is the size of the paper's own experiment; `small` is the smallest size that can decide some
of its claims, hence five seeds. The tables named after curiosity are not the paper's: they compare
CCLF with its controls, with twelve seeds or more if a run takes a minute or two.
"""

from dataclasses import dataclass
from typing import Literal

from cclf.algorithms.base import ABLATIONS, CONTROLS
from cclf.config import PIECES
from cclf.envs.registry import known_tasks
from cclf.errors import ConfigError, did_you_mean

Budget = Literal["small", "paper"]


@dataclass(frozen=True)
class Experiment:
    summary: str
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    options: tuple[str, ...] = ()
    """Further options of each `cclf train`."""


def _seeds(count: int) -> tuple[int, ...]:
    return tuple(range(1, count + 1))


_DMC_TASKS = tuple(name for name in known_tasks() if name.startswith("dmc/"))
_ATARI_TASKS = tuple(name for name in known_tasks() if name.startswith("atari/"))
_ATARI_SMALL = tuple(f"atari/{game}" for game in ("Alien", "Freeway", "Krull", "RoadRunner"))
_ATARI_METHODS = ("rainbow", "otrainbow", "efficient-dqn", "curl", "drq", "cclf")
_CONTROL_METHODS = ("sac-pixel", "curl", "drq", "curl+", "curl++", "select", "select+", "cclf")
_GRID_METHODS = ("a2c", "re3", "cclf", "re3+cclf")
_COMBINATIONS = (*(method.name for method in ABLATIONS), "cclf")
_REMOVE_ONE = tuple(name for name in _COMBINATIONS if name.count("+") == len(PIECES) - 2)
_CCLF_AND_CONTROLS = ("cclf", *(f"cclf-{control}" for control in CONTROLS))
_CSV_ONLY = ("--no-video", "--no-tensorboard")
_TOY_OPTIONS = ("--env-steps", "1500", "--eval-every-env-steps", "100", *_CSV_ONLY)
_DRQV2_OPTIONS = (
    *("--base", "drqv2", "--env-steps", "200000", "--eval-every-env-steps", "100000"),
    *_CSV_ONLY,
)

TABLES: dict[str, dict[Budget, Experiment]] = {
    "table1": {
        "small": Experiment(
            "DeepMind Control at 100K: one task, all baselines",
            ("dmc/cartpole-swingup",),
            _CONTROL_METHODS,
            _seeds(5),
            ("--env-steps", "100000", *_CSV_ONLY),
        ),
        "paper": Experiment(
            "DeepMind Control at 100K and 500K, all baselines",
            _DMC_TASKS,
            _CONTROL_METHODS,
            _seeds(6),
            ("--env-steps", "500000", *_CSV_ONLY),
        ),
    },
    "ablation": {
        "small": Experiment(
            "cartpole-swingup at 100K: CCLF and CCLF without each of its four pieces",
            ("dmc/cartpole-swingup",),
            (*_REMOVE_ONE, "cclf"),
            _seeds(5),
            ("--env-steps", "100000", *_CSV_ONLY),
        ),
        "paper": Experiment(
            "cartpole-swingup at 100K and 500K: all 15 combinations of the four pieces",
            ("dmc/cartpole-swingup",),
            _COMBINATIONS,
            _seeds(6),
            ("--env-steps", "500000", *_CSV_ONLY),
        ),
    },
    "minigrid": {
        "small": Experiment(
            "MiniGrid: the two tasks of 400K steps",
            ("minigrid/Empty-16x16", "minigrid/DoorKey-6x6"),
            _GRID_METHODS,
            _seeds(5),
            ("--eval-every-env-steps", "25600", "--log-every-agent-steps", "12800", *_CSV_ONLY),
        ),
        "paper": Experiment(
            "MiniGrid: all three tasks, evaluated as often as the paper does",
            ("minigrid/Empty-16x16", "minigrid/DoorKey-6x6", "minigrid/DoorKey-8x8"),
            _GRID_METHODS,
            _seeds(5),
            _CSV_ONLY,
        ),
    },
    "atari": {
        "small": Experiment(
            "four games at 100K agent steps",
            _ATARI_SMALL,
            ("curl", "drq", "cclf"),
            _seeds(5),
            _CSV_ONLY,
        ),
        "paper": Experiment(
            "26 games at 100K agent steps", _ATARI_TASKS, _ATARI_METHODS, _seeds(4), _CSV_ONLY
        ),
    },
    "curiosity": {
        "small": Experiment(
            "DoorKey-6x6: CCLF, and CCLF with its curiosity shuffled or equal to its batch mean",
            ("minigrid/DoorKey-6x6",),
            _CCLF_AND_CONTROLS,
            _seeds(20),
            ("--eval-every-env-steps", "12800", "--log-every-agent-steps", "12800", *_CSV_ONLY),
        ),
        "paper": Experiment(
            "the same on DoorKey-6x6, cartpole-swingup and 26 games",
            ("minigrid/DoorKey-6x6", "dmc/cartpole-swingup", *_ATARI_TASKS),
            _CCLF_AND_CONTROLS,
            _seeds(6),
            _CSV_ONLY,
        ),
    },
    "curiosity-toy": {
        "small": Experiment(
            "toy/reach from pixels, on a CPU: CCLF, and CCLF with its curiosity shuffled",
            ("toy/reach",),
            ("cclf", "cclf-shuffled"),
            _seeds(12),
            _TOY_OPTIONS,
        ),
        "paper": Experiment(
            "the same, also with the batch mean as curiosity, and with CURL and DrQ",
            ("toy/reach",),
            ("curl", "drq", *_CCLF_AND_CONTROLS),
            _seeds(20),
            _TOY_OPTIONS,
        ),
    },
    "curiosity-re3": {
        "small": Experiment(
            "DoorKey-8x8: CCLF on RE3, and the contrastive loss on RE3 without any curiosity",
            ("minigrid/DoorKey-8x8",),
            ("re3+curl", "re3+cclf"),
            _seeds(5),
            ("--eval-every-env-steps", "76800", *_CSV_ONLY),
        ),
        "paper": Experiment(
            "the same, also with shuffled curiosity and with its batch mean",
            ("minigrid/DoorKey-8x8",),
            ("re3+curl", "re3+cclf", *(f"re3+cclf-{control}" for control in CONTROLS)),
            _seeds(20),
            ("--eval-every-env-steps", "76800", *_CSV_ONLY),
        ),
    },
    "curiosity-drqv2": {
        "small": Experiment(
            "pendulum-swingup: CCLF on DrQ-v2, and the same with its curiosity shuffled",
            ("dmc/pendulum-swingup",),
            ("drq-v2+cclf", "drq-v2+cclf-shuffled"),
            _seeds(5),
            _DRQV2_OPTIONS,
        ),
        "paper": Experiment(
            "the same, also with the batch mean as curiosity and with plain DrQ-v2",
            ("dmc/pendulum-swingup",),
            ("drq-v2", "drq-v2+cclf", "drq-v2+cclf-shuffled", "drq-v2+cclf-even"),
            _seeds(10),
            _DRQV2_OPTIONS,
        ),
    },
}


def find_table(name: str, budget: Budget) -> Experiment:
    if name not in TABLES:
        raise ConfigError(
            f"unknown table {name!r}{did_you_mean(name, TABLES)}: use one of {', '.join(TABLES)}"
        )
    return TABLES[name][budget]
