"""One-line mutations of the journal's requests; the `requests` workload must catch each."""

from __future__ import annotations

from chaplain.sim.planted import Bug

_BY = ("requests", "assert")


def _bug(name: str, module: str, old: str, new: str, *, by: tuple[str, ...] = _BY, mode: str = "safety") -> Bug:
    return Bug(name, f"chaplain.journal.{module}", old, new, "requests", by, 200, mode)


BUGS = [
    _bug(
        "what changed stays in the fingerprint",
        "set_hash",
        "                self.remove((key, before))",
        "                pass",
    ),
    _bug(
        "a lane that ends stays in the fingerprint",
        "state",
        "        self._lanes_hash.note(client_id)\n",
        "",
    ),
    _bug(
        "a paid pack stays in the fingerprint",
        "holding",
        "        self._owed_hash.remove((self.paid, self.owed.popleft()))",
        "        self.owed.popleft()",
    ),
    _bug("execute a gap", "lanes", "return Ruling(Standing.GAP)", "return Ruling(Standing.NEXT)"),
    _bug("write what is old again", "lanes", "return Ruling(Standing.OLD)", "return Ruling(Standing.NEXT)"),
    _bug(
        "take any request for the one that was seen",
        "lanes",
        "    if overlapped.digest == digest:",
        "    if overlapped.first_id == heading.first_id:",
    ),
    _bug("remember one pack less", "lanes", "[-policy.remembered_packs :]", "[-policy.remembered_packs + 1 :]"),
    _bug("idle lanes live for ever", "lanes", "if lane.active_ns >= horizon_ns:", "if lane.active_ns >= 0:"),
    _bug(
        "name a request by its signature",
        "execution",
        "return self._apply(draft, lane, place, entry, heading)",
        "globals()['request_digest'] = lambda *_: __import__('hashlib').sha256(entry.raw).digest()\n"
        "        return self._apply(draft, lane, place, entry, heading)",
    ),
    _bug(
        "a duplicate takes an offset",
        "execution",
        "            case Standing.SEEN:\n",
        "            case Standing.SEEN:\n                draft.write(stream, heading.messages, heading.digest)\n",
    ),
    _bug("believe every signature", "execution", "        return valid\n", "        return True\n"),
    _bug(
        "write where one may not",
        "execution",
        "if not _named_well(stream) or not may_write(client, stream):",
        "if not _named_well(stream):",
    ),
    _bug(
        "apply behind a fence",
        "execution",
        "        if lane.fenced:\n",
        "        if lane.fenced and lane.last_id == 0:\n",
    ),
    _bug(
        "forgive the compromised",
        "execution",
        "msgspec.structs.replace(client, status=Status.COMPROMISED)",
        "msgspec.structs.replace(client, status=Status.ACTIVE)",
    ),
    _bug(
        "settle what was looked at last",
        "execution",
        "if plan is None or plan.body != body or plan.payloads != payloads:",
        "if plan is None:",
    ),
    _bug(
        "a look commits",
        "execution",
        "        return self._plan_for(body, tuple(payloads), digest).preview\n",
        "        plan = self._plan_for(body, tuple(payloads), digest)\n"
        "        plan.draft.commit()\n        return plan.preview\n",
    ),
    _bug(
        "forget that a lane was leased",
        "configuration",
        "            lane = draft.leased(petition.signer, petition.nonce)\n",
        "            lane = draft.lane(0)\n",
    ),
    _bug("give a client id twice", "configuration", "draft.next_client += 1", "draft.next_client += 0"),
    _bug(
        "take an unsigned petition",
        "configuration",
        "if not config_message.signature_holds(petition, self._cluster, signer.key):",
        "if not petition.signature:",
    ),
    _bug(
        "forget lanes in a snapshot",
        "state",
        "tuple(self.lanes[client_id] for client_id in sorted(self.lanes)),",
        "(),",
    ),
    _bug(
        "forget the order of packs in a chain",
        "state",
        "        writing.digests.append(digest)",
        "        writing.digests.insert(0, digest)",
    ),
    _bug("offsets begin anew", "state", "        base = writing.next_offset", "        base = writing.first_offset"),
    _bug(
        "accept a digest mismatch",
        "request",
        "if digest_of(view, head) != stated_digest(view):",
        "if len(digest_of(view, head)) != len(stated_digest(view)):",
    ),
    _bug(
        "believe what came from others",
        "ingest",
        "self._execution.learn(thing.digest, results, thing.opened)",
        "self._execution.learn(thing.digest, [True] * len(results), thing.opened)",
    ),
    _bug(
        "reuse a reference",
        "ingest",
        '    return int.from_bytes(stored, "big") % JOURNAL_MAX + 1',
        '    return int.from_bytes(stored, "big")',
    ),
    _bug("lose void packs", "filing", "skeleton.append(entry.raw)", 'skeleton.append(b"")', by=("crash", *_BY)),
    _bug(
        "join runs across holes",
        "receipts",
        "        and last.base_offset + last.messages == run.base_offset\n",
        "",
    ),
    _bug(
        "a receipt for a duplicate that says where it came again",
        "receipts",
        "    if pack.original is not None:\n        return",
        "    if pack.original is not None and pack.reason is not Reason.DUPLICATE:\n        return",
    ),
    _bug(
        "commit a version twice",
        "transaction",
        "if known is not None and wanted.version <= known.version:",
        "if known is not None and wanted.version < known.version:",
    ),
    _bug(
        "write at once what is staged",
        "execution",
        "            return reason, NO_OFFSET",
        "            return reason, draft.write(entry.stream, heading.messages, heading.digest)",
    ),
    _bug("pay the same twice", "execution", "            draft.holding.pay()\n", ""),
    _bug(
        "pay whatever is owed, in any order",
        "execution",
        "        owed = draft.holding.next_owed()\n",
        "        key = (heading.client_id, heading.first_id)\n"
        "        owed = next((one for one in draft.state.holding.owed if one.key == key), None)\n",
    ),
    _bug(
        "forget transactions in a snapshot",
        "holding",
        "            tuple(self.transactions.values()),",
        "            (),",
    ),
    _bug(
        "commit half of a span",
        "transaction",
        "staged.last_id > span.last_id:\n                return None\n",
        "staged.last_id > span.last_id:\n                break\n",
    ),
    _bug(
        "nobody brings what is owed",
        "promotion",
        "        self._master = event.master\n",
        "        self._master = 0\n",
        mode="liveness",
    ),
    _bug(
        "never give credit back",
        "credit",
        "            account.owed += size_bytes",
        "            account.owed += 0",
        mode="liveness",
    ),
]
