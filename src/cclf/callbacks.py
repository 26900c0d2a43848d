"""Ready-made callbacks for `cclf.train(..., on_evaluation=...)` (docs/usage.md)."""

from typing import TYPE_CHECKING

from cclf.errors import StopRun, require_extras
from cclf.validation import PositiveInt, ZeroOrMore, to_python_number, validate_value

if TYPE_CHECKING:
    from cclf.training.callbacks import EvaluationInfo


class BestCheckpoint:
    """Keeps the agent with the highest mean return of an evaluation as an exported agent in RUN/best,
    which `cclf.load` and `cclf play` accept. A resumed run replaces it by a better one only.

    >>> run = cclf.train("toy/reach-1d", on_evaluation=cclf.BestCheckpoint())  # doctest: +SKIP
    >>> agent = cclf.load(run.folder / "best")  # doctest: +SKIP
    """

    def __init__(self) -> None:
        require_extras("BestCheckpoint", ["report"])  # for the model card

    def __call__(self, info: "EvaluationInfo") -> None:
        from cclf import share
        from cclf.model_card import read_evaluations
        from cclf.storage.run_folder import read_weights

        best = info.folder / "best"
        if best.exists():
            _, best_env_steps = read_weights(best)
            means = {each.env_steps: each.returns.mean() for each in read_evaluations(info.folder)}
            if info.return_mean <= means.get(best_env_steps, float("-inf")):
                return
        # The run itself names the modules that it imports.
        share.write(info.folder, best, trust_imports=True)


class EarlyStopping:
    """Stops a run after `patience` evaluations in a row without a mean return that is more than
    `min_improvement` above the best one before. Evaluations before a resume count.

    >>> cclf.train("toy/reach-1d", on_evaluation=cclf.EarlyStopping(patience=3))  # doctest: +SKIP
    """

    def __init__(self, patience: int = 5, min_improvement: float = 0.0):
        self.patience = to_python_number(patience)
        self.min_improvement = to_python_number(min_improvement)
        validate_value("patience", self.patience, PositiveInt)
        validate_value("min_improvement", self.min_improvement, ZeroOrMore)

    def __call__(self, info: "EvaluationInfo") -> None:
        from cclf.model_card import read_evaluations

        best, without_improvement = float("-inf"), 0
        for evaluation in read_evaluations(info.folder):
            mean = float(evaluation.returns.mean())
            without_improvement += 1
            if mean > best + self.min_improvement:
                best, without_improvement = mean, 0
        if without_improvement >= self.patience:
            raise StopRun
