"""Results of execution: why a write or a configuration request was applied or refused. Verdicts and answers share the
list.
"""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Why execution applied a request or refused it. The numbers are on disk and never reused."""

    APPLIED = 0
    DUPLICATE = 1
    OLD = 2
    GAP = 3
    UNKNOWN_LANE = 4
    REMOVED = 5
    COMPROMISED = 6
    FENCED = 7
    MALFORMED = 8
    SIGNATURE = 9
    NO_RIGHT = 10
    STREAMS_FULL = 11
    TOO_LARGE = 12
    STAGED = 13
    COMMITTED = 14
    NOT_STAGED = 15
    STAGED_FULL = 16
    TRANSACTIONS_FULL = 17
    UNKNOWN_TYPE = 20
    UNKNOWN_SIGNER = 21
    NOT_ALLOWED = 22
    NAME_TAKEN = 23
    KEY_TAKEN = 24
    LANES_FULL = 25
    IDENTITIES_FULL = 26
    UNKNOWN_CLIENT = 27
    BAD_SECRET = 28
    LAST_ADMIN = 29
    EXPIRED = 30
    CHANGE_UNDER_WAY = 40
    UNKNOWN_NODE = 41
    NODE_TAKEN = 42
    ROLE_HELD = 43
    ROLE_MISSING = 44
    NEEDED = 45
    NOT_DUE = 46
    BAD_ADDRESS = 47
    INDEX_ONLY = 48
    LEASE_LOST = 50
    BAD_COMMAND = 51


REASONS = {
    Reason.UNKNOWN_LANE: "the cluster does not know the session of this writer: connect again",
    Reason.REMOVED: "this client was removed: ask an admin to add it again under a new key",
    Reason.COMPROMISED: "two different requests were signed for one id: the key is in other hands; make a new identity",
    Reason.FENCED: "`resolve` ended the session of this writer, and nothing more is written in it: connect again",
    Reason.MALFORMED: "the request does not follow its format",
    Reason.SIGNATURE: "the request is damaged, or its signature is not the client's",
    Reason.NO_RIGHT: "this client may not write to this stream: ask an admin for the right",
    Reason.STREAMS_FULL: "the cluster has as many streams as it may have: write to one that is there",
    Reason.TOO_LARGE: "the pack is larger than the cluster takes: make smaller ones",
    Reason.NOT_STAGED: "not everything that is to be committed is staged: it expired, or never was; stage it again",
    Reason.STAGED_FULL: "too much is staged and not committed: commit or discard some, or wait until some has expired",
    Reason.TRANSACTIONS_FULL: "as many apps commit batches as may: use one that is there",
    Reason.UNKNOWN_TYPE: "the petition does not follow its format",
    Reason.UNKNOWN_SIGNER: "nobody active has this ACL id: is the client added, and not removed?",
    Reason.NOT_ALLOWED: "only an admin may do this to others",
    Reason.NAME_TAKEN: "another client has this name: choose another, or remove it first",
    Reason.KEY_TAKEN: "another client has this key: each needs its own",
    Reason.LANES_FULL: "too many connections of this client write, or did lately: close some, or wait",
    Reason.IDENTITIES_FULL: "the cluster has as many identities as it may have",
    Reason.UNKNOWN_CLIENT: "there is no such client",
    Reason.BAD_SECRET: "the key or the wrapped secret does not fit the signature type",
    Reason.LAST_ADMIN: "it is the only admin, and without one nobody can be let in: add another with --admin first",
    Reason.EXPIRED: "it was signed too many messages ago, or in an epoch that there never was: sign it again",
    Reason.CHANGE_UNDER_WAY: "another change of these nodes is under way: `cluster status` shows its stage",
    Reason.UNKNOWN_NODE: "there is no such node, or it was removed: `member add` lets one in",
    Reason.NODE_TAKEN: "this node id was given before, and ids are never given again: choose another",
    Reason.ROLE_HELD: "the node has this role already",
    Reason.ROLE_MISSING: "the node does not have this role",
    Reason.NEEDED: "it is the last one in this role: give the role to another node first",
    Reason.NOT_DUE: "this stage is not due",
    Reason.BAD_ADDRESS: "a node's address is tcp://address:port",
    Reason.LEASE_LOST: "the consumer's lease of these messages ended: another worker may have them now",
    Reason.BAD_COMMAND: "the command to the consumer does not follow its format: are client and node of one version?",
    Reason.INDEX_ONLY: "serializers are index-only here: a node holds data or it serializes, and stays with that",
}


def kind_of(reason: Reason) -> str:
    """The name of the reason that programs compare."""
    return reason.name.lower()
