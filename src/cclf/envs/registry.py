"""Which tasks there are: suites of this package, and those that other packages add by entry points.

Light: no environment is imported before it is made.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, get_args

from cclf.config import ObservationType, TaskKind
from cclf.envs.atari_games import ATARI_GAMES, game_name
from cclf.errors import ConfigError, did_you_mean
from cclf.plugins import load_entry_points

ENTRY_POINTS = "cclf.suites"  # group of entry points, each of which names a `Suite`
Overrides = dict[str, Any]


@dataclass(frozen=True)
class Task:
    name: str
    summary: str
    env: Overrides = field(default_factory=dict)
    run: Overrides = field(default_factory=dict)
    play: TaskKind | None = None
    """What it is to a learner, where that is not what its suite's other tasks are."""
    repeats_actions: bool = True
    """Whether `action_repeat` acts."""


class EnvInfo(NamedTuple):
    """What only the environment of a task knows."""

    play: TaskKind
    remark: str = ""
    """To be read after the task's name when a run begins; empty where nothing is remarkable."""
    state_remark: str = ""
    """The same where state is observed."""


@dataclass(frozen=True)
class Suite:
    name: str
    """The part of a task's name before the slash."""
    play: TaskKind
    """What its tasks are to a learner, where neither a task nor `facts` says otherwise."""
    maker: str
    """`module:function`; it takes (name, EnvConfig, seed, evaluation), and for grids (name,
    num_envs, seed)."""
    tasks: tuple[Task, ...] = ()
    others: str = ""
    """How further tasks are named, where there are any."""
    package: str | None = None
    """What must be installed, also the name of the extra."""
    env: Overrides = field(default_factory=dict)
    run: Overrides = field(default_factory=dict)
    repeats_actions: bool = True
    observes: tuple[ObservationType, ...] = ("pixels",)
    """What its tasks can show an agent, see `EnvConfig.observe`."""
    spelling: Callable[[str], str] = str
    """A task's one name, however it was spelt."""
    facts: str = ""
    """`module:function` for tasks whose play only their environment knows; it takes the name and
    answers `EnvInfo`. It makes the environment, so it runs the code that a task names."""

    check: str = ""
    """`module:function` that refuses what no environment can be made of, for tasks that are not
    among `tasks`; it takes (name, EnvConfig)."""

    @property
    def plays(self) -> frozenset[TaskKind]:
        """What its tasks may be to a learner, as far as is known without making one."""
        asked: tuple[TaskKind, ...] = ("continuous", "discrete") if self.facts else ()
        stated = [task.play for task in self.tasks if task.play is not None]
        return frozenset({self.play, *stated, *asked})

    def make(self, *arguments: Any) -> Any:
        return self.call(self.maker, *arguments)

    def facts_of(self, name: str) -> EnvInfo:
        facts: EnvInfo = self.call(self.facts, name)
        return facts

    def call(self, named: str, *arguments: Any) -> Any:
        module, _, function = named.partition(":")
        try:
            maker = getattr(importlib.import_module(module), function)
        except (ModuleNotFoundError, AttributeError) as error:
            if isinstance(error, ModuleNotFoundError) and error.name != module:
                raise  # what the module itself needs
            where = f"the suite {self.name} is made by {named}"
            raise ConfigError(f"{where}, which is not there: {error}") from error
        return maker(*arguments)


_TOY_ENV: Overrides = {"frame_pixels": 20, "crop_pixels": 16, "frame_stack": 1, "action_repeat": 1}
_CATCH_ENV: Overrides = {
    "frame_pixels": 50,
    "crop_pixels": 50,
    "frame_stack": 2,
    "action_repeat": 1,
}
_TOY_RUN: Overrides = {
    "env_steps": 3_000,
    "threads": 1,
    "eval_every_env_steps": 500,
    "eval_episodes": 20,
    "log_every_agent_steps": 50,
}
_LONG_RUN: Overrides = {
    "env_steps": 2_400_000,
    "eval_every_env_steps": 19_200,
    "log_every_agent_steps": 19_200,
}

_DMC = Suite(
    "dmc",
    play="continuous",
    maker="cclf.envs.dmc:make",
    check="cclf.envs.dmc:refuse_unknown",
    package="dm_control",
    others="dmc/<domain>-<task>: any other task of the DeepMind Control suite",
    tasks=(
        Task("dmc/finger-spin", "turn the spinner", env={"action_repeat": 2}),
        Task("dmc/cartpole-swingup", "swing the pole up and balance it", env={"action_repeat": 8}),
        Task("dmc/reacher-easy", "reach the target with a two-link arm"),
        Task("dmc/cheetah-run", "run"),
        Task("dmc/walker-walk", "walk", env={"action_repeat": 2}),
        Task("dmc/ball_in_cup-catch", "catch the ball in the cup"),
    ),
)
_MINIGRID = Suite(
    "minigrid",
    play="grid",
    maker="cclf.envs.minigrid:make",
    check="cclf.envs.minigrid:refuse_unknown",
    package="minigrid",
    others="minigrid/<name>: any other MiniGrid environment, e.g. minigrid/FourRooms",
    env={"frame_pixels": 7, "crop_pixels": 7, "frame_stack": 1, "action_repeat": 1},
    run={
        "env_steps": 400_000,
        "eval_every_env_steps": 3_200,
        "eval_episodes": 100,
        "threads": 1,
        "log_every_agent_steps": 3_200,
    },
    repeats_actions=False,
    tasks=(
        Task("minigrid/Empty-16x16", "cross an empty room"),
        Task("minigrid/DoorKey-6x6", "find the key, open the door, reach the goal"),
        Task("minigrid/DoorKey-8x8", "the same in a larger room", run=_LONG_RUN),
    ),
)
_TOY = Suite(
    "toy",
    play="continuous",
    maker="cclf.envs.toy:make",
    tasks=(
        Task(
            "toy/reach",
            "move a dot onto another, 20x20 pixels; learned in a minute on a CPU",
            _TOY_ENV,
            _TOY_RUN,
        ),
        Task(
            "toy/reach-1d",
            "the same along one line; learned in a minute on a CPU",
            _TOY_ENV,
            _TOY_RUN | {"env_steps": 1_500, "eval_every_env_steps": 250},
        ),
        Task(
            "toy/catch",
            "move a paddle under a falling ball, 50x50 pixels; learned in a minute on a CPU",
            _CATCH_ENV,
            _TOY_RUN | {"env_steps": 2_000, "final_eval_episodes": 100, "video": False},
            play="discrete",
            repeats_actions=False,
        ),
    ),
)
_ATARI = Suite(
    "atari",
    play="discrete",
    maker="cclf.envs.atari:make",
    check="cclf.envs.atari:refuse_unknown",
    package="ale-py",
    others="atari/<game>: any other game of the Arcade Learning Environment, e.g. atari/SpaceInvaders",
    run={
        "env_steps": 400_000,
        "eval_every_env_steps": 40_000,
        "final_eval_episodes": 100,
        "log_every_agent_steps": 1_000,
        "video": False,
    },
    spelling=game_name,
    tasks=tuple(Task(f"atari/{game}", summary) for game, summary in ATARI_GAMES.items()),
)
_GYM = Suite(
    "gym",
    play="continuous",
    maker="cclf.envs.gymnasium_env:make",
    package="gymnasium",
    others="gym/<id>: any registered Gymnasium environment, from its pixels or by --observe state",
    env={"action_repeat": 1},
    observes=("pixels", "state"),
    facts="cclf.envs.gymnasium_env:inspect_env",
    check="cclf.envs.gymnasium_env:refuse",
)
BUILT_IN = (_DMC, _MINIGRID, _TOY, _ATARI, _GYM)


@cache
def suites() -> dict[str, Suite]:
    found = {suite.name: suite for suite in BUILT_IN}
    load_entry_points(ENTRY_POINTS, Suite, found, _validate_suite)
    return found


def _validate_suite(suite: Suite) -> str:
    """What is wrong with a suite of another package, to be read after its name."""
    plays = get_args(TaskKind)
    for play in (suite.play, *(task.play for task in suite.tasks if task.play is not None)):
        if play not in plays:
            return f"which is {play!r} to a learner: use one of {', '.join(plays)}"
    if not suite.tasks and not suite.others:
        return "which has no task"
    if "/" in suite.name:
        return f"whose name {suite.name!r} has a slash"
    for task in suite.tasks:
        if task.name != f"{suite.name}/{suite.spelling(task.name.partition('/')[2])}":
            return f"whose task {task.name!r} is not called {suite.name}/..."
    for name, named in (("maker", suite.maker), ("facts", suite.facts), ("check", suite.check)):
        if (named or name == "maker") and not all(named.partition(":")):
            return f"whose {name} {named!r} is not module:function"
    return ""


def known_tasks() -> dict[str, Task]:
    return {task.name: task for suite in suites().values() for task in suite.tasks}


def refuse_unnamed(task: object) -> None:
    """Of what a program gives as a task."""
    if isinstance(task, str):
        return
    given = f"task is {type(task).__name__}, not a name such as toy/reach"
    if hasattr(task, "step") or callable(task):
        given += (
            ": register the environment with Gymnasium in a module of yours, and give "
            "'gym/MODULE:ID'"
        )
    raise ConfigError(given)


def suite_of(task_name: str) -> Suite:
    name = task_name.partition("/")[0]
    if name not in suites():
        raise ConfigError(
            f"unknown task {task_name!r}{did_you_mean(task_name, known_tasks())} (see: cclf tasks)"
        )
    return suites()[name]


def find_task(name: str) -> Task:
    suite, rest = suite_of(name), name.partition("/")[2]
    name = f"{suite.name}/{suite.spelling(rest)}"
    known = known_tasks()
    if name in known:
        return known[name]
    # the name becomes that of a folder, which must not lie elsewhere
    if suite.others and rest and ".." not in rest.split("/"):
        return Task(name, suite.others)
    raise ConfigError(f"unknown task {name!r}{did_you_mean(name, known)} (see: cclf tasks)")


def task_kind(task_name: str, look: bool = True) -> TaskKind:
    """What a task is to a learner. Without `look` no environment is made and no code of others is
    run, whatever the name says: for names that a file gave."""
    task, suite = find_task(task_name), suite_of(task_name)
    if task.play is None and suite.facts and look:
        return suite.facts_of(task.name.partition("/")[2]).play
    return task.play or suite.play


def task_note(task_name: str, observe: ObservationType = "pixels") -> str:
    """What a person should know of a task when a run begins; often nothing."""
    suite = suite_of(task_name)
    if not suite.facts:
        return ""
    facts = suite.facts_of(task_name.partition("/")[2])
    return facts.remark if observe == "pixels" else facts.state_remark


def validate_observation(task_name: str, observe: ObservationType) -> None:
    """An agent never gets pixels in the place of the state that it was to observe."""
    suite = suite_of(task_name)
    if observe not in suite.observes:
        raise ConfigError(
            f"observe={observe} conflicts with {task_name}: tasks of {suite.name}/ show "
            f"{' or '.join(suite.observes)}; remove it"
        )


def repeats_actions(task_name: str) -> bool:
    return find_task(task_name).repeats_actions and suite_of(task_name).repeats_actions
