"""`cclf evaluate`: a trained agent in fresh episodes."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from cclf.commands.options import EXIT_DONE, parse
from cclf.validation import Episodes, Seed


@dataclass(frozen=True)
class Evaluate:
    """Evaluate the agent of a run folder in fresh episodes: mean action (SAC), sampled (A2C),
    without noise (Rainbow)."""

    run: tyro.conf.Positional[Path]
    """A run folder, or a folder that holds just one run."""
    episodes: Episodes = 10
    """How many to play."""
    seed: Seed = 0
    """Chooses the episodes; it has nothing to do with the seed of the run."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU when there is one."""
    trust_imports: bool = False
    """Allow a task gym/MODULE:ID or an encoder MODULE:FUNCTION of the run folder to import that
    Python module."""
    json: bool = False
    """One JSON document on standard output."""


def main(arguments: list[str]) -> int:
    options = parse(Evaluate, "cclf evaluate", arguments)
    from cclf.training import devices
    from cclf.training.agent import load_agent
    from cclf.training.seeding import derive

    agent, _, env_steps = load_agent(
        options.run,
        devices.choose_device(options.device),
        options.episodes,
        trust_imports=options.trust_imports,
    )
    seeds = [derive(options.seed, "evaluate", episode) for episode in range(options.episodes)]
    result = agent.evaluate(seeds, False)
    agent.close()
    facts = {"run": str(options.run), "env_steps": env_steps, "episodes": len(result.returns)}
    facts |= {"return_mean": result.mean, "return_std": result.std, "returns": result.returns}
    if options.json:
        print(json.dumps(facts))
    else:
        print(
            f"return {result.mean:.4g} ± {result.std:.2g} over {len(result.returns)} episodes at "
            f"{env_steps:,} env steps"
        )
    return EXIT_DONE
