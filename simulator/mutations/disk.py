"""One-line mutations of how a node deals with its disk: what it reads back at a start, and what it syncs."""

from __future__ import annotations

from simulator.mutate import Bug

_BY = ("order", "assert", "host contract")


def _seeds(name: str, module: str, old: str, new: str, seeds: int = 600) -> Bug:
    return Bug(name, f"chaplain.{module}", old, new, "order", _BY, seeds)


def _tests(name: str, module: str, old: str, new: str, *tests: str) -> Bug:
    return Bug(name, f"chaplain.{module}", old, new, "", ("test",), tests=tests)


_LOSS = "tests/unit/journal/storage/test_proven_loss.py"
_SYNCS = "tests/unit/journal/storage/test_syncs.py"
_UNREADABLE = "tests/unit/journal/storage/test_unreadable_sectors.py"

BUGS = [
    _seeds(
        "do not compare the end of the log with the jot",
        "journal.storage.recovery",
        "_lost(hint, records) or _cut_short(survey, cut, hint, boot) or _headless(",
        "_lost(hint, records) or _headless(",
    ),
    _seeds(
        "trust the page cache after a failed sync",
        "journal.consensus.core",
        "        context.barrier.write(context.log.rewrite(found.unproven))\n",
        "",
    ),
    _tests(
        "compare the end of the log with a jot of another boot",
        "journal.storage.recovery",
        "    if hint is None or hint.boot != boot:\n",
        "    if hint is None:\n",
        _LOSS,
    ),
    _tests(
        "write the unproven end of the log again without its header",
        "journal.storage.recovery",
        "start = 0 if proven <= header.records_start else proven - header.base",
        "start = max(proven, header.records_start) - header.base",
        _SYNCS,
    ),
    _tests(
        "take a damaged jot for none",
        "journal.storage.recovery",
        "        return None, str(wrong)\n",
        '        return None, "" and str(wrong)\n',
        _LOSS,
    ),
    _tests(
        "go on with those who lost records as after a power cut",
        "journal.consensus.vote_recovery",
        "torn = {VotingState.SOUND, VotingState.DOUBTFUL}.issuperset(states)",
        "torn = {VotingState.SOUND, VotingState.DOUBTFUL, VotingState.LOST}.issuperset(states)",
        _LOSS,
    ),
    _tests(
        "keep the old regime when standing is regained",
        "journal.consensus.hard_state",
        "            regime=regime,\n            vote=VOTE_USED,",
        "            regime=self.now.regime,\n            vote=VOTE_USED,",
        "tests/unit/journal/storage/test_recovery.py",
    ),
    _tests(
        "forget that a mark was further than the last message",
        "journal.storage.recovery",
        "return max(stored, (self.mark.index, self.mark.regime))",
        "return stored",
        "tests/unit/journal/storage/test_recovery.py",
    ),
    _tests(
        "never sync the jot",
        "runtime.disk.operations",
        "        if not operation.lazy:\n",
        '        if not operation.lazy and not name.endswith(".jot"):\n',
        _SYNCS,
    ),
    _tests(
        "take what cannot be read for the end of the file",
        "segment.salvage",
        "            done += skip_bytes - (position + done) % PAGE_BYTES\n",
        "            break\n",
        "tests/unit/segment/test_salvage.py",
    ),
    _tests(
        "map segments that nobody has read before",
        "runtime.disk.log_files",
        "all(salvage.is_readable(file.fileno(), *one) for one in extents)",
        "bool(extents)",
        _UNREADABLE,
    ),
    _tests(
        "take an unreadable standing for none",
        "runtime.disk.log_files",
        "        return UNREADABLE\n",
        "        return None\n",
        _UNREADABLE,
    ),
]
