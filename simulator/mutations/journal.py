"""One-line mutations of the journal's requests; the `requests` workload must catch each."""

from __future__ import annotations

from simulator.mutate import Bug, caught_by_tests

_BY = ("requests", "assert")


def _bug(name: str, module: str, old: str, new: str, *, by: tuple[str, ...] = _BY, mode: str = "safety") -> Bug:
    return Bug(name, f"chaplain.journal.{module}", old, new, "requests", by, 200, mode)


BUGS = [
    _bug(
        "what changed stays in the fingerprint",
        "model.set_hash",
        "                self.remove((key, before))",
        "                pass",
    ),
    _bug(
        "a lane that ends stays in the fingerprint",
        "execution.state",
        "        self._lanes_hash.note(client_id)\n",
        "",
    ),
    _bug(
        "a paid pack stays in the fingerprint",
        "execution.staged_packs",
        "        self._committed_hash.remove((self.replayed, self.committed.popleft()))",
        "        self.committed.popleft()",
    ),
    _bug("execute a gap", "execution.dedup", "return Ruling(PackStatus.GAP)", "return Ruling(PackStatus.NEXT)"),
    _bug(
        "write what is old again", "execution.dedup", "return Ruling(PackStatus.OLD)", "return Ruling(PackStatus.NEXT)"
    ),
    _bug(
        "take any request for the one that was seen",
        "execution.dedup",
        "    if overlapped.digest == digest:",
        "    if overlapped.first_id == heading.first_id:",
    ),
    _bug(
        "remember one pack less", "execution.dedup", "[-policy.remembered_packs :]", "[-policy.remembered_packs + 1 :]"
    ),
    _bug("idle lanes live for ever", "execution.dedup", "if lane.active_ns >= horizon_ns:", "if lane.active_ns >= 0:"),
    _bug(
        "name a request by its signature",
        "execution.state_machine",
        "return self._apply(draft, (lane, client), at, entry, heading)",
        "globals()['request_digest'] = lambda *_: __import__('hashlib').sha256(entry.raw).digest()\n"
        "        return self._apply(draft, (lane, client), at, entry, heading)",
    ),
    _bug(
        "a duplicate takes an offset",
        "execution.state_machine",
        "            case PackStatus.SEEN:\n",
        "            case PackStatus.SEEN:\n                draft.write(stream, heading.messages, heading.digest)\n",
    ),
    _bug("believe every signature", "execution.state_machine", "        return valid\n", "        return True\n"),
    _bug(
        "write where one may not",
        "execution.state_machine",
        "if not _is_valid_stream(stream) or not may_write(client, stream):",
        "if not _is_valid_stream(stream):",
    ),
    _bug(
        "apply behind a fence",
        "execution.state_machine",
        "        if lane.fenced:\n",
        "        if lane.fenced and lane.last_id == 0:\n",
    ),
    _bug(
        "forgive the compromised",
        "execution.state_machine",
        "msgspec.structs.replace(client, status=IdentityStatus.COMPROMISED)",
        "msgspec.structs.replace(client, status=IdentityStatus.ACTIVE)",
    ),
    _bug(
        "settle what was looked at last",
        "execution.state_machine",
        "        if plan is None or plan.hash != message.hash:\n",
        "        if plan is None:\n",
    ),
    _bug(
        "a look commits",
        "execution.state_machine",
        "        self._plan_for(message)\n\n",
        "        self._plan_for(message).draft.commit()\n\n",
    ),
    _bug(
        "forget that a lane was leased",
        "execution.config",
        "            lane = draft.leased(request.signer, request.nonce)\n",
        "            lane = draft.lane(0)\n",
    ),
    _bug("give a client id twice", "execution.config", "draft.next_client += 1", "draft.next_client += 0"),
    # Honest nodes check the signature before they order a request, and no workload has a master that lies.
    caught_by_tests(
        "take an unsigned petition",
        "journal.execution.config",
        "if not config.signature_holds(request, self._cluster, signer.key):",
        "if not request.signature:",
        "unit/journal/execution/test_epochs.py",
        "forged",
    ),
    _bug(
        "forget lanes in a snapshot",
        "execution.state",
        "tuple(self.lanes[client_id] for client_id in sorted(self.lanes)),",
        "(),",
    ),
    _bug(
        "forget the order of packs in a chain",
        "execution.state",
        "        writing.digests.append(digest)",
        "        writing.digests.insert(0, digest)",
    ),
    _bug(
        "offsets begin anew",
        "execution.state",
        "        base = writing.next_offset",
        "        base = writing.first_offset",
    ),
    _bug(
        "accept a digest mismatch",
        "messages.write_request",
        "if digest_of(view, head) != head.digest:",
        "if len(digest_of(view, head)) != len(head.digest):",
    ),
    _bug(
        "believe what came from others",
        "ingest.core",
        "self._execution.cache_checks(item.digest, results, item.opened)",
        "self._execution.cache_checks(item.digest, [True] * len(results), item.opened)",
    ),
    _bug(
        "reuse a reference",
        "ingest.core",
        '    return int.from_bytes(stored, "big") % JOURNAL_MAX + 1',
        '    return int.from_bytes(stored, "big")',
    ),
    _bug(
        "show readers a pack that was refused",
        "storage.record_layout",
        "        if pack is not None and pack.reason == Reason.APPLIED:\n",
        "        if pack is not None:\n",
        by=("crash", *_BY),
    ),
    _bug(
        "join runs across holes",
        "clients.receipts",
        "        and last.base_offset + last.messages == run.base_offset\n",
        "",
    ),
    _bug(
        "a receipt for a duplicate that says where it came again",
        "clients.receipts",
        "    if pack.original is not None:\n        return",
        "    if pack.original is not None and pack.reason is not Reason.DUPLICATE:\n        return",
    ),
    _bug(
        "commit a version twice",
        "execution.two_phase",
        "if known is not None and wanted.version <= known.version:",
        "if known is not None and wanted.version < known.version:",
    ),
    _bug(
        "write at once what is staged",
        "execution.state_machine",
        "            return reason, NO_OFFSET",
        "            return reason, draft.write(entry.stream, heading.messages, heading.digest)",
    ),
    _bug("pay the same twice", "execution.state_machine", "            draft.staged_packs.mark_replayed()\n", ""),
    _bug(
        "pay whatever is owed, in any order",
        "execution.state_machine",
        "        committed = draft.staged_packs.next_to_replay()\n",
        "        key = (heading.client_id, heading.first_id)\n"
        "        committed = next((one for one in draft.state.staged_packs.committed if one.key == key), None)\n",
    ),
    _bug(
        "forget transactions in a snapshot",
        "execution.staged_packs",
        "            tuple(self.transactions.values()),",
        "            (),",
    ),
    _bug(
        "commit half of a span",
        "execution.two_phase",
        "staged.last_id > span.last_id:\n                return None\n",
        "staged.last_id > span.last_id:\n                break\n",
    ),
    _bug(
        "discarded packs stay staged",
        "execution.two_phase",
        "            draft.drop_staged(staged)\n            next_id",
        "            next_id",
    ),
    _bug(
        "nobody brings what is owed",
        "ingest.commit_replay",
        "        self._master = event.master\n",
        "        self._master = 0\n",
        mode="liveness",
    ),
    _bug(
        "never give credit back",
        "ingest.flow_control",
        "            account.released += size_bytes",
        "            account.released += 0",
        mode="liveness",
    ),
]
