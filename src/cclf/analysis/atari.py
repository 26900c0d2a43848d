"""Atari scores on the scale from a random to a human player."""

from cclf.atari_games import ATARI_GAMES, game_name
from cclf.config import ConfigError
from cclf.presets import nearest


def human_normalised(game: str, score: float) -> float:
    """0 is a random player, 1 a human one.

    >>> human_normalised("Pong", -20.7), human_normalised("Pong", 14.6), human_normalised("Freeway", 7.4)
    (0.0, 1.0, 0.25)
    """
    known = ATARI_GAMES.get(game_name(game))
    if known is None:
        raise ConfigError(f"no human score is known for {game!r}{nearest(game, ATARI_GAMES)}")
    return (score - known.random_score) / (known.human_score - known.random_score)
