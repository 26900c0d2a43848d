"""The text of the inspection page about a sampled transition, and numbers as text."""

from cclf.inspection.records import ShownSample


def describe(sample: ShownSample) -> str:
    """What happened, the beliefs and curiosity, and their effects on training."""
    when = []
    if sample.step is not None:
        when.append(f"Step {sample.step} of its episode")
        if sample.age is not None:
            when[0] += f", {sample.age:,} steps ago"
    action = f"action {sample.action}, reward {with_minus_sign(sample.reward, '.3g')}"
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
        effects.append(f"bonus {scientific(sample.bonus, 1) if small else f'{sample.bonus:.3g}'}")
    return effects


def probability(value: float) -> str:
    """A probability with three decimals, or as a power of ten.

    >>> probability(0.25), probability(3e-9), probability(0.0)
    ('0.250', '3·10⁻⁹', '0')
    """
    return "0" if value <= 0 else f"{value:.3f}" if value >= 5e-4 else scientific(value, 0)


def scientific(value: float, digits: int) -> str:
    """A small number in scientific notation.

    >>> scientific(0.0000123, 1)
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


def with_minus_sign(value: float, form: str = ".2f") -> str:
    """A number with the character U+2212 in place of a hyphen."""
    return format(value, form).replace("-", "−")
