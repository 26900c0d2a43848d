"""How run folders of earlier versions are read. Only this module knows how they differ.

A checkpoint has a format number, `format` in its state.json; a checkpoint without one has format 1.
A field that is only added needs no new format: it is declared in `ADDED_FIELDS`. Any other change
of the state raises `FORMAT` by one and adds the function that converts the old state to
`MIGRATIONS`. The fields `agent_steps`, `evaluation_due` and `tables` are also read directly from
state.json, so they keep their form.
"""

from collections.abc import Callable

from cclf.errors import DataError
from cclf.types import StateDict, StateValue

FORMAT = 1
MIGRATIONS: dict[int, Callable[[StateDict], StateDict]] = {}  # by the format that is converted

# Fields that were added after the first checkpoints, by their path in the state, for example
# "learner/algorithm/updates". Where a checkpoint lacks one, the object that loads it keeps its
# initial value. A plug-in adds the paths of its own fields to this set.
ADDED_FIELDS = {
    "tables",  # not in checkpoints of version 0.1
    "replay_kept",  # written only where it is False
}

# Settings that had another name in version 0.1.
RENAMED_SETTINGS = {
    "re3_running_mean_slip": "re3_running_mean_bug",
    "n_step_slip": "n_step_bug",
}

# Settings of a run that later versions do not have.
REMOVED_RUN_SETTINGS = {"env_worker"}


def migrate_state(state: StateDict) -> StateDict:
    """The state of a checkpoint in the current format."""
    number = state.get("format", 1)
    if number not in range(1, FORMAT + 1):
        raise DataError(
            f"a checkpoint of format {number!r} needs a later version of cclf, which reads formats "
            f"up to {FORMAT} now: update cclf"
        )
    for older in range(number, FORMAT):
        state = MIGRATIONS[older](state)
    return {name: value for name, value in state.items() if name != "format"}


def format_field() -> StateDict:
    """What a new checkpoint adds to its state to name its format."""
    return {"format": FORMAT} if FORMAT > 1 else {}


def with_added_fields(own: StateValue, saved: StateValue, path: str = "") -> StateValue:
    """`saved`, completed by those of `ADDED_FIELDS` that it lacks. Their values are those in `own`,
    the current state of the object that will load it. `path` is the place of both in the state of
    the run.

    >>> with_added_fields({"tables": {}, "steps": 0}, {"steps": 7})
    {'steps': 7, 'tables': {}}
    """
    if not (isinstance(own, dict) and isinstance(saved, dict)):
        return saved
    complete = dict(saved)
    for name, value in own.items():
        inner = f"{path}/{name}" if path else str(name)
        if name in saved:
            complete[name] = with_added_fields(value, saved[name], inner)
        elif inner in ADDED_FIELDS:
            complete[name] = value
    return complete


def migrate_config(values: StateDict) -> StateDict:
    """The values of a config.json as `Config.to_dict` writes them now. Version 0.1 did not name the
    base algorithm, which was the default one of the task."""
    from cclf.presets import select_algorithm

    base = (
        values["base"]
        if "base" in values
        else select_algorithm(values["task"], make_env=False).name
    )
    settings = {
        RENAMED_SETTINGS.get(name, name): value for name, value in values["algorithm"].items()
    }
    run = {name: value for name, value in values["run"].items() if name not in REMOVED_RUN_SETTINGS}
    return values | {"base": base, "algorithm": settings, "run": run}
