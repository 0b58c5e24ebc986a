"""`make prove`: runs test campaigns that take hours and can be resumed.

The progress is written to `.prove/` after every piece, so that an interrupted campaign resumes where it stopped. A
change of the code that the campaign runs restarts it. Results are written to `docs/results/<campaign>.json`; an
incomplete campaign can resume from there, too. The exit code is 1 if any campaign has findings.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from campaigns import results
from campaigns.campaign import Campaign, Report
from campaigns.campaigns import CAMPAIGNS
from campaigns.fingerprint import ROOT, fingerprint
from tests.support.process_cluster import MEASURED

STATE = ROOT / ".prove"
RESULTS = ROOT / "docs" / "results"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m campaigns", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="only this campaign; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a slice of each, kept out of the results")
    parser.add_argument("--jobs", type=int, default=2, help="processes to use (2)")
    parser.add_argument("--list", action="store_true", help="say what there is")
    options = parser.parse_args()
    os.environ[MEASURED] = "1"
    known = {campaign.name: campaign for campaign in CAMPAIGNS}
    unknown = [name for name in options.only or [] if name not in known]
    if unknown:
        parser.error(f"no campaign {', '.join(unknown)}; there are: {', '.join(known)}")
    chosen = [known[name] for name in options.only or known]
    if options.list:
        for campaign in chosen:
            print(f"{campaign.name:16} {campaign.about}")
        return 0
    return max([prove(campaign, quick=options.quick, jobs=options.jobs) for campaign in chosen], default=0)


def prove(campaign: Campaign, *, quick: bool, jobs: int) -> int:
    pieces = campaign.pieces(quick)
    notes = Notes(campaign.name + ("-quick" if quick else ""), fingerprint(campaign.loads))
    left = [piece for piece in pieces if piece not in notes.done]
    print(f"{campaign.name}: {campaign.about}; {len(left)} of {len(pieces)} pieces to do", flush=True)
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(timed, campaign.name, piece): piece for piece in left}
        for count, future in enumerate(as_completed(running), len(pieces) - len(left) + 1):
            report, seconds = future.result()
            notes.add(running[future], report, seconds)
            for finding in report.findings:
                print(f"  FOUND {finding}", flush=True)
            print(f"  {count}/{len(pieces)} {running[future]} {seconds:.1f} s", flush=True)
            if not quick:
                notes.publish(campaign, len(pieces))  # publish the progress, in case the campaign is interrupted
    found = notes.findings
    if not quick:
        notes.publish(campaign, len(pieces))
    print(f"{campaign.name}: {'all well' if not found else f'{len(found)} findings'}", flush=True)
    return 1 if found else 0


def timed(name: str, piece: str) -> tuple[Report, float]:
    campaign = next(campaign for campaign in CAMPAIGNS if campaign.name == name)
    began = time.perf_counter()
    report = campaign.run(piece)
    return report, time.perf_counter() - began


class Notes:
    """The progress of one campaign, for one version of the code."""

    def __init__(self, name: str, code: str) -> None:
        STATE.mkdir(exist_ok=True)
        (STATE / ".gitignore").write_text("*\n")
        self._path = STATE / f"{name}.json"
        self._code = code
        held = self._held(self._path) or self._held(RESULTS / f"{name}.json")
        self.done: list[str] = held.get("done", [])
        self.totals: Counter[str] = Counter(held.get("totals", {}))
        self.findings: list[str] = held.get("findings", [])
        self.seconds: float = held.get("seconds", 0.0)
        self.times_s: dict[str, list[float]] = held.get("times_s", {})

    def _held(self, path: Path) -> dict[str, Any]:
        """Read progress that was stored or published for the same version of the code."""
        held = json.loads(path.read_text()) if path.exists() else {}
        return held if held.get("code") == self._code and "done" in held else {}

    def add(self, piece: str, report: Report, seconds: float) -> None:
        self.done.append(piece)
        self.totals.update(report.done)
        self.findings += report.findings
        self.seconds += seconds
        for name, times_s in report.times_s.items():
            self.times_s.setdefault(name, []).extend(times_s)
        held = {"code": self._code, "done": self.done, "totals": self.totals, "findings": self.findings}
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({**held, "seconds": self.seconds, "times_s": self.times_s}))
        fresh.replace(self._path)

    def publish(self, campaign: Campaign, pieces: int) -> None:
        RESULTS.mkdir(parents=True, exist_ok=True)
        result: dict[str, Any] = {
            "campaign": campaign.name,
            "about": campaign.about,
            "code": self._code,
            "when": time.strftime("%Y-%m-%d", time.gmtime()),
            "pieces": f"{len(self.done)} of {pieces}",
            "seconds of all pieces": round(self.seconds),
            "findings": self.findings,
            "totals": dict(sorted(self.totals.items())),
        }
        if len(self.done) < pieces:  # so that the campaign can resume on any machine that has these files
            result |= {"done": self.done, "seconds": self.seconds, "times_s": self.times_s}
        if self.times_s:
            result["times"] = {name: spread(times_s) for name, times_s in sorted(self.times_s.items())}
        (RESULTS / f"{campaign.name}.json").write_text(json.dumps(result, indent=2) + "\n")
        results.write(RESULTS)


def spread(times_s: list[float]) -> dict[str, float]:
    """Return quantiles of durations."""
    ranked = sorted(times_s)
    rank = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    found = {f"{name} seconds": round(ranked[math.ceil(share * len(ranked)) - 1], 3) for name, share in rank.items()}
    return {"count": len(ranked), **found}


if __name__ == "__main__":
    sys.exit(main())
