"""Renders the HTML page of `report` from the gathered facts.

This module decides what the page shows. It does not know where the facts come from. The page is self-contained: it
loads no style sheets, scripts or images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape

from chaplain.core import Frozen
from chaplain.pipeline.reporting.plots import Series, VerticalMark, bars, dots, lines, number
from chaplain.verification.violations import FIELDS, Break


class ReportBucket(Frozen, frozen=True):
    """The messages and octets written to one stream in one time interval."""

    stream: str
    start_s: float
    rows: int
    octets: int


class RegimeSpan(Frozen, frozen=True):
    """One regime (term), from its first message to its last."""

    regime: int
    first_s: float
    last_s: float
    rows: int


class Share(Frozen, frozen=True):
    """The messages and octets that one client, or one node, wrote to one stream."""

    who: str
    """Name of the client, or its lane if no log is given that contains the name."""
    stream: str
    rows: int
    octets: int
    first_s: float
    last_s: float


class Facts(Frozen, frozen=True):
    """Everything that the page shows."""

    buckets: list[ReportBucket]
    bucket_s: float
    """The length of an interval."""
    regimes: list[RegimeSpan]
    clients: list[Share]
    nodes: list[Share]
    breaks: list[Break]
    pauses: list[tuple[float, float]]
    """The longest intervals without a message: start time and duration in seconds."""
    latencies: tuple[tuple[float, float], ...] = ()
    """Time of each acknowledgement and the write's latency in milliseconds. Only the writer can measure them."""
    promises: tuple[tuple[str, str, str, bool], ...] = ()
    """Name of a promise, the promised value, the value found, and whether the promise was kept."""


BRIEF_S = 10.0
DAY_S = 86_400.0
_STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6770;--paper:#fff;--line:#d8dee4;--good:#2f7d4f;--bad:#b3402e}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#9aa5ae;--paper:#14181d;--line:#313942;--good:#6cc08b;
--bad:#ef8271}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:900px;margin:2.5rem auto;
padding:0 1.2rem}
h1{font-size:1.7rem;margin:0}h2{font-size:1.15rem;margin:2.4rem 0 .4rem;border-top:1px solid var(--line);
padding-top:1.2rem}
p{margin:.3rem 0 .8rem;color:var(--soft)}svg{width:100%;height:auto;display:block}
svg text{font-family:system-ui,sans-serif}
.legend span{margin-right:1.2rem;font-size:.85rem}.legend i{display:inline-block;width:.8em;height:.8em;
margin-right:.4em;border-radius:2px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(125px,1fr));gap:.8rem;margin:1.4rem 0}
.tiles div{border:1px solid var(--line);border-radius:8px;padding:.7rem .9rem}.tiles b{display:block;font-size:1.35rem}
.tiles span{color:var(--soft);font-size:.8rem}
table{border-collapse:collapse;width:100%;font-size:.87rem}th{text-align:left;font-weight:600}
td,th{padding:.3rem .5rem;border-bottom:1px solid var(--line);vertical-align:top}.n{text-align:right;white-space:nowrap}
.bars th{width:20%;font-weight:400}.bars .bar{width:60%}
.bars .bar div{background:#2f6f9f;height:.85rem;border-radius:2px;min-width:1px}
.good{color:var(--good)}.bad{color:var(--bad)}code{font-size:.85em;word-break:break-all}
"""


def page(facts: Facts, title: str = "Streams") -> str:
    sections = [
        _head(facts, title),
        _promises(facts),
        _rates(facts),
        _latency(facts),
        _regimes(facts),
        _writers(facts),
        _members(facts),
        _gaps(facts),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"{''.join(sections)}</body></html>\n"
    )


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S}"


def _ticking(facts: Facts) -> Callable[[float], str]:
    """Return a function that formats times, as precisely as the plotted time span needs."""
    times = [one.start_s for one in facts.buckets]
    span_s = max(times) - min(times) if times else 0
    if span_s > DAY_S:
        return lambda seconds: f"{datetime.fromtimestamp(seconds, UTC):%m-%d %H:%M}"
    if span_s > BRIEF_S:
        return _clock
    return lambda seconds: f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S.%f}"[:-5]


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def _head(facts: Facts, title: str) -> str:
    rows, octets = sum(one.rows for one in facts.buckets), sum(one.octets for one in facts.buckets)
    times = [span.first_s for span in facts.regimes] + [span.last_s for span in facts.regimes]
    span = f"{_moment(min(times))} to {_moment(max(times))} UTC" if times else "nothing has landed yet"
    count = len(facts.breaks)
    broken = f'<b class="bad">{count} break{"s" if count > 1 else ""}</b>'
    whole = broken if count else '<b class="good">whole</b>'
    tiles = [
        (f"<b>{number(rows)}</b>", "messages"),
        (f"<b>{number(octets)}B</b>", "of values"),
        (f"<b>{len({one.stream for one in facts.buckets})}</b>", "streams"),
        (f"<b>{len({one.who for one in facts.clients})}</b>", "writers"),
        (f"<b>{max(0, len(facts.regimes) - 1)}</b>", "changes of master"),
        (whole, "as proven from the rows"),
    ]
    listed = "".join(f"<div>{value}<span>{name}</span></div>" for value, name in tiles)
    return f"<h1>{escape(title)}</h1><p>{span}</p><div class=tiles>{listed}</div>"


def _promises(facts: Facts) -> str:
    if not facts.promises:
        return ""
    rows = "".join(
        f"<tr><td>{escape(promise)}</td><td>{escape(promised)}</td><td>{escape(found)}</td>"
        f'<td class="{"good" if kept else "bad"}">{"kept" if kept else "broken"}</td></tr>'
        for promise, promised, found, kept in facts.promises
    )
    return f"<h2>Promised and found</h2><table><tr><th>promise<th>promised<th>found<th></tr>{rows}</table>"


def _failovers(facts: Facts) -> list[VerticalMark]:
    return [VerticalMark(span.first_s, f"regime {span.regime}") for span in facts.regimes[1:]]


def _rates(facts: Facts) -> str:
    streams = sorted({one.stream for one in facts.buckets})
    series = [Series(name, _filled(facts, name)) for name in streams]
    plot = lines("Messages a second", series, "messages a second", _ticking(facts), _failovers(facts))
    return f"<h2>Rates</h2><p>Messages a second, in intervals of {facts.bucket_s:g} s.</p>{plot}"


def _filled(facts: Facts, stream: str) -> list[tuple[float, float]]:
    """Return the rate in each interval; intervals without a message have rate 0."""
    mine = {one.start_s: one.rows for one in facts.buckets if one.stream == stream}
    starts = [one.start_s for one in facts.buckets]
    count = round((max(starts) - min(starts)) / facts.bucket_s) + 1
    times = [min(starts) + facts.bucket_s * place for place in range(count)]
    nearest = {round((start - min(starts)) / facts.bucket_s): rows for start, rows in mine.items()}
    return [(at, nearest.get(place, 0) / facts.bucket_s) for place, at in enumerate(times)]


def _latency(facts: Facts) -> str:
    if not facts.latencies:
        return ""
    ranked = sorted(value for _, value in facts.latencies)
    p50, p99 = (ranked[min(len(ranked) - 1, int(share * len(ranked)))] for share in (0.5, 0.99))
    words = f"From a write to its receipt: p50 {p50:.2f} ms, p99 {p99:.2f} ms, most {ranked[-1]:.1f} ms."
    plot = dots("Latency", facts.latencies, "milliseconds", _ticking(facts), _failovers(facts))
    return f"<h2>Latency</h2><p>{words}</p>{plot}"


def _regimes(facts: Facts) -> str:
    points = [(at, float(span.regime)) for span in facts.regimes for at in (span.first_s, span.last_s)]
    plot = lines("Regime", [Series("regime", points)], "regime", _ticking(facts), steps=True, whole=True)
    rows = []
    for before, span in zip([None, *facts.regimes], facts.regimes, strict=False):
        gap = "" if before is None else f"{span.first_s - before.last_s:.3f} s"
        rows.append(
            f"<tr><td>{span.regime}<td>{_moment(span.first_s)}<td>{_moment(span.last_s)}"
            f"<td class=n>{span.rows:,}<td class=n>{gap}</tr>"
        )
    head = "<tr><th>regime<th>first message<th>last message<th class=n>messages<th class=n>since the one before</tr>"
    words = (
        "A new regime is a new master. Only regimes with messages in these tables are shown. The last column is the"
        " time from the last message of one regime to the first of the next: the failover and the wait for a write."
    )
    return f"<h2>Regimes and failovers</h2><p>{words}</p>{plot}<table>{head}{''.join(rows)}</table>"


def _shares(shares: Sequence[Share], who: str) -> str:
    rows = "".join(
        f"<tr><td>{escape(one.who)}<td>{escape(one.stream)}<td class=n>{one.rows:,}<td class=n>{number(one.octets)}B"
        f"<td>{_moment(one.first_s)}<td>{_moment(one.last_s)}</tr>"
        for one in sorted(shares, key=lambda one: -one.rows)[:50]
    )
    head = f"<tr><th>{who}<th>stream<th class=n>messages<th class=n>values<th>first<th>last</tr>"
    return f"<table>{head}{rows}</table>"


def _writers(facts: Facts) -> str:
    plot = bars("Who wrote what", _totals(facts.clients), "messages")
    return f"<h2>Who wrote what</h2>{plot}{_shares(facts.clients, 'client')}"


def _totals(shares: Sequence[Share]) -> list[tuple[str, float]]:
    totals: dict[str, float] = {}
    for one in shares:
        totals[one.who] = totals.get(one.who, 0) + one.rows
    return sorted(totals.items(), key=lambda pair: -pair[1])[:20]


def _members(facts: Facts) -> str:
    plot = bars("Members", _totals(facts.nodes), "messages taken")
    return f"<h2>Members</h2><p>The nodes that accepted the messages.</p>{plot}{_shares(facts.nodes, 'node')}"


def _gaps(facts: Facts) -> str:
    if facts.breaks:
        rows = "".join(
            "<tr>" + "".join(f"<td><code>{escape(str(getattr(one, name)))}</code>" for name in FIELDS) + "</tr>"
            for one in facts.breaks
        )
        found = f"<table><tr>{''.join(f'<th>{name}' for name in FIELDS)}</tr>{rows}</table>"
    else:
        found = '<p class="good">No offset is missing or repeated, and every pack matches its digest.</p>'
    pauses = "".join(f"<tr><td>{_moment(at)}<td class=n>{seconds:.3f} s</tr>" for at, seconds in facts.pauses)
    quiet = (
        f"<p>The longest times in which nothing was written to any of these streams.</p>"
        f"<table><tr><th>last message before<th class=n>pause</tr>{pauses}</table>"
        if pauses
        else ""
    )
    return f"<h2>Gaps</h2>{found}{quiet}"
