"""Why execution applied something or not: one list for requests and configuration, in verdicts and answers."""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Why something was applied or not. Numbers are on disk and never reused."""

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
