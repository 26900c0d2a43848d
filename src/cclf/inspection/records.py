"""What a base algorithm returns for `cclf inspect`: numbers and pictures. The page depends on these
records only."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np


class View(NamedTuple):
    """An augmented view of an observation. The first view is the anchor, with which the others are
    compared."""

    picture: np.ndarray  # (h, w, 3)
    origin: tuple[int, int] | None  # top-left corner (y, x) in the frame, if it is a crop
    belief: float | None  # that it and the anchor show the same observation; None for the anchor


class ShownObservation(NamedTuple):
    """One observation with its views and beliefs."""

    frames: Sequence[np.ndarray]  # (H, W, 3) each, the newest last
    views: Sequence[View]  # empty if the observation is duplicated, not augmented
    chosen: int  # number of the selected view
    belief: float  # in the pair of anchor and selected view
    curiosity: float  # 1 - belief, Eq. (3)
    # the other observation of the batch with the largest match probability, and that probability
    best_other_match: tuple[np.ndarray, float] | None = None


class ShownSample(NamedTuple):
    """One transition. Quantities that the method does not use are None."""

    now: ShownObservation
    following: ShownObservation
    curiosity: float  # the samples are sorted by it
    action: str
    reward: float
    bonus: float | None  # Eq. (9)
    second_weight: float | None  # of the selected view in the Q loss, Eq. (7)
    next_second_weight: float | None
    priority: tuple[float, float] | None  # before and after Eq. (6)
    draws: float | None  # its sampling probability divided by the mean sampling probability
    step: int | None  # agent steps since its episode began
    age: int | None  # in agent steps
    new_episode: bool  # the next observation is the first of another episode
    # how often the same observation is in the batch, and the size of the batch
    copies: tuple[int, int] | None
    steps_between: int = 1  # agent steps from the observation to the next one
    ended_between: bool = False  # the episode ended within them, and the next observation is blank


class Measure(NamedTuple):
    """A quantity that curiosity may correlate with."""

    name: str
    values: np.ndarray  # (N,), nan where unknown
    meaning: str
    novelty: int = 0  # 1 if larger values are more novel, -1 if less


class About(NamedTuple):
    """The inspected run."""

    folder: Path
    heading: str
    origin: Mapping[str, object]


class Gallery(NamedTuple):
    """The content of the inspection page."""

    about: About
    sampling: str  # a sentence on how the transitions were sampled
    curiosity_name: str
    curiosity: np.ndarray  # (N,) of the samples
    measures: Sequence[Measure]
    most: Sequence[ShownSample]  # with the highest curiosity
    least: Sequence[ShownSample]
    # frames with their curiosity, the least curious first
    ranked_frames: Sequence[tuple[np.ndarray, float]]
    remarks: Sequence[str]
    priorities: np.ndarray | None  # of all transitions in replay, if curiosity sets them
    ages: np.ndarray | None
