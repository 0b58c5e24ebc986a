"""Draws plots as inline SVG and HTML, for a page that loads nothing.

This module decides where lines, axes and labels are placed. It does not know what they mean. All text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from chaplain.core import Frozen

WIDTH, HEIGHT = 860, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 30, 12, 34
COLOURS = ("#2f6f9f", "#c8553d", "#4f8a4c", "#8a5a9e", "#b8862d", "#3d8f8f", "#8c564b", "#5b6770")

Point = tuple[float, float]
Name = Callable[[float], str]


class Series(Frozen, frozen=True):
    name: str
    points: Sequence[Point]


class VerticalMark(Frozen, frozen=True):
    """A vertical line at x, with a label at its top."""

    x: float
    word: str


def number(value: float) -> str:
    """Format a number briefly: 1.2 M, 35 k, 0.5."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _whole(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else ""


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers between `low` and `high`."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step)
    return [step * number for number in range(first, math.floor(high / step) + 1)]


class _Frame:
    """Maps values to coordinates of the drawing."""

    def __init__(self, points: Iterable[Point], from_zero: bool) -> None:
        listed = list(points) or [(0.0, 0.0)]
        xs, ys = [x for x, _ in listed], [y for _, y in listed]
        self.low_x, self.high_x = min(xs), max(xs)
        self.low_y = 0.0 if from_zero else min(ys)
        self.high_y = max(ys)
        if self.high_x == self.low_x:
            self.high_x = self.low_x + 1
        if self.high_y <= self.low_y:
            self.high_y = self.low_y + 1

    def x(self, value: float) -> float:
        return LEFT + (value - self.low_x) / (self.high_x - self.low_x) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.low_y) / (self.high_y - self.low_y) * (HEIGHT - TOP - BOTTOM)

    def axes(self, x_name: Name, y_name: Name, unit: str) -> str:
        parts = []
        for value in ticks(self.low_y, self.high_y):
            at = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
            parts.append(_text(LEFT - 6, at + 4, y_name(value), "end"))
        for value in ticks(self.low_x, self.high_x, 6):
            parts.append(_text(self.x(value), HEIGHT - BOTTOM + 16, x_name(value), "middle"))
        base = HEIGHT - BOTTOM
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
        parts.append(_text(LEFT, HEIGHT - 4, unit, "start"))
        return "".join(parts)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(title: str, inside: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title>{inside}</svg>"
    )


def legend(names: Sequence[str]) -> str:
    items = [
        f'<span><i style="background:{COLOURS[place % len(COLOURS)]}"></i>{escape(name)}</span>'
        for place, name in enumerate(names)
    ]
    return f'<p class="legend">{"".join(items)}</p>'


def lines(
    title: str,
    series: Sequence[Series],
    unit: str,
    x_name: Name,
    marks: Sequence[VerticalMark] = (),
    *,
    steps: bool = False,
    whole: bool = False,
) -> str:
    """Draw lines. With `steps`, a value is drawn until the next one; with `whole`, the y axis has only whole
    numbers.
    """
    frame = _Frame([point for one in series for point in one.points], from_zero=True)
    parts = [frame.axes(x_name, _whole if whole else number, unit)]
    for place, mark in enumerate(marks):
        at = frame.x(mark.x)
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(_text(at + 3, TOP + 10 + place % 3 * 13, mark.word, "start"))
    for place, one in enumerate(series):
        path = _path(frame, one.points, steps)
        parts.append(f'<path d="{path}" style="stroke:{COLOURS[place % len(COLOURS)]}"/>')
    names = [one.name for one in series]
    return _svg(title, "".join(parts)) + (legend(names) if len(names) > 1 else "")


def _path(frame: _Frame, points: Sequence[Point], steps: bool) -> str:
    pieces: list[str] = []
    for place, (x, y) in enumerate(points):
        at = f"{frame.x(x):.1f}"
        if not place:
            pieces.append(f"M{at},{frame.y(y):.1f}")
        else:
            pieces.append(f"H{at}V{frame.y(y):.1f}" if steps else f"L{at},{frame.y(y):.1f}")
    return "".join(pieces)


def dots(title: str, points: Sequence[Point], unit: str, x_name: Name, marks: Sequence[VerticalMark] = ()) -> str:
    """Draw a scatter plot, for data in which single values matter."""
    frame = _Frame(points, from_zero=True)
    parts = [frame.axes(x_name, number, unit)]
    for mark in marks:
        at = frame.x(mark.x)
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(_text(at + 3, TOP + 10, mark.word, "start"))
    parts += [f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="1.6"/>' for x, y in points]
    return _svg(title, "".join(parts))


def bars(title: str, rows: Sequence[tuple[str, float]], unit: str) -> str:
    """Draw a horizontal bar for each name, in the given order."""
    most = max((value for _, value in rows), default=0) or 1
    items = []
    for name, value in rows:
        share = 100 * value / most
        items.append(
            f"<tr><th>{escape(name)}</th><td class=bar><div style='width:{share:.2f}%'></div></td>"
            f"<td class=n>{escape(number(value))} {escape(unit)}</td></tr>"
        )
    return f'<table class="bars" aria-label="{escape(title, quote=True)}">{"".join(items)}</table>'
