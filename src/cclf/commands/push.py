"""`cclf push`: share a trained agent on the Hugging Face Hub."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from cclf.commands.options import parse
from cclf.commands.runs import RunOptions, select_run


@dataclass(frozen=True, kw_only=True)
class PushOptions(RunOptions):
    """Upload the agent of a run folder, or a folder that cclf export --card wrote, to the Hugging Face
    Hub: weights as safetensors, config, model card and video. Log in before with hf auth login."""

    to: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="hf:USER/NAME")]
    """The repository, which is created if it does not exist."""


def main(arguments: list[str]) -> None:
    options = parse(PushOptions, "cclf push", arguments)
    run = select_run(options.run, options.last)
    from cclf import agents

    print(agents.push(run, options.to, options.trust_imports))
