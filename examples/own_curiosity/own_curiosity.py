"""Compare a curiosity measure of your own with its shuffled control, seed by seed.

    python examples/own_curiosity/own_curiosity.py                    # ten runs of about a minute
    python examples/own_curiosity/own_curiosity.py --seeds 20 --dry-run

The control gets the same numbers in a random order within each batch. If the difference of the mean
return over training has an interval that contains 0, no effect of the measure was detected.
"""

import sys

from torch import Tensor

from cclf import cli
from cclf.curiosity import CuriosityMeasure


class Sharp(CuriosityMeasure):
    """A bonus that is large for the most curious observations of a batch, and small for the
    others."""

    def bonus_signal(self, curiosity: Tensor, query: Tensor) -> Tensor:
        return curiosity**2  # (B,), in place of c in Eq. (9)


def main(words: list[str]) -> int:
    compare = ["compare", "toy/reach-1d", "--method", "cclf", "--against", "shuffled"]
    seeds = [] if "--seeds" in words else ["--seeds", "5"]
    return cli.main([*compare, *seeds, *words, "--", "--curiosity", "own_curiosity:Sharp"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
