"""`cclf push`: share a trained agent on the Hugging Face Hub."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from cclf.commands.options import Last, RunFolder, TrustImports, parse
from cclf.commands.runs import select_run
from cclf.errors import EXIT_DONE


@dataclass(frozen=True)
class PushOptions:
    """Upload the agent of a run folder, or a folder that cclf export --card wrote, to the Hugging Face
    Hub: weights as safetensors, config, model card and video. Log in before with hf auth login."""

    run: RunFolder
    to: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="hf:USER/NAME")]
    """The repository, which is created if it does not exist."""
    last: Last = False
    trust_imports: TrustImports = False


def main(arguments: list[str]) -> int:
    options = parse(PushOptions, "cclf push", arguments)
    run = select_run(options.run, options.last)
    from cclf import agents

    print(agents.push(run, options.to, options.trust_imports))
    return EXIT_DONE
