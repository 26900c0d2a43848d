"""Ready-made callbacks for `cclf.train(..., on_evaluation=...)` (docs/usage.md)."""

from typing import TYPE_CHECKING

from cclf.errors import StopRun, require_extras
from cclf.validation import PositiveInt, ZeroOrMore, to_python_number, validate_value

if TYPE_CHECKING:
    from cclf.training.callbacks import EvaluationInfo


class BestCheckpoint:
    """Exports the agent to RUN/best after each evaluation with a new highest mean return. `cclf.load`
    and `cclf play` accept that folder. A resumed run replaces the agent only by a better one.

    >>> run = cclf.train("toy/reach-1d", on_evaluation=cclf.BestCheckpoint())  # doctest: +SKIP
    >>> agent = cclf.load(run.folder / "best")  # doctest: +SKIP
    """

    def __init__(self) -> None:
        require_extras("BestCheckpoint", ["report"])  # for the model card

    def __call__(self, info: "EvaluationInfo") -> None:
        from cclf import share
        from cclf.share import read_evaluations
        from cclf.storage.run_folder import read_weights

        best = info.folder / "best"
        if best.exists():
            _, best_env_steps = read_weights(best)
            means = {each.env_steps: each.returns.mean() for each in read_evaluations(info.folder)}
            if info.return_mean <= means.get(best_env_steps, float("-inf")):
                return
        # Trusted: this process has already imported the modules that the config of the run names.
        share.write(info.folder, best, trust_imports=True)


class EarlyStopping:
    """Stops a run after `patience` consecutive evaluations of which none improves the best mean return
    by more than `min_improvement`. Evaluations before a resume also count.

    >>> cclf.train("toy/reach-1d", on_evaluation=cclf.EarlyStopping(patience=3))  # doctest: +SKIP
    """

    def __init__(self, patience: int = 5, min_improvement: float = 0.0):
        self.patience = to_python_number(patience)
        self.min_improvement = to_python_number(min_improvement)
        validate_value("patience", self.patience, PositiveInt)
        validate_value("min_improvement", self.min_improvement, ZeroOrMore)

    def __call__(self, info: "EvaluationInfo") -> None:
        from cclf.share import read_evaluations

        best, without_improvement = float("-inf"), 0
        for evaluation in read_evaluations(info.folder):
            mean = float(evaluation.returns.mean())
            without_improvement += 1
            if mean > best + self.min_improvement:
                best, without_improvement = mean, 0
        if without_improvement >= self.patience:
            raise StopRun
