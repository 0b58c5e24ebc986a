"""What a node that starts may claim about its own past, given what its log shows of it.

Decides whether the standing gets worse: a log that is in doubt, that ends too early or that is gone takes the vote.
Refuses to decide how the vote is got back (`catchup`).

Invariant: a standing never gets better here.
"""

from __future__ import annotations

from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.consensus.hard_state import VotingState
from chaplain.journal.storage.recovery import Recovered


def judge(bench: ConsensusContext, found: Recovered) -> None:
    """Write down the standing that is left, and say why if it is worse than before."""
    keeper = bench.keeper
    gone = "the log had begun, and nothing of it is here" if keeper.now.begun and found.empty else ""
    lost = found.data_lost or bool(gone)
    worse = (VotingState.SOUND, VotingState.DOUBTFUL) if lost else (VotingState.SOUND,)
    if (found.doubt or gone) and keeper.now.state in worse:
        what = "lost what was acknowledged" if lost else "in doubt"
        bench.report(f"{what}: no vote until caught up", 0, reason=found.doubt or gone)
        keeper.doubt(VotingState.LOST if lost else VotingState.DOUBTFUL)
    else:
        keeper.write()
    if not found.empty:
        keeper.begin_log()
