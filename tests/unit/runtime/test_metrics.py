from __future__ import annotations

import re
from pathlib import Path

import chaplain
from chaplain.runtime.http.server import exposition
from chaplain.runtime.metrics import COUNTERS, GAUGES, PREFIXES, help_of, page

SOURCE = Path(chaplain.__file__).parent
PAGE = Path(__file__).parents[3] / "docs/reference/metrics.md"
COUNTED = re.compile(r'counts\["(\w+)"\] (?:\+?=)')
LAYERS = {
    layer: layer for layer in ("link", "mesh", "gossip", "executor", "sequence", "graph", "node", "client_service")
}
LAYERS |= {"runtime": ""}
"""The prefix of a package's counters, by package."""


def counted() -> set[str]:
    """Return the names of all counters in the sources, as monitoring sees them."""
    found: set[str] = set()
    for folder, prefix in LAYERS.items():
        for file in (SOURCE / folder).rglob("*.py"):
            layer = "recorder" if file.name == "recorder.py" else prefix
            for name in COUNTED.findall(file.read_text()):
                found.add(name if not layer or name.startswith(f"{layer}_") else f"{layer}_{name}")
    return found


def test_every_counter_has_a_help_text() -> None:
    assert counted() - COUNTERS.keys() == set()


def test_every_help_text_belongs_to_a_counter() -> None:
    complaints = {
        f"mesh_{event.replace(' ', '_')}" for event in re.findall(r'_report\(session, "([a-z ]+)"', inbound_source())
    }
    assert COUNTERS.keys() - counted() - complaints == set()
    assert complaints <= COUNTERS.keys()


def inbound_source() -> str:
    return (SOURCE / "mesh" / "inbound.py").read_text()


def test_help_texts_are_unique() -> None:
    lines = [*COUNTERS.values(), *PREFIXES.values()]
    assert len(set(lines)) == len(lines)
    assert len(set(GAUGES.values())) == len(GAUGES)


def test_prometheus_output_has_names_and_help_texts() -> None:
    shown = exposition({"link_admitted": 1, "gossip_members_left": 2, "graph_refused_a_lie": 3}, {"peers": 2}).decode()
    for name in ("link_admitted", "gossip_members_left", "graph_refused_a_lie"):
        assert f"# HELP chaplain_{name}_total {help_of(name)}\n" in shown
    assert f"# HELP chaplain_peers {GAUGES['peers']}\n" in shown


def test_metrics_page_lists_every_metric() -> None:
    assert PAGE.read_text().endswith(page())
