"""`cclf evaluate`: a trained agent in new episodes."""

from contextlib import closing
from dataclasses import dataclass

from cclf.commands.options import Device, EvaluationSeed, Json, parse, print_json
from cclf.commands.runs import RunOptions, select_run
from cclf.validation import Episodes


@dataclass(frozen=True)
class EvaluateOptions(RunOptions):
    """Evaluate the agent of a run folder in new episodes. SAC and DrQ-v2 take the mean action, A2C
    samples, Rainbow acts without noise."""

    episodes: Episodes = 10
    """Number of episodes."""
    seed: EvaluationSeed = 0
    device: Device = "auto"
    json: Json = False


def main(arguments: list[str]) -> None:
    options = parse(EvaluateOptions, "cclf evaluate", arguments)
    run = select_run(options.run, options.last, options.json)
    from cclf.training import devices
    from cclf.training.agent import load_agent
    from cclf.training.seeding import derive

    device = devices.choose_device(options.device)
    agent, _, env_steps = load_agent(
        run, device, options.episodes, trust_imports=options.trust_imports
    )
    seeds = [derive(options.seed, "evaluate", episode) for episode in range(options.episodes)]
    with closing(agent):
        result = agent.evaluate(seeds, False)
    facts = {"run": str(run), "env_steps": env_steps, "episodes": len(result.returns)}
    facts |= {"return_mean": result.mean, "return_std": result.std, "returns": result.returns}
    if options.json:
        print_json(facts)
    else:
        print(
            f"return {result.mean:.4g} ± {result.std:.2g} over {len(result.returns)} episodes at "
            f"{env_steps:,} env steps"
        )
