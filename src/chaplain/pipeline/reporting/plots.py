"""Charts of the report as inline SVG, drawn by matplotlib.

The report is one HTML file that loads nothing, so every chart is returned as text without links or namespaces. Names
of streams and nodes come from outside: they are drawn as plain text, never as mathematical notation or markup.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from chaplain.core import Frozen

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN, HEIGHT_IN = 9.0, 2.6
COLOURS = ("#2f6f9f", "#c8553d", "#4f8a4c", "#8a5a9e", "#b8862d", "#3d8f8f", "#8c564b", "#5b6770")
NEUTRAL = "#7d8891"
"""Readable on white and on black: the page follows the reader's colour scheme, a chart cannot."""
MARK_ROWS = 3
"""Labels of neighbouring vertical marks use this many heights in turn, so that they do not cover each other."""
MARKS_MAX = 12
"""Of more vertical marks, only as many at equal distances are labelled."""
ROUNDED_UP = 0.9995
"""From this share of a unit on, three digits show the unit: 999.6 is 1 k, not 1e+03."""
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))

Point = tuple[float, float]
Format = Callable[[float], str]


class Series(Frozen, frozen=True):
    """One line of a chart."""

    name: str
    points: Sequence[Point]


class VerticalMark(Frozen, frozen=True):
    """A vertical line at `x` with a label at its top."""

    x: float
    word: str


def number(value: float) -> str:
    """Format a number with three significant digits and a unit prefix: 1.2 M, 35 k, 0.5."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size * ROUNDED_UP:
            scaled = value / size
            return f"{scaled:.0f}{unit}" if abs(scaled) >= 1e3 * ROUNDED_UP else f"{scaled:.3g}{unit}"
    return f"{value:.3g}"


def lines(
    title: str,
    series: Sequence[Series],
    unit: str,
    x_format: Format,
    marks: Sequence[VerticalMark] = (),
    *,
    steps: bool = False,
    whole: bool = False,
) -> str:
    """Draw a line for each series.

    With `steps`, a value stays the same until the next point. With `whole`, the y axis has whole numbers only.
    """
    with _chart(title, unit, x_format, marks, whole=whole) as (axes, svg):
        for place, one in enumerate(series):
            style = "steps-post" if steps else "default"
            axes.plot(*_columns(one.points), color=COLOURS[place % len(COLOURS)], linewidth=1.2, drawstyle=style)
    names = [one.name for one in series]
    return svg.getvalue() + (_legend(names) if len(names) > 1 else "")


def dots(title: str, points: Sequence[Point], unit: str, x_format: Format, marks: Sequence[VerticalMark] = ()) -> str:
    """Draw a dot for each point."""
    with _chart(title, unit, x_format, marks) as (axes, svg):
        axes.plot(*_columns(points), linestyle="", marker=".", markersize=3, color=COLOURS[0], alpha=0.55)
    return svg.getvalue()


def bars(title: str, rows: Sequence[tuple[str, float]], unit: str) -> str:
    """Draw a horizontal bar for each row, as an HTML table: names stay selectable and wrap with the page."""
    most = max((value for _, value in rows), default=0) or 1
    items = []
    for name, value in rows:
        share = 100 * value / most
        items.append(
            f"<tr><th>{escape(name)}</th><td class=bar><div style='width:{share:.2f}%'></div></td>"
            f"<td class=n>{escape(number(value))} {escape(unit)}</td></tr>"
        )
    return f'<table class="bars" aria-label="{escape(title, quote=True)}">{"".join(items)}</table>'


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _legend(names: Sequence[str]) -> str:
    items = [
        f'<span><i style="background:{COLOURS[place % len(COLOURS)]}"></i>{escape(name)}</span>'
        for place, name in enumerate(names)
    ]
    return f'<p class="legend">{"".join(items)}</p>'


@contextmanager
def _chart(
    title: str, unit: str, x_format: Format, marks: Sequence[VerticalMark], *, whole: bool = False
) -> Iterator[tuple[Axes, io.StringIO]]:
    """Yield axes to draw on and the text that contains the SVG once the block has ended."""
    # Spark's Python workers import this package as well, and draw nothing.
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: PLC0415

    svg = io.StringIO()
    # Fonts are the page's own, so texts stay texts. The salt keeps ids of different charts on one page apart.
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": f"chart {title}", "text.parse_math": False, "font.size": 8}
    with mpl.rc_context(options):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        yield axes, svg
        axes.patch.set_alpha(0)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(unit, color=NEUTRAL)
        axes.grid(axis="y", color=NEUTRAL, alpha=0.35, linewidth=0.5)
        axes.tick_params(colors=NEUTRAL)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(NEUTRAL)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=whole))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: x_format(value)))
        for place, mark in enumerate(marks):
            axes.axvline(mark.x, color=COLOURS[1], linestyle="--", linewidth=0.8)
            every = -(-len(marks) // MARKS_MAX)
            if place % every:
                continue
            height = 1 - 0.08 * (place // every % MARK_ROWS)
            axes.annotate(
                mark.word,
                (mark.x, height),
                xycoords=("data", "axes fraction"),
                xytext=(3, -8),
                textcoords="offset points",
                color=NEUTRAL,
            )
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata=_NO_METADATA)
    svg.write(_inline(drawn.getvalue(), title))


def _inline(document: str, title: str) -> str:
    """Turn an SVG document into an element of an HTML page: without prolog, namespaces and fixed size."""
    element = document[document.index("<svg") :].rstrip()
    element = re.sub(r'\sxmlns(?::\w+)?="[^"]*"', "", element, count=2)
    element = re.sub(r'\s(?:width|height|version)="[^"]*"', "", element, count=3)
    return element.replace("<svg", f'<svg role="img" aria-label="{escape(title, quote=True)}"', 1)
