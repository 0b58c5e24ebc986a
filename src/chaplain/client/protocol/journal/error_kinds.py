"""Kinds of refusal, as nodes name them, by what a writer does about them."""

from __future__ import annotations

FULL = "disk_full"
ELSEWHERE = (FULL, "not_ingest")
"""Kinds of refusal that another node may not have."""
LATER = ("busy", "stopping", *ELSEWHERE)
"""Kinds of refusal that pass: the same octets may be taken later, or elsewhere."""
UNREAD = ("busy", "stopping", FULL)
"""Kinds of refusal after which that copy is nowhere."""
IDENTITY = ("removed", "compromised", "unknown_signer", "not_yours")
"""Kinds of refusal that end everything under this identity."""
ENDED = ("removed", "compromised")
"""Of these, the kinds by which the cluster has decided so: every lane of the identity stays as it is."""
INVALID = "invalid"
"""It was tried out, and would fail; behind a colon, of what. It holds for that copy: another may be ordered."""
