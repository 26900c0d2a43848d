"""Tune two options with Optuna, and stop runs early that are worse than the median of earlier ones.

pip install optuna
python examples/optuna_pruning.py
"""

import optuna

import cclf


def objective(trial: optuna.Trial, env_steps: int = 1_500, **options: object) -> float:
    """The mean return of the last evaluation."""

    def on_evaluation(info):
        trial.report(info.return_mean, info.env_steps)
        if trial.should_prune():
            raise cclf.StopRun  # the run is saved, so it could be continued

    run = cclf.train(
        "toy/reach-1d",
        "cclf",
        env_steps=env_steps,
        learning_rate=trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
        bonus_temperature=trial.suggest_float("bonus_temperature", 0.02, 1.0, log=True),
        on_evaluation=on_evaluation,
        **options,
    )
    if not run.finished:
        raise optuna.TrialPruned
    return run.results()[-1]["return_mean"]


if __name__ == "__main__":
    # One seed per trial selects lucky runs: train the best options again with other seeds.
    pruner = optuna.pruners.MedianPruner(n_startup_trials=3)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    study.optimize(objective, n_trials=10)
    print(study.best_params, study.best_value)
