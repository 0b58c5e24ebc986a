"""The console in a real browser, beside three real nodes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaplain import Client
from tests.support.process_cluster import PATIENCE_S, PROGRAM, Cluster, running, until
from tests.unit.console.browser import Browser, browsing, missing

pytestmark = [pytest.mark.timeout(240), pytest.mark.root, pytest.mark.skipif(bool(missing()), reason=missing())]

OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
LOW_CONTRAST = """
  const channel = (v) => (v /= 255, v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (text) => text.match(/[0-9.]+/g).map(Number);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  const found = [];
  for (const e of document.querySelectorAll("h1,h2,h3,dt,dd,th,td,p,li,time,footer,.mark")) {
    if (!e.innerText || !e.offsetParent) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${e.tagName} ${e.innerText.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return found;
"""
UNLABELLED = """
  const named = (e) => (e.innerText || "").trim() || e.getAttribute("aria-label")
    || document.getElementById(e.getAttribute("aria-labelledby"));
  return [...document.querySelectorAll("section,[role=region],[role=img],a,button,[tabindex='0']")]
    .filter((e) => !e.hidden && !e.closest("[hidden]") && !named(e)).map((e) => e.outerHTML.slice(0, 80));
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("console") / "three", 3) as started:
        yield started


@pytest.fixture(scope="module")
def address(cluster: Cluster) -> Iterator[str]:
    command = [*PROGRAM, "console", "--cluster", str(cluster.directory), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
    assert found is not None
    yield found[0]
    process.terminate()
    process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def browser(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as started:
        started.open(address)
        started.wait(lambda: started.text("up") == "3 of 3", 20, "three nodes are shown as up")
        yield started


def test_written_streams_appear_with_their_heads(browser: Browser, cluster: Cluster) -> None:
    with Client.connect(cluster.directory, timeout=PATIENCE_S) as client:
        client.journal("<b>orders</b>").write_many([b"x"] * 7)
    browser.wait(lambda: "<b>orders</b>\t7" in browser.text("stream-list"), 5, "the stream is shown, its name as text")


@pytest.mark.parametrize("width", [1200, 400])
def test_console_page_fits_and_is_labelled(browser: Browser, width: int, tmp_path: Path) -> None:
    browser.resize(width, 1000)
    assert browser.run(OVERFLOW) <= 0
    assert browser.run(LOW_CONTRAST) == []
    assert browser.run(UNLABELLED) == []
    assert browser.run("return document.documentElement.lang") == "en"
    browser.screenshot(tmp_path / f"console-{width}.png")


def test_scrollable_regions_are_reachable_by_keyboard(browser: Browser) -> None:
    browser.run("document.activeElement.blur()")
    reached = [browser.press_tab() for _ in range(8)]
    assert "Skip to the nodes" in reached[0]
    for region in ("streams", "views", "sequence", "clients"):
        assert any(f'aria-labelledby="{region}"' in one for one in reached), (region, reached)


def test_killed_node_is_shown_as_down_within_three_seconds(browser: Browser, cluster: Cluster) -> None:
    until(lambda: browser.text("master").startswith("node "), "a master is shown")
    victim = int(browser.text("master").removeprefix("node "))
    cluster.nodes[victim].kill()
    browser.wait(lambda: browser.text("up") == "2 of 3", 3, f"node {victim} is shown as down")
    assert browser.run(f"return document.getElementById('node-{victim}').dataset.up") == "false"
    until(lambda: browser.text("master") not in ("none", f"node {victim}"), "another master is shown")
    until(lambda: f"node {victim} is down" in browser.text("happening-list"), "what happened is told")
    assert browser.errors() == []
