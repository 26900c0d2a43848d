"""Cards of the inspection page: one sampled transition each, with its frames, views and beliefs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cclf.inspection.records import ShownObservation, ShownSample


class ViewCard(NamedTuple):
    """A view as the page shows it."""

    number: int
    role: str  # anchor, selected or other: a CSS class
    label: str
    picture: np.ndarray  # (h, w, 3)
    corner: tuple[int, int] | None
    belief: str  # empty for the anchor
    width: str  # of its bar


class ObservationCard(NamedTuple):
    """An observation as the page shows it."""

    title: str
    older: Sequence[np.ndarray]
    newest: np.ndarray
    views: Sequence[ViewCard]
    outlines: Sequence[ViewCard]  # views that are crops; the anchor and the selected view come last
    belief: str
    width: str
    best_other_match: tuple[np.ndarray, str] | None


class SampleCard(NamedTuple):
    """A transition as the page shows it."""

    curiosity: str
    width: str
    text: str
    observations: tuple[ObservationCard, ObservationCard]


def sample_card(sample: ShownSample) -> SampleCard:
    steps = sample.steps_between
    later = "next observation" if steps == 1 else f"observation {steps} steps later"
    observations = (
        observation_card(sample.now, "observation"),
        observation_card(sample.following, later),
    )
    curiosity = sample.curiosity
    return SampleCard(probability(curiosity), _width(curiosity), describe(sample), observations)


def observation_card(shown: ShownObservation, title: str) -> ObservationCard:
    views = [_view_card(number, shown) for number in range(len(shown.views))]
    crops = [view for view in views if view.corner]
    match = None
    if shown.taken_for is not None:
        match = (shown.taken_for[0], probability(shown.taken_for[1]))
    return ObservationCard(
        title,
        shown.frames[:-1],
        shown.frames[-1],
        views,
        sorted(crops, key=lambda view: view.role != "other"),
        probability(shown.belief),
        _width(shown.belief),
        match,
    )


def _view_card(number: int, shown: ShownObservation) -> ViewCard:
    view = shown.views[number]
    role = "anchor" if number == 0 else "selected" if number == shown.chosen else "other"
    corner = f" at row {view.origin[0]}, column {view.origin[1]}" if view.origin else ""
    if view.belief is None:
        return ViewCard(number, role, f"anchor{corner}", view.picture, view.origin, "", "0%")
    belief = probability(view.belief)
    label = f"view {number}{corner}: belief {belief}{', selected' * (role == 'selected')}"
    return ViewCard(number, role, label, view.picture, view.origin, belief, _width(view.belief))


def _width(share: float) -> str:
    return f"{100 * min(1.0, max(0.0, share)):.1f}%"


def describe(sample: ShownSample) -> str:
    """What happened, the beliefs and curiosity, and their effects on training."""
    when = []
    if sample.step is not None:
        when.append(f"Step {sample.step} of its episode")
        if sample.age is not None:
            when[0] += f", {sample.age:,} steps ago"
    action = f"action {sample.action}, reward {signed(sample.reward, '.3g')}"
    sentences = ["; ".join([*when, action if when else action.capitalize()])]
    if sample.new_episode:
        sentences.append("The episode ended here, so the next observation begins another")
    if sample.ended_between:
        steps = sample.steps_between
        sentences.append(
            f"The episode ended within {steps} steps, so the later observation is blank"
        )
    if sample.copies is not None:
        copies, batch = sample.copies
        sentences.append(
            f"It occurs {copies} times in its batch of {batch}, so no belief can exceed "
            f"{probability(1 / copies)}"
            if copies > 1
            else f"No other observation in its batch of {batch} is equal"
        )
    now, following = (
        f"{f'view {shown.chosen}, ' if shown.views else ''}belief {probability(shown.belief)}, so "
        f"{name} = {probability(shown.curiosity)}"
        for shown, name in ((sample.now, "c"), (sample.following, "c′"))
    )
    verb = "Selected" if sample.now.views else "Observation"
    sentences.append(f"{verb}: {now}; of the next observation: {following}")
    if effects := _effects(sample):
        sentences.append(f"Effects: {'; '.join(effects)}")
    return ". ".join(sentences) + "."


def _effects(sample: ShownSample) -> list[str]:
    """What curiosity changes in training; only the pieces that the method has."""
    effects = []
    if sample.second_weight is not None and sample.next_second_weight is not None:
        effects.append(
            f"the selected views have {percent(sample.second_weight)} of the weight in the Q loss "
            f"and {percent(sample.next_second_weight)} in its target"
        )
    if sample.priority is not None:
        before, after = sample.priority
        effects.append(f"the priority changes from {before:.4f} to {after:.4f}")
    if sample.draws is not None:
        effects.append(f"it is sampled {sample.draws:.2f} times as often as the average")
    if sample.bonus is not None:
        small = sample.bonus != 0 and abs(sample.bonus) < 1e-3
        effects.append(f"bonus {power(sample.bonus, 1) if small else f'{sample.bonus:.3g}'}")
    return effects


def probability(value: float) -> str:
    """A probability with three decimals, or as a power of ten.

    >>> probability(0.25), probability(3e-9), probability(0.0)
    ('0.250', '3·10⁻⁹', '0')
    """
    return "0" if value <= 0 else f"{value:.3f}" if value >= 5e-4 else power(value, 0)


def power(value: float, digits: int) -> str:
    """A small number in scientific notation.

    >>> power(0.0000123, 1)
    '1.2·10⁻⁵'
    """
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa}·10{raised}"


def percent(share: float) -> str:
    """Whole numbers, except near 0 and 100.

    >>> percent(0.423), percent(0.9979), percent(1.0), percent(0.99999), percent(2e-9)
    ('42 %', '99.8 %', '100 %', 'over 99.9 %', 'under 0.1 %')
    """
    if 0.005 <= share <= 0.995 or share in (0.0, 1.0):
        return f"{100 * share:.0f} %"
    if share > 0.5:
        return f"{100 * share:.1f} %" if share < 0.9995 else "over 99.9 %"
    return f"{100 * share:.1f} %" if share >= 0.0005 else "under 0.1 %"


def signed(value: float, form: str = ".2f") -> str:
    return format(value, form).replace("-", "−")
