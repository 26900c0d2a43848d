"""Whether a run folder proves that its run came to its end: no process needs to say so, and no old
mark can deny it."""

import json
from pathlib import Path

from cclf.storage.safe_loading import DATA_ERRORS, read_text


def is_complete(folder: Path, env_steps: int, action_repeat: int, final_eval_episodes: int) -> bool:
    """The newest checkpoint stands at the end of the budget of `env_steps`, and all that the run
    was to write is written."""
    try:
        states = sorted((folder / "checkpoint").glob("[0-9]*[0-9]/state.json"))
        state = json.loads(read_text(states[-1])) if states else {}
        reached = state["agent_steps"] * action_repeat
        trained = reached >= env_steps and not state["evaluation_due"]
        has_last_word = not final_eval_episodes or _has_final_evaluation(folder, reached)
        return trained and not (folder / "failure").exists() and has_last_word
    except (OSError, *DATA_ERRORS):
        return False  # `cclf train` looks closer, and says what is wrong


def _has_final_evaluation(folder: Path, env_steps: int) -> bool:
    """Whether final.csv speaks of the last agent."""
    return str(env_steps) in [
        line.partition(",")[0] for line in read_text(folder / "final.csv").splitlines()
    ]
