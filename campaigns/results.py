"""`python -m campaigns.results`: writes the page of results from the files in docs/results.

The page has one row for each file. A campaign that publishes its result updates the page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results"
PAGE = "README.md"
COUNTS_SHOWN = 6
_HEAD = """# Results

The findings of the long campaigns, one row for each campaign. `make prove` runs them all and resumes where it stopped;
`python -m campaigns --only NAME` runs one. This page is made by `python -m campaigns.results` from the files beside
it, which hold every number. *Code* is a hash over the sources that were run: a campaign whose code is not today's
speaks of an earlier state.

| campaign | what it does | pieces | found | counts | times | code | when |
|---|---|---|---|---|---|---|---|
"""


def page(folder: Path = RESULTS) -> str:
    return _HEAD + "".join(_row(json.loads(file.read_text())) for file in sorted(folder.glob("*.json")))


def write(folder: Path = RESULTS) -> None:
    (folder / PAGE).write_text(page(folder))


def _row(result: dict[str, Any]) -> str:
    found = "nothing" if not result["findings"] else f"**{len(result['findings'])} findings**"
    name = f"[{result['campaign']}]({result['campaign']}.json)"
    cells = (name, result["about"], result["pieces"], found, _counts(result["totals"]), _times(result.get("times", {})))
    shown = " | ".join(cell.replace("|", "\\|") for cell in cells)
    return f"| {shown} | `{result['code'][:8]}` | {result.get('when', '')} |\n"


def _counts(totals: dict[str, int]) -> str:
    """Format the first few counters; a simulation has dozens."""
    told = [f"{name} {count:,}" for name, count in totals.items()]
    more = f"; {len(told) - COUNTS_SHOWN} more" if len(told) > COUNTS_SHOWN else ""
    return "; ".join(told[:COUNTS_SHOWN]) + more


def _times(times: dict[str, dict[str, float]]) -> str:
    return "; ".join(
        f"{name}: p50 {one['p50 seconds']:g} s, max {one['max seconds']:g} s" for name, one in times.items()
    )


if __name__ == "__main__":
    write()
    print(f"{RESULTS / PAGE} is written")
