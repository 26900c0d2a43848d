"""Add the agent of a run folder to src/cclf/pretrained with a card.json: its training command,
its mean return and the checksums of its files.

    python scripts/pretrained.py RUN NAME
"""

import hashlib
import json
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import cclf
from cclf import model_card, share
from cclf.agents import PRETRAINED

EPISODES, SEED = 100, 0
FILES = ("config.json", "model.safetensors")


def main(run: Path, name: str) -> None:
    folder = PRETRAINED / name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        share.write(run, Path(temporary) / "agent")
        for file in FILES:
            shutil.copy(Path(temporary) / "agent" / file, folder)
    agent = cclf.load(folder, device="cpu", seed=SEED)
    evaluation = agent.evaluate(EPISODES, seed=SEED)
    card = {
        "task": agent.config.task,
        "method": agent.config.method_name,
        "command": shlex.join(model_card.command(agent.config)),
        "commit": json.loads((run / "manifest.json").read_text())["commit"],
        "env_steps": agent.env_steps,  # of the newest checkpoint; the command may train longer
        "return_mean": round(evaluation.mean, 4),
        "return_std": round(evaluation.std, 4),
        "episodes": EPISODES,
        "seed": SEED,
        "license": "MIT",
        "sha256": {
            file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in FILES
        },
    }
    (folder / "card.json").write_text(json.dumps(card, indent=2) + "\n")
    print(json.dumps(card, indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
