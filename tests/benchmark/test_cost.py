"""benchmarks/cost.py: the paper's claims about the cost of an update."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def load_program() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "cost.py"
    spec = importlib.util.spec_from_file_location("cost", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cost = load_program()


def costs(**milliseconds: list[float]) -> dict[str, object]:
    return {
        name: cost.Cost(1_000, 6_000, np.array(times), {}) for name, times in milliseconds.items()
    }


def test_costs_are_judged_by_the_interval_of_their_ratio() -> None:
    claim = cost.CostClaim("", "training-time-ratio", "ours", "theirs", 1.0)
    quick, slow, noisy = [1.0] * 10, [2.0] * 10, [0.5, 1.9] * 5
    assert cost.judge(claim, costs(ours=quick, theirs=slow))[:3] == ("held", "0.5 [0.5, 0.5]", 0.5)
    assert cost.judge(claim, costs(ours=slow, theirs=quick)).state == "did not hold"
    assert cost.judge(claim, costs(ours=noisy, theirs=quick)).state == "undecided"
    busy = [1.0, 5.0, 1.0, 9.0, 1.0]
    assert cost.judge(claim, costs(ours=busy, theirs=[2 * t for t in busy])).high == 0.5, (
        "a busy moment is one for both"
    )
    at_least = claim._replace(limit=1.5, at_most=False)
    assert cost.judge(at_least, costs(ours=slow, theirs=quick)).state == "held"
    assert cost.judge(at_least, costs(ours=quick, theirs=slow)).state == "did not hold"


def test_a_models_size_is_its_parameters_and_what_its_gradients_need() -> None:
    # 10 kB and 20 kB
    small, large = cost.Cost(1_000, 6_000, np.ones(1), {}), cost.Cost(1_000, 16_000, np.ones(1), {})
    found = cost.judge(
        cost.CostClaim("", "model-size-ratio", "a", "b", 0.67), {"a": small, "b": large}
    )
    assert (found.state, found.estimate) == ("held", 0.5)


def test_every_cost_claim_names_methods_that_are_measured() -> None:
    assert len(cost.claims()) == 8
    for claim in cost.claims():
        assert {claim.method, claim.rival} <= set(cost.METHODS)


def test_costs_are_written_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {name: [float(place + 1), float(place + 2)] for place, name in enumerate(cost.METHODS)}
    monkeypatch.setattr(cost, "measure", lambda *_: costs(**times))
    cost.main(["--out", str(tmp_path / "cost")])
    assert str(tmp_path / "cost" / "cost.svg") in capsys.readouterr().out
    written = json.loads((tmp_path / "cost" / "cost.json").read_text())
    assert written["cclf"]["median_ms"] == 7.5
    assert {"device", "commit", "command", "precision", "batch_size"} <= written.keys()
    assert "cclf" in (tmp_path / "cost" / "cost.svg").read_text()


@pytest.mark.slow("test_costs_are_written_and_drawn")
def test_five_views_keep_more_for_gradients_than_two_and_have_the_same_parameters() -> None:
    found = cost.measure(["drq", "drq-5"], "cpu", batch_size=4, pairs=2)
    two, five = found.values()
    assert two.parameters == five.parameters > 10**6
    # 5 : 2, but for the actor's part, which is the same
    assert 2.0 < five.kept_bytes / two.kept_bytes < 2.6
    assert [len(each.milliseconds) for each in found.values()] == [2, 2]
