"""Campaigns on the checkpoints that nodes of real clusters sign."""

from __future__ import annotations

from pathlib import Path

from campaigns.campaign import Campaign, Report
from campaigns.clusters import scene
from tests.integration.journal.support.proof_scenes import sign_through_kills
from tests.integration.journal.support.scenes import three

PIECES = 10
ROUNDS_A_PIECE = 5


def signatures() -> Campaign:
    def play(piece: str, directory: Path) -> Report:
        with three(directory / "three") as cluster:
            return Report(dict(sign_through_kills(cluster, ROUNDS_A_PIECE, seed=int(piece))))

    about = f"{PIECES * ROUNDS_A_PIECE} times under load: kill -9 of every node at random moments; all notes compared"
    return scene("proof-kills", about, [str(number) for number in range(PIECES)], play)


ON_PROOFS = [signatures()]
