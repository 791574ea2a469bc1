"""Plots of a report: SVG text that inherits the page's font and colours.

Axes are drawn in a placeholder colour that becomes `currentColor`, so that one picture is readable
on a light and on a dark page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dflash2.errors import DFlash2Error
from dflash2.measure.summary import Group

try:
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as e:
    raise DFlash2Error(
        "the report needs matplotlib; run: pip install 'ggml-dflash2[measure]'"
    ) from e

INK = "#010203"
COLORS = ("#3b82d0", "#e0793a", "#3f9e5c", "#b05fc0", "#a08a2c", "#d0506a", "#4aa3a3", "#8c8c8c")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dflash2",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": mpl.cycler(color=COLORS),
    "grid.color": INK,
    "grid.alpha": 0.15,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


def survival_plot(groups: Mapping[str, Group]) -> str:
    """Share of rounds that keep at least k drafted tokens, one curve per group."""
    with mpl.rc_context(STYLE):
        figure, axes = _axes(4.6, 3.2)
        for name, group in groups.items():
            n_draft = len(group.survival)
            axes.plot(
                range(n_draft + 1),
                [100.0, *(100.0 * s for s in group.survival)],
                marker="o",
                markersize=3.5,
                linewidth=2.5 if name == "all" else 1.5,
                label=_short(name),
            )
        axes.set(xlabel="drafted tokens kept, at least", ylabel="% of rounds", ylim=(0, 104))
        axes.grid()
        if len(groups) > 1:
            axes.legend(ncols=2, fontsize=9)
        return _svg(figure)


def bar_plot(groups: Mapping[str, Group]) -> str:
    """Mean accept length with its interval, one bar per group."""
    with mpl.rc_context(STYLE):
        figure, axes = _axes(4.6, 0.9 + 0.32 * len(groups))
        names = [_short(name) for name in groups]
        for row, group in enumerate(groups.values()):
            axes.barh(row, group.mean_accept_length, height=0.6, color=COLORS[0], alpha=0.75)
            low, high = group.interval or (group.mean_accept_length,) * 2
            axes.plot((low, high), (row, row), color=INK, linewidth=1.5)
            axes.annotate(
                f"{group.mean_accept_length:.2f}",
                (max(high, group.mean_accept_length), row),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.axvline(1.0, color=INK, linewidth=1, linestyle=":")
        axes.set(xlabel="tokens per pass of the large model (1: plain)", xlim=(0, None))
        axes.margins(x=0.12)
        return _svg(figure)


def line_plot(
    xs: Sequence[int], curves: Mapping[str, Sequence[float]], *, xlabel: str, ylabel: str
) -> str:
    """Curves relative to 1."""
    with mpl.rc_context(STYLE):
        figure, axes = _axes(4.6, 2.8)
        for name, ys in curves.items():
            axes.plot(xs, ys, marker="o", markersize=3.5, label=_short(name))
        axes.axhline(1.0, color=INK, linewidth=1, linestyle=":")
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_ylim(0, 1.08 * max(1.0, *map(max, curves.values())))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid()
        if len(curves) > 1:
            axes.legend(ncols=2, fontsize=9)
        return _svg(figure)


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}\N{HORIZONTAL ELLIPSIS}"


def _axes(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _svg(figure: Figure) -> str:
    """Without the prologue and the fixed size: pages scale by the viewBox."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    return re.sub(r' id="[\w.]+_\d+"', "", svg)  # would repeat in the next plot of the page
