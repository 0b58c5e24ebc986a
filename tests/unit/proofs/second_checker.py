"""`tools/check_proof.py` as a module, and what it and chaplain say about the same files: they must agree."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path

from chaplain.errors import Malformed, Unproven
from chaplain.proofs import policy, proof

TOOL = Path(__file__).parents[3] / "tools" / "check_proof.py"
_SPEC = importlib.util.spec_from_file_location("check_proof", TOOL)
check_proof = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(check_proof)
NOT_PROVEN = (check_proof.NotProven, ValueError, IndexError, struct.error, RecursionError)
"""The reasons with which the program exits with code 3."""


def check_twice(data: bytes, policy_data: bytes) -> proof.Proven:
    """Return what is proven. Raises what chaplain raises."""
    try:
        line = check_proof.check(data, check_proof.read_policy(policy_data))
    except NOT_PROVEN:
        line = None
    try:
        proven = proof.check(proof.parse(data), policy.parse(policy_data))
    except (Malformed, Unproven) as error:
        assert line is None, f"check_proof.py accepts what chaplain refuses: {error}"  # noqa: PT017
        raise
    assert line == proven.line
    return proven
