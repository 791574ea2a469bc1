"""What a summary means, in words for a person who has not read the documentation."""

from __future__ import annotations

from dataclasses import dataclass

from dflash2.measure.projection import Projection
from dflash2.measure.summary import Group, Summary

CLEAR_GAIN = 1.05  # below, what a cost table says may be noise
POOR = 1.5  # tokens per pass; healthy drafters give more on almost any text
FOREIGN = 0.9  # its own answers reach 1, but for near-ties
WIDE = 0.25  # of an interval, as a share of its mean


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Args:
    pays: None: not known without a cost table.
    headline: one line.
    reason: the numbers behind it.
    advice: what to do, most important first.
    """

    pays: bool | None
    headline: str
    reason: str
    advice: tuple[str, ...]


def judge(summary: Summary, projection: Projection | None) -> Verdict:
    if summary.overall is None:
        return Verdict(
            pays=None,
            headline="Nothing was measured.",
            reason="No answer in this traffic was long enough for a draft.",
            advice=("Measure traffic with longer answers.",),
        )
    pays = None if projection is None else projection.best_speed_up >= CLEAR_GAIN
    return Verdict(
        pays=pays,
        headline=_headline(projection, pays),
        reason=_reason(summary.overall, projection),
        advice=(
            *_setting(summary.overall, projection, pays),
            *_exceptions(projection, pays),
            *_weaknesses(summary),
        ),
    )


def _headline(projection: Projection | None, pays: bool | None) -> str:
    if projection is None:
        return "Whether the drafter pays depends on your machine."
    best = projection.best_speed_up
    if pays:
        return f"Yes, use the drafter: expect about {best:.2f} times the speed."
    if best >= 1.0:
        return "It hardly matters: the drafter makes no clear difference here."
    return "No: with this drafter, this machine would be slower."


def _reason(overall: Group, projection: Projection | None) -> str:
    text = (
        f"On this traffic, every pass of the large model gives {overall.mean_accept_length:.2f} "
        f"tokens instead of 1{between(overall)}."
    )
    if projection is not None:
        m = projection.best
        tokens = 1.0 + sum(overall.survival[:m])
        text += (
            f" At the best draft length, {m}, a round gives {tokens:.2f} tokens and "
            f"takes {projection.round_cost[m]:.2f} times as long as a plain pass."
        )
    return text


def _setting(overall: Group, projection: Projection | None, pays: bool | None) -> list[str]:
    if overall.mean_accept_length < POOR:
        return [
            "So few drafted tokens are kept that the drafter may be broken, or made for another "
            "model. `dflash2 doctor` finds out."
        ]
    if projection is None:
        return [
            "Run `dflash2 tune` on the machine that will serve, then `dflash2 measure` again: it "
            "goes on where it ended, and this page will say how much time the drafter saves."
        ]
    if pays:
        return [
            f"Draft {projection.best} tokens per round: `--spec-draft-n-max {projection.best}`."
        ]
    return [
        "Decode plainly on this machine. A target in another format, such as Q4_0 or Q8_0, or "
        "another device may change that: `dflash2 tune` measures it."
    ]


def _exceptions(projection: Projection | None, pays: bool | None) -> list[str]:
    """Values of labels for which the answer is another one."""
    if projection is None:
        return []
    found = []
    for label, values in projection.labels.items():
        others = [v for v, gain in values.items() if (gain >= CLEAR_GAIN) != pays]
        if others:
            names = ", ".join(f"{v} ({values[v]:.2f} times)" for v in others)
            found.append(f"By {label}, it {'does not pay' if pays else 'does pay'} for {names}.")
    return found


def _weaknesses(summary: Summary) -> list[str]:
    overall = summary.overall
    if overall is None:
        return []
    found = []
    for label, groups in summary.labels.items():
        weak = [name for name, group in groups.items() if _below(group, overall)]
        if weak:
            found.append(
                f"By {label}, clearly fewer drafted tokens than on average are kept for "
                f"{', '.join(weak)}."
            )
    contexts = list(summary.contexts.values())
    if len(contexts) > 1 and _below(contexts[-1], contexts[0]):
        found.append(
            "Long conversations keep fewer drafted tokens than short ones. If yours are longer "
            "than those measured here, measure them too."
        )
    if summary.likeliest is not None and summary.likeliest < FOREIGN:
        found.append(
            f"The model would have written only {100 * summary.likeliest:.0f} % of the tokens of "
            "the recorded answers itself. They seem to come from another model or temperature, and "
            "then say little about this one."
        )
    if overall.interval is None or _width(overall) > WIDE * overall.mean_accept_length:
        found.append("The numbers are uncertain: measure more requests.")
    if summary.skipped:
        found.append(
            f"{summary.skipped} requests were left out because they could not be measured."
        )
    return found


def _below(group: Group, other: Group) -> bool:
    return bool(group.interval and other.interval and group.interval[1] < other.interval[0])


def _width(group: Group) -> float:
    return group.interval[1] - group.interval[0] if group.interval else 0.0


def between(group: Group) -> str:
    """ " (2.71 to 3.05 with 95 % confidence)", or nothing."""
    if group.interval is None:
        return ""
    low, high = group.interval
    return f" ({low:.2f} to {high:.2f} with 95 % confidence)"
