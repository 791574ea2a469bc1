"""The report: one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jinja2

from dflash2.measure.plots import bar_plot, line_plot, survival_plot
from dflash2.measure.projection import Projection
from dflash2.measure.summary import FEWEST, Group, Summary
from dflash2.measure.verdict import judge

MOST_CURVES = 6


def render(
    summary: Summary, projection: Projection | None, *, title: str, facts: Mapping[str, str]
) -> str:
    """The page as HTML.

    Args:
        facts: how it was measured: shown as a list at the end.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dflash2.measure", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        title=title,
        summary=summary,
        projection=projection,
        verdict=judge(summary, projection),
        survival_plots=_survival_plots(summary),
        sections=_sections(summary),
        speed_plots=_speed_plots(projection),
        facts=facts,
        fewest=FEWEST,
    )


def _plot(svg: str, caption: str) -> dict[str, str]:
    return {"svg": svg, "caption": caption}


def _survival_plots(summary: Summary) -> list[dict[str, str]]:
    if summary.overall is None:
        return []
    whole = {"all": summary.overall}
    plots = [
        _plot(
            survival_plot(whole),
            "How many rounds keep at least so many drafted tokens. A steep fall says that the "
            "end of a draft is rarely used.",
        )
    ]
    for label, groups in summary.labels.items():
        if len(groups) > 1:
            common = sorted(groups, key=lambda v: -groups[v].requests)[:MOST_CURVES]
            curves = {value: group for value, group in groups.items() if value in common}
            plots.append(_plot(survival_plot(curves), f"The same by {label}."))
    return plots


def _sections(summary: Summary) -> list[dict[str, Any]]:
    splits: list[tuple[str, str, str, Mapping[str, Group]]] = [
        (f"By {label}", "Your field of the traffic file.", label, groups)
        for label, groups in summary.labels.items()
    ]
    splits += [
        (
            "Thinking and answer",
            "Thinking is the text between <think> and </think>.",
            "part",
            summary.parts,
        ),
        (
            "By temperature",
            "0 always takes the likeliest token; at higher ones the text is less predictable, "
            "and fewer drafted tokens are kept.",
            "temperature",
            summary.temperatures,
        ),
        (
            "By length of the context",
            "Tokens of the conversation when the round started.",
            "tokens",
            {_range(low): group for low, group in summary.contexts.items()},
        ),
    ]
    return [
        {"title": title, "text": text, "name": name, "groups": groups, "svg": bar_plot(groups)}
        for title, text, name, groups in splits
        if len(groups) > 1
    ]


def _range(low: int) -> str:
    return f"{low} to {max(127, 2 * low - 1)}"


def _speed_plots(projection: Projection | None) -> list[dict[str, str]]:
    if projection is None:
        return []
    counts = range(len(projection.speed_up))
    costs = {
        "whole round": projection.round_cost,
        "check alone": projection.verify_cost,
    }
    xlabel = "drafted tokens per round"
    return [
        _plot(
            line_plot(counts, {"": projection.speed_up}, xlabel=xlabel, ylabel="speed, plain = 1"),
            "Expected speed. 0 is plain decoding; above the dotted line drafting is faster.",
        ),
        _plot(
            line_plot(counts, costs, xlabel=xlabel, ylabel="time, plain pass = 1"),
            "What a round costs on the machine of the cost table.",
        ),
    ]
