"""Measure the time and memory of an update of each SAC method and check the paper's cost claims.

    .venv/bin/python benchmarks/cost.py --out runs/cost --precision bf16

The paper compares "model sizes during training", which grow with the number of views, and training
hours. Here size is the parameters plus what an update saves for its gradients (counted, the same on
every machine), and time is that of updates alone. Writes OUT/cost.json and OUT/cost.svg.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import torch

from cclf import presets
from cclf.algorithms.common.off_policy import OffPolicyLearner
from cclf.algorithms.registry import make_learner
from cclf.analysis import figures, published, statistics, styles
from cclf.analysis.verdicts import Verdict, VerdictState
from cclf.benchmark import step_parity, time_update_pairs
from cclf.commands.options import print_table
from cclf.config import Config, Precision
from cclf.storage.atomic_files import write_output
from cclf.storage.manifest import origin
from cclf.training import devices

TASK = "dmc/cartpole-swingup"
METHODS = ("drq", "drq[3,3]", "drq-5", "curl", "curl+", "curl++", "cclf")
OUR_NAMES = {"drq[5,5]": "drq-5"}  # by the paper's name, where they differ
PAPER_BATCH_SIZE = 512  # for which sizes are given, whatever batch is timed
WARMUP_PAIRS = 4  # CUDA graphs are captured in the third
_RANDOM_AGENT_STEPS = 100  # steps of random actions that fill the replay buffer of the updates


class CostClaim(NamedTuple):
    """The ratio method / rival of a quantity is at most, or at least, `limit`."""

    text: str
    quantity: str
    method: str
    rival: str
    limit: float
    at_most: bool = True


class Cost(NamedTuple):
    parameters: int
    kept_bytes: int  # for gradients, by one update at the paper's batch size
    milliseconds: np.ndarray  # (pairs,) per update, means of a pair
    parity: dict[str, float]  # of the timed update with the plain one in float32


def claims() -> list[CostClaim]:
    """The claims with numbers in the paper's appendix, and two that it makes in words."""
    found = []
    for row in published.published("cost"):
        method, rival = (OUR_NAMES.get(name, name) for name in row.method.split(" / "))
        at_most = method == "cclf"
        kind = "training time" if row.quantity == "training-time-ratio" else "model size"
        bound = "at most" if at_most else "at least"
        text = f"{kind}: {method} takes {bound} {row.mean:g} times {rival}'s"
        found.append(CostClaim(text, row.quantity, method, rival, row.mean, at_most))
    found.append(
        CostClaim(
            "model size: cclf does not exceed drq[3,3]", "model-size-ratio", "cclf", "drq[3,3]", 1.0
        )
    )
    found.append(
        CostClaim(
            "training time: cclf takes no longer than drq-5",
            "training-time-ratio",
            "cclf",
            "drq-5",
            1.0,
        )
    )
    return found


def config_of(name: str, batch_size: int, device: str, precision: Precision = "fp32") -> Config:
    """A method, or one with a number of views that no method has: drq[3,3].

    >>> config_of("drq[3,3]", 512, "cpu").method.views
    3
    """
    method, _, views = name.partition("[")
    config = presets.resolve(TASK, method)
    algorithm = config.algorithm
    if views:
        config = replace(config, method=replace(config.method, views=int(views.partition(",")[0])))
    algorithm = replace(
        algorithm,
        batch_size=batch_size,
        warmup_agent_steps=_RANDOM_AGENT_STEPS,
        precision=precision,
    )
    run = replace(
        config.run, env_steps=2 * _RANDOM_AGENT_STEPS * config.env.action_repeat, device=device
    )
    return replace(config, algorithm=algorithm, run=run)


def measure(
    names: Sequence[str],
    device_name: str,
    batch_size: int,
    pairs: int,
    precision: Precision = "fp32",
) -> dict[str, Cost]:
    """Cost of each method. The updates alternate between methods, so that a slow phase of the machine
    affects all of them."""
    device = devices.choose_device(device_name)
    torch.set_num_threads(1)
    learners = {name: _learner(name, batch_size, device, precision) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(WARMUP_PAIRS + pairs):
        for name, learner in learners.items():
            times[name] += time_update_pairs(learner, 1, device)
    costs = {}
    for name, learner in learners.items():
        parameters = sum(parameter.numel() for parameter in learner.algorithm.networks.parameters())  # type: ignore[attr-defined]
        parity = step_parity(config_of(name, batch_size, str(device), precision), learner)
        costs[name] = Cost(
            parameters, _kept_bytes(name), np.array(times[name][WARMUP_PAIRS:]), parity
        )
        learner.close()
    return costs


def _learner(
    name: str, batch_size: int, device: torch.device, precision: Precision = "fp32"
) -> OffPolicyLearner:
    """A learner whose replay holds frames of random play."""
    config = config_of(name, batch_size, str(device), precision)
    devices.set_precision(config, device)
    learner = cast(OffPolicyLearner, make_learner(config, device))
    while learner.warming_up:
        learner.step(0)
    return learner


def _kept_bytes(name: str) -> int:
    """Bytes that the larger of two successive updates saves for its gradients, counted on the CPU,
    where nothing is fused."""
    small = 4  # samples; the bytes are proportional to the batch size
    learner = _learner(name, small, torch.device("cpu"))
    weights = {p.untyped_storage().data_ptr() for p in learner.algorithm.networks.parameters()}  # type: ignore[attr-defined]
    sizes = []
    for _ in range(2):
        storages: dict[int, torch.UntypedStorage] = {}

        def keep(
            tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage] = storages
        ) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage  # kept alive, so that no address is reused
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            learner.update(0)
        sizes.append(sum(storage.nbytes() for storage in storages.values()))
    learner.close()
    return max(sizes) * PAPER_BATCH_SIZE // small


def judge(claim: CostClaim, costs: dict[str, Cost]) -> Verdict:
    """Held if the whole 95 % interval of the ratio satisfies the limit, did not hold if none of it
    does. Sizes are exact."""
    ours, theirs = costs[claim.method], costs[claim.rival]
    if claim.quantity == "model-size-ratio":
        estimate = low = high = size_bytes(ours) / size_bytes(theirs)
    else:
        # ratios of pairs that were measured one after the other, at the same load
        ratios = (ours.milliseconds / theirs.milliseconds)[:, None]
        interval = statistics.bootstrap_statistic(
            [ratios], lambda parts: np.asarray(np.median(parts[0], axis=(-2, -1)))
        )
        estimate, low, high = (float(value) for value in interval)
    holds, fails = (
        (high <= claim.limit, low > claim.limit)
        if claim.at_most
        else (low >= claim.limit, high < claim.limit)
    )
    state: VerdictState = "held" if holds else "did not hold" if fails else "undecided"
    return Verdict(state, f"{estimate:.3g} [{low:.3g}, {high:.3g}]", estimate, low, high, 1)


def milliseconds(cost: Cost) -> float:
    return float(np.median(cost.milliseconds))


def size_bytes(cost: Cost) -> int:
    return 4 * cost.parameters + cost.kept_bytes


def document(costs: dict[str, Cost]) -> dict[str, Any]:
    """The measurements by method, as written to cost.json."""
    return {
        name: {
            "parameters": found.parameters,
            "kept_bytes": found.kept_bytes,
            "median_ms": milliseconds(found),
            "milliseconds": [round(value, 4) for value in found.milliseconds.tolist()],
            "parity": found.parity,
        }
        for name, found in costs.items()
    }


def bars(panels: dict[str, dict[str, float]]) -> Any:
    """One panel per quantity, with a bar for each method."""
    method_styles = styles.styles(method for values in panels.values() for method in values)
    longest = max(len(values) for values in panels.values())
    size = (4.6 * len(panels), 0.34 * longest + 0.9)
    figure = figures.new_figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (quantity, values) in zip(axes, panels.items(), strict=True):
        colors = [method_styles[method].color for method in values]
        drawn = axis.barh(list(values), list(values.values()), color=colors)
        axis.bar_label(drawn, [f"{value:.3g}" for value in values.values()], padding=3, fontsize=8)
        axis.invert_yaxis()
        axis.margins(x=0.14)
        axis.set_title(quantity)
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/cost"))
    parser.add_argument("--precision", choices=get_args(Precision), default="fp32")
    parser.add_argument("--batch-size", type=int, help="512 on a GPU, 32 elsewhere")
    parser.add_argument("--pairs", type=int, help="of updates; 50 on a GPU, 10 elsewhere")
    options = parser.parse_args(arguments)
    device = devices.choose_device("auto")
    default_batch, default_pairs = (PAPER_BATCH_SIZE, 50) if device.type == "cuda" else (32, 10)
    batch_size = options.batch_size or default_batch
    pairs = options.pairs or default_pairs
    costs = measure(METHODS, str(device), batch_size, pairs, options.precision)
    megabytes = {name: size_bytes(cost) / 1e6 for name, cost in costs.items()}
    times = {name: milliseconds(cost) for name, cost in costs.items()}
    size = f"parameters and saved activations (MB), batch {PAPER_BATCH_SIZE}"
    rows = [
        (name, f"{cost.parameters:,}", f"{megabytes[name]:,.1f}", f"{times[name]:,.1f}")
        for name, cost in costs.items()
    ]
    print_table(("method", "parameters", size, "ms per update"), rows)
    verdicts = [(claim.text, judge(claim, costs)) for claim in claims()]
    rows = [(text, verdict.state, verdict.text) for text, verdict in verdicts]
    print_table(("claim of the paper", "verdict", "estimate [95 % interval]"), rows)
    command = " ".join(["python", *sys.argv])
    facts = {**origin(device), "command": command, "task": TASK}
    facts |= {"precision": options.precision, "batch_size": batch_size}
    options.out.mkdir(parents=True, exist_ok=True)
    write_output(options.out / "cost.json", json.dumps(facts | document(costs), indent=2) + "\n")
    time_name = f"ms per update, {facts['device']}, batch {batch_size}, {options.precision}"
    figures.save(bars({size: megabytes, time_name: times}), options.out / "cost.svg")
    print(options.out / "cost.json", options.out / "cost.svg", sep="\n")


if __name__ == "__main__":
    main()
