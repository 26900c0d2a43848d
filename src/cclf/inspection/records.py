"""What a base algorithm hands over to be looked at: plain numbers and pictures. The page made of it
knows no algorithm."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np


class View(NamedTuple):
    """What a network was shown of an observation. The first of several is the anchor, which the
    others are compared with."""

    picture: np.ndarray  # (h, w, 3)
    origin: tuple[int, int] | None  # top-left corner (y, x) in the frame, where it is a crop
    belief: float | None  # that it and the anchor show the same observation; None for the anchor


class ShownObservation(NamedTuple):
    """One observation and what the belief made of it."""

    frames: Sequence[np.ndarray]  # (H, W, 3) each, the newest last
    views: Sequence[View]  # empty where the observation is duplicated, not augmented
    chosen: int  # number of the view that was chosen beside the anchor
    belief: float  # in the chosen pair
    curiosity: float  # 1 - belief, Eq. (3)
    taken_for: tuple[np.ndarray, float] | None = (
        None  # the other observation of the batch that the anchor fits best, and how well
    )


class ShownSample(NamedTuple):
    """One transition as training sees it. What does not act in this method is None."""

    now: ShownObservation
    following: ShownObservation
    curiosity: float  # what the gallery is ordered by
    action: str
    reward: float
    bonus: float | None  # Eq. (9)
    second_weight: float | None  # of the chosen view in the Q loss, Eq. (7)
    next_second_weight: float | None
    priority: tuple[float, float] | None  # before and after Eq. (6)
    draws: float | None  # its chance to be drawn, over the mean of all
    step: int | None  # agent steps since its episode began
    age: int | None  # agent steps since it happened
    new_episode: bool  # what came next is the first observation of another episode
    # how often the same observation is in the batch, and the size of the batch
    copies: tuple[int, int] | None
    steps_between: int = 1  # agent steps from what it saw to what came next
    ended_between: bool = False  # the episode ended within them: what came next is blank


class Measure(NamedTuple):
    """Something that curiosity may follow."""

    name: str
    values: np.ndarray  # (N,), nan where unknown
    meaning: str
    novelty: int = 0  # 1 where more of it is more novel, -1 where it is less


class About(NamedTuple):
    """Which run, and when."""

    folder: Path
    heading: str
    origin: Mapping[str, object]


class Gallery(NamedTuple):
    about: About
    drawn: str  # how the samples came about
    curiosity_name: str
    curiosity: np.ndarray  # (N,) of the samples
    measures: Sequence[Measure]
    most: Sequence[ShownSample]
    least: Sequence[ShownSample]
    ladder: Sequence[tuple[np.ndarray, float]]  # pictures from the least to the most curious
    remarks: Sequence[str]
    priorities: np.ndarray | None  # of all transitions in replay, where curiosity sets them
    ages: np.ndarray | None
