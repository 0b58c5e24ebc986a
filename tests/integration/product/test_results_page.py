"""The page of results says what the campaigns' files say."""

from __future__ import annotations

import json
import re
from pathlib import Path

from campaigns import results


def test_results_page_lists_every_result_and_finding() -> None:
    """A campaign may publish while others work, and its row be a little old; a finding is never left out of the page.

    If this fails: `python -m campaigns.results` makes the page anew.
    """
    told = (results.RESULTS / results.PAGE).read_text()
    rows = dict(re.findall(r"^\| \[(\S+)\]\(\S+\.json\) (.*)$", told, re.MULTILINE))
    files = {file.stem: json.loads(file.read_text()) for file in results.RESULTS.glob("*.json")}
    assert len(rows) > 5
    assert {*rows} <= {*files}, "the page tells of campaigns whose results are gone"
    for name, result in files.items():
        assert not result["findings"] or "finding" in rows.get(name, ""), name


def test_results_row_shows_findings_and_escapes_cells(tmp_path: Path) -> None:
    shape = {"campaign": "a", "about": "2|3 nodes", "code": "0123456789", "pieces": "1 of 2", "findings": ["lost 7"]}
    times = {"heal": {"count": 1, "p50 seconds": 0.5, "p99 seconds": 1.0, "max seconds": 1.0}}
    totals = {f"count {number}": 1000 * number for number in range(8)}
    (tmp_path / "a.json").write_text(json.dumps({**shape, "totals": totals, "times": times, "when": "2026-01-02"}))
    results.write(tmp_path)
    row = (tmp_path / results.PAGE).read_text().splitlines()[-1]
    assert row.startswith("| [a](a.json) | 2\\|3 nodes | 1 of 2 | **1 findings** | count 0 0; count 1 1,000; ")
    assert row.endswith("; 2 more | heal: p50 0.5 s, max 1 s | `01234567` | 2026-01-02 |")
