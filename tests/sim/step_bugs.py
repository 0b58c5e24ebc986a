"""One-line bugs that step tests must catch: `python -m tests.sim.step_bugs [NAME]`.

For rules that no simulator workload exercises. A bug is planted in memory, in a process of its own, before its module
is loaded. It is caught if one of its tests fails; tests of the bugs' texts are left out, since they notice every
mutation of a line and say nothing about behaviour.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from simulator.mutate import Bug, install

ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 600


def _bug(name: str, module: str, old: str, new: str, *expected: str) -> Bug:
    """With the file of the tests that catch it, and a word of their names."""
    return Bug(name, f"chaplain.{module}", old, new, "", expected)


BUGS = [
    _bug(
        "accept malformed headers",
        "journal.ingest.admission",
        "if event.raw[COLUMNS_AT] & HEADERS:",
        "if False:",
        "tests/journal/test_ingest.py",
        "malformed_headers",
    ),
    _bug(
        "do not compare the names of headers",
        "segment.headers",
        "if bool((before > after).any()):",
        "if False:",
        "tests/segment/test_segment_headers.py",
        "malformed_cell",
    ),
    _bug(
        "stop at malformed headers whatever was asked",
        "pipeline.source.rows",
        "if fail_on_headers:",
        "if True:",
        "tests/pipeline/test_pipeline_tables.py",
        "malformed_headers",
    ),
    _bug(
        "give every segment the set size",
        "segment.write",
        "max(self._settings.segment_bytes, needed_bytes + -needed_bytes % PAGE_BYTES)",
        "self._settings.segment_bytes",
        "tests/segment/test_segment_write.py",
        "larger_than_a_segment",
    ),
    _bug(
        "refuse payloads that others take",
        "journal.consensus.core",
        "settings.payload_bytes_max:",
        "settings.payload_bytes_bound:",
        "tests/journal/test_order_steps.py",
        "larger_than_a_nodes_segments",
    ),
    _bug(
        "take a first broadcast of an unknown author",
        "graph.admission",
        "if first and event.author not in context.known:",
        "if False:",
        "tests/graph/test_graph_steps.py",
        "is_no_member",
    ),
    _bug(
        "take the child of a held event",
        "graph.admission",
        "return max(own_ns, *(self.future.due_ns(link.id) for link in event.links), 0)",
        "return max(own_ns, 0)",
        "tests/graph/test_graph_steps.py",
        "waits_with_it",
    ),
    _bug(
        "count a pack at the cut of two files as one always",
        "pipeline.verification.table_check",
        "cut = HASH_BYTES if last.digests[-HASH_BYTES:] == more.digests[:HASH_BYTES] else 0",
        "cut = HASH_BYTES",
        "tests/pipeline/test_pipeline_tables.py",
        "cut_within_packs",
    ),
    _bug(
        "name a damaged pack by its first offset alone",
        "pipeline.verification.batches",
        "self._damaged(plan.stream, first, part, last)",
        "self._damaged(plan.stream, first, part)",
        "tests/pipeline/test_pipeline_pinpoint.py",
        "flipped_bit_in_a_value",
    ),
    _bug(
        "do not look at another node's copy",
        "pipeline.verification.record_reader",
        "if not self._folders or",
        "if True or",
        "tests/pipeline/test_pipeline_pinpoint.py",
        "flipped_bit_in_a_value",
    ),
    _bug(
        "discard unread frames of a lost connection",
        "link.zmq.dealer",
        "dealer.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)",
        "dealer.setsockopt(zmq.RECONNECT_IVL, -1)",
        "tests/runtime/test_sockets.py",
        "slow_reader",
    ),
]


def judge(bug: Bug) -> str:
    """Empty if a test caught it; else what happened instead."""
    command = [sys.executable, "-m", "tests.sim.step_bugs", bug.name]
    run = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, cwd=ROOT)
    if run.returncode == 1 and "failed" in run.stdout:
        return ""
    return f"{bug.name}: exit code {run.returncode}: {(run.stdout + run.stderr)[-500:]}"


def main(name: str | None = None) -> int:
    if name is None:
        missed = [why for why in map(judge, BUGS) if why]
        print("\n".join(missed) or f"all {len(BUGS)} are caught")
        return len(missed)
    import pytest

    bug = next(bug for bug in BUGS if bug.name == name)
    install(bug)
    file, words = bug.expected
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not planted_texts"]
    return int(pytest.main([str(ROOT / file), "-k", words, *options]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
