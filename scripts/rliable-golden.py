"""Writes tests/golden/rliable.json: inputs, and the results of rliable for them. Run it in a
separate environment:

    python -m venv /tmp/rliable && /tmp/rliable/bin/pip install rliable==1.2.0 'arch==7.2.0' 'pandas<3' 'numpy<3'
    /tmp/rliable/bin/python scripts/rliable-golden.py

rliable is no dependency of this project: it draws in pandas, statsmodels and arch, and does not import with pandas 3.
"""

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
from rliable import library, metrics

REPS = 50_000
TARGET = Path(__file__).parent.parent / "tests" / "golden" / "rliable.json"
ESTIMATORS = {
    "mean": metrics.aggregate_mean,
    "median": metrics.aggregate_median,
    "iqm": metrics.aggregate_iqm,
    "optimality_gap": metrics.aggregate_optimality_gap,
}


def main() -> None:
    random = np.random.default_rng(20221)
    x = np.round(random.normal(0.5, 0.4, (5, 6)), 3)
    y = np.round(random.normal(0.3, 0.4, (7, 6)), 3)
    y[2:4, 1] = x[1, 1]  # ties, which count half
    x[4, :] = 0.0  # a run that failed everywhere
    thresholds = np.array([-0.5, 0.0, 0.25, 0.5, 1.0])
    golden = {
        "made_with": {name: version(name) for name in ("rliable", "arch", "numpy")}
        | {"reps": REPS},
        "x": x.tolist(),
        "y": y.tolist(),
        "thresholds": thresholds.tolist(),
    }
    for name, estimator in ESTIMATORS.items():
        point, ends = library.get_interval_estimates(
            {"x": x}, lambda scores, f=estimator: np.array([f(scores)]), reps=REPS
        )
        golden[name] = {"estimate": point["x"][0], "low": ends["x"][0][0], "high": ends["x"][1][0]}
    pair = {"x,y": (x, y)}
    point, ends = library.get_interval_estimates(
        pair, metrics.probability_of_improvement, reps=REPS
    )
    low, high = np.ravel(ends["x,y"])
    golden["probability_of_improvement"] = {
        "estimate": float(np.ravel(point["x,y"])[0]),
        "low": low,
        "high": high,
    }
    profile, bands = library.create_performance_profile({"x": x}, thresholds, reps=REPS)
    golden["performance_profile"] = {
        "estimate": profile["x"].tolist(),
        "low": bands["x"][0].tolist(),
        "high": bands["x"][1].tolist(),
    }
    TARGET.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
