"""Human-normalised scores against the paper's own column means."""

import pytest

from cclf.analysis.atari import human_normalised
from cclf.atari_games import ATARI_GAMES
from cclf.config import ConfigError

# The CCLF paper's own column, in the order of the table; its mean and median human-normalised scores are 0.382 and 0.181.
CCLF_SCORES = (920.0, 154.7, 612.4, 708.8, 36.0, 5775.0, 7.4, 2.7, 765.0, 7845.0, 1360.9, 22.6, 1401.0)
CCLF_SCORES += (814.7, 6944.5, 308.8, 650.0, 3975.0, 12605.0, 1397.5, -17.3, 100.0, 953.8, 11730.0, 550.5, 3376.3)


def test_the_papers_scores_give_its_mean_and_median():
    normalised = sorted(human_normalised(game, score) for game, score in zip(ATARI_GAMES, CCLF_SCORES, strict=True))
    assert sum(normalised) / 26 == pytest.approx(0.382, abs=5e-4)
    assert (normalised[12] + normalised[13]) / 2 == pytest.approx(0.181, abs=5e-4)


def test_a_game_without_a_human_score_is_named():
    assert human_normalised("ms_pacman", 307.3) == 0.0
    with pytest.raises(ConfigError, match=r"no human score is known for 'Pongg'; did you mean Pong\?"):
        human_normalised("Pongg", 1.0)
