"""Kinds of refusal, as nodes name them, grouped by the writer's reaction."""

from __future__ import annotations

NO_ORDER = "the cluster is slow, or has no master or too few data nodes: see `chaplain cluster status`"
"""Why a request is not ordered, as far as a client without an answer can know."""
DISK_FULL = "disk_full"
"""The node has no room."""
RETRY_ELSEWHERE = (DISK_FULL, "not_ingest")
"""Another node may accept the same pack."""
RETRY_LATER = ("busy", "stopping", *RETRY_ELSEWHERE)
"""Transient: the same bytes may be accepted later, or by another node."""
COPY_DISCARDED = ("busy", "stopping", DISK_FULL)
"""The node has discarded that copy: it cannot be committed."""
IDENTITY_REFUSED = ("removed", "compromised", "unknown_signer", "not_yours")
"""The cluster accepts nothing more from this identity."""
IDENTITY_ENDED = ("removed", "compromised")
"""The kinds of `IDENTITY_REFUSED` that the cluster has agreed on: no lane of the identity will change again."""
INVALID = "invalid"
"""A dry run of the request failed; the failure's kind follows after a colon. Another copy of the request may still be
ordered.
"""
