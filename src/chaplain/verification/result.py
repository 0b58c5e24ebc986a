"""The result of a verification: joined from the results of its tasks, and described for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from chaplain.core import Frozen
from chaplain.errors import Missing
from chaplain.verification.plan import VerifyPlan
from chaplain.verification.proof_segments import ProofSegment, ProofState, join_segments
from chaplain.verification.tree_check import compare_root
from chaplain.verification.trust_anchor import join_segments_at
from chaplain.verification.violations import Break, deduplicate


class VerifyResult(Frozen, frozen=True):
    """The result of a verification."""

    breaks: list[Break]
    state: ProofState
    """How far the log is verified, if there are no breaks."""
    rows: int = 0
    """Number of stream messages that were read."""
    packs: int = 0
    """Number of packs that were read."""
    unchecked: int = 0
    """Packs with an HMAC signature, which only nodes can check because only they have the secret."""
    node: int = 0
    """The node whose log was verified; 0 if unknown."""
    others: tuple[int, ...] = ()
    """Nodes whose record headers were compared with that log."""
    went_on: bool = False
    """True if the verification continued an earlier one, from its manifest."""
    skipped: tuple[str, ...] = ()
    """Why logs of other nodes were not compared."""
    tree_size: int = 0
    """The size of the signed checkpoint that the log was compared with; 0 if it was not."""

    def told(self) -> str:
        """Return one sentence that states which parts were verified and which were not."""
        whose = f"node {self.node}" if self.node else "the log"
        more = " more than the manifest says" if self.went_on else ""
        what = f"{counted(self.rows, 'message')}{more}, {counted(len(self.state.tails), 'stream')}"
        ours = [one for one in self.breaks if one.node in (0, self.node)]
        said = f"{whose} read: {what}, {counted(len(ours), 'break')}" if ours else f"{whose} proven: {what}"
        if len(self.others) == 1:
            said += f"; node {self.others[0]} by its heads only: prove it with --node"
        elif self.others:
            said += f"; nodes {', '.join(map(str, self.others))} by their heads only: prove them with --node"
        if self.tree_size:
            said += f"; compared with the signed checkpoint of {self.tree_size:,} entries"
        return said + "".join(f"; not compared: {reason}" for reason in self.skipped)

    def summary(self) -> dict[str, Any]:
        """Return the facts of that sentence as a dictionary, for programs."""
        point = self.state.point
        return {
            "node": self.node or None,
            "messages": self.rows,
            "packs": self.packs,
            "streams": {stream: {"head": tail.next_offset} for stream, tail in sorted(self.state.tails.items())},
            "index": point.index if point is not None else 0,
            "continued": self.went_on,
            "compared": list(self.others),
            "not_compared": list(self.skipped),
            "hmac_packs": self.unchecked,
            "checkpoint": self.tree_size or None,
        }

    def breaks_of(self, stream: str = "") -> list[Break]:
        """Return the breaks of a stream and of the whole log; all if `stream` is empty.

        Raises `Missing` if nothing was verified of the stream, because the log does not contain it.
        """
        if stream and stream not in self.state.tails and not self.breaks:
            there = ", ".join(sorted(self.state.tails)) or "none"
            raise Missing(f"there is no stream {stream!r}, so nothing is proven of it: streams here are {there}")
        return [one for one in self.breaks if not stream or one.stream in ("", stream)]


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def join_results(plan: VerifyPlan, segments: Sequence[ProofSegment]) -> VerifyResult:
    if plan.anchor is None:
        breaks, state = join_segments(segments, plan.begin, plan.cluster)
    else:
        breaks, state = join_segments_at(list(segments), plan.anchor, plan.cluster)
    if plan.tree is not None:
        found = [*plan.tree_before, *[one for segment in segments for one in segment.subtrees]]
        breaks += compare_root(plan.tree, found)
    sums = {name: sum(getattr(segment, name) for segment in segments) for name in ("rows", "packs", "unchecked")}
    went_on = plan.begin.point is not None and plan.begin.point.index > 0
    ours = [one if one.node else msgspec.structs.replace(one, node=plan.node) for one in [*plan.breaks, *breaks]]
    return VerifyResult(
        deduplicate(ours),
        state,
        **sums,
        node=plan.node,
        others=plan.others,
        went_on=went_on,
        skipped=plan.skipped,
        tree_size=0 if plan.tree is None else plan.tree.tree.size,
    )
