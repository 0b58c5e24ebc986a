"""The page of `report`: it shows what it was given, loads nothing, and lets nothing through unescaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pyspark.sql import Row

from chaplain.pipeline.reporting import plots
from chaplain.pipeline.reporting.client_names import client_names
from chaplain.pipeline.reporting.page import Facts, RegimeSpan, ReportBucket, Share, page
from chaplain.pipeline.reporting.plots import Series, VerticalMark, number
from chaplain.pipeline.reporting.report import _shares, bucket_width
from chaplain.verification.violations import Break
from tests.spark.support.journal import NODE_TOML, recorded
from tests.spark.support.scene import Scene
from tests.spark.support.stage import put
from tests.support.execution_stage import Stage, pack

START = 1_700_000_000.0


def facts(stream: str = "orders", breaks: int = 0) -> Facts:
    buckets = [
        ReportBucket(stream, START + second, 100 + second, 10_000) for second in range(60) if not 30 <= second < 33
    ]
    buckets += [ReportBucket("audit", START + second, 10, 100) for second in range(0, 60, 2)]
    reigns = [RegimeSpan(1, START, START + 30, 3000), RegimeSpan(2, START + 33.2, START + 60, 2500)]
    clients = [
        Share("lane 1", stream, 4000, 400_000, START, START + 60),
        Share("lane 2", "audit", 300, 3000, START, START),
    ]
    nodes = [Share(f"node {node}", stream, 1000 * node, 100_000, START, START + 60) for node in (1, 2, 3)]
    found = [Break(stream, 7, "missing", "offset 7", "offset 9")] * breaks
    latencies = tuple((START + second / 10, 1.0 + second % 7) for second in range(600))
    promises = (("journal: lost", "0", "0", True), ("rate", "reported", "<fast>", False))
    return Facts(buckets, 1.0, reigns, clients, nodes, found, [(START + 30, 3.2)], latencies, promises)


class Reading(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{name}={value}" for name, value in attributes if name in ("src", "href", "srcset", "data")]

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def read(text: str) -> Reading:
    reading = Reading()
    reading.feed(text)
    return reading


def test_report_contains_all_sections_and_loads_nothing() -> None:
    text = page(facts())
    reading = read(text)
    for heading in (
        "Rates",
        "Latency",
        "Regimes and failovers",
        "Who wrote what",
        "Members",
        "Gaps",
        "Promised and found",
    ):
        assert heading in reading.text
    assert reading.tags.count("svg") == 3
    assert reading.loads == []
    assert not re.search(r"@import|url\((?!#)|<script|https?://", text)
    assert "3.200 s" in reading.text  # how long nobody was master
    assert "whole" in reading.text


def test_report_shows_the_number_of_violations() -> None:
    assert "2 breaks" in read(page(facts(breaks=2))).text


def test_names_in_reports_are_escaped() -> None:
    text = page(facts(stream="<img src=x onerror=alert(1)>"), title="<b>")
    assert "<img" not in text
    assert "<fast>" not in text
    assert "&lt;img" in text


def test_rate_is_zero_in_intervals_without_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Series] = []
    monkeypatch.setattr(
        "chaplain.pipeline.reporting.page.lines", lambda _title, series, *_rest, **_options: drawn.extend(series) or ""
    )
    page(facts())
    [orders] = [series for series in drawn if series.name == "orders"]
    assert len(orders.points) == 60
    assert [at - START for at, rate in orders.points if rate == 0] == [30, 31, 32]


def test_chart_draws_names_as_plain_text() -> None:
    marks = [VerticalMark(1.0, "$\\frac{1}{2}$ & <b>")]
    svg = plots.lines("a <chart>", [Series("one", [(0.0, 1.0), (2.0, 3.0)])], "unit", str, marks)
    assert "$\\frac{1}{2}$ &amp; &lt;b&gt;" in svg
    assert 'aria-label="a &lt;chart&gt;"' in svg


def test_chart_accepts_one_point_and_none() -> None:
    assert plots.dots("one", [(5.0, 1.0)], "unit", str).startswith("<svg")
    assert plots.lines("none", [], "unit", str).startswith("<svg")


def test_many_marks_are_drawn_and_some_are_labelled() -> None:
    marks = [VerticalMark(float(place), f"regime {place}.") for place in range(100)]
    svg = plots.lines("marks", [Series("one", [(0.0, 1.0), (100.0, 3.0)])], "unit", str, marks)
    assert [place for place in range(100) if f">regime {place}.<" in svg] == list(range(0, 100, 9))


def test_times_of_writers_have_a_date() -> None:
    assert read(page(facts())).text.count("2023-11-14 22:14:20") >= 4


def test_writers_are_shown_by_name(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 1)
    scene.write()
    names = client_names("", scene.segments)
    assert names == {1: "default", 2: "bob", 3: "default"} == client_names(tmp_path, "")
    columns = Row("topic", "client_id", "rows", "octets", "first", "last")
    grouped = [columns("orders", lane, lane, 10, 0, lane) for lane in (1, 2, 3, 9)]
    shares = _shares(grouped, "client_id", "lane", names)
    assert [(one.who, one.rows) for one in shares] == [("bob", 2), ("default", 4), ("lane 9", 9)]


def test_lane_that_was_leased_after_a_write_has_a_name(tmp_path: Path) -> None:
    stage = Stage()
    first = stage.lane(1)
    stage.write(pack(first, 1))
    second = stage.lane(2)
    stage.write(pack(second, 1))
    segments = put(tmp_path / "node-1" / "segments", recorded(stage))
    (segments.parent / "node.toml").write_text(NODE_TOML)
    assert client_names("", segments) == {first: "default", second: "default"}


def test_numbers_and_bucket_widths_are_readable() -> None:
    assert [number(value) for value in (0.5, 12, 1500, 2_500_000)] == ["0.5", "12", "1.5 k", "2.5 M"]
    assert [number(value) for value in (999, 999.7, 999_700, 5e12)] == ["999", "1 k", "1 M", "5000 G"]
    assert [bucket_width(span) for span in (0, 60, 3600, 86400 * 365)] == [0.1, 0.5, 50, 500_000]
