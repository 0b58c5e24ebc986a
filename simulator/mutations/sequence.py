"""One-line mutations of the sequence; each must be caught by a checker or by an assertion in the code."""

from __future__ import annotations

from simulator.mutate import Bug, caught_by_tests

_BY = ("sequence", "assert")


def _bug(
    name: str, module: str, old: str, new: str, seeds: int = 60, *, mode: str = "safety", workload: str = "sequence"
) -> Bug:
    return Bug(name, f"chaplain.sequence.{module}", old, new, workload, _BY, seeds, mode)


BUGS = [
    _bug(
        "remove the silent node without agreement",
        "core",
        "        self._acceptor.tick()\n",
        "        self._acceptor.tick()\n"
        "        silence_ns, heard_ns = self.settings.silence_ns, context.peers.heard_ns\n"
        "        context.log.members = tuple(\n"
        "            member\n"
        "            for member in context.log.members\n"
        "            if member == context.me or context.now_ns - heard_ns(*member, context.now_ns) <= silence_ns\n"
        "        )\n",
    ),
    _bug(
        "count half as enough",
        "work_set",
        "    if 2 * present > len(members):",
        "    if 2 * present >= len(members) - 1:",
    ),
    _bug(
        "promise nothing",
        "lock",
        "        context.promised = ballot\n        if self._attempt is not None and self._attempt.ballot < ballot:",
        "        if self._attempt is not None and self._attempt.ballot < ballot:",
    ),
    _bug(
        "begin a history with whoever is here",
        "discovery",
        "            self._found_history(recent, missing)",
        "            self._found_history(recent, missing)\n        elif context.now_ns - context.since_ns > 10**9:\n"
        "            self._found_history(recent, [])",
    ),
    _bug(
        "grant the lock to one who knows less",
        "lock",
        "        elif asker.decided < context.log.decided:",
        "        elif asker.decided < context.log.decided - 3:",
    ),
    _bug(
        "go on without what the granters hold",
        "lock",
        "        if best is None or best.peer_state.head <= log.head:",
        "        if best is None or best.peer_state.head >= log.head:",
    ),
    _bug(
        "take the longest log, whatever its ballot",
        "lock",
        "key=lambda grant: grant.peer_state.head, default=None)\n"
        "        if best is None or best.peer_state.head <= log.head:",
        "key=lambda grant: grant.peer_state.head.index, default=None)\n"
        "        if best is None or best.peer_state.head.index <= log.head.index:",
        300,
    ),
    _bug(
        "write when it is another's turn",
        "lock",
        "            and log.next_seat == context.seat\n            and log.head.ballot == context.promised\n",
        "            and log.head.ballot == context.promised\n",
    ),
    _bug(
        "take the lock with too few grants",
        "lock",
        "        return is_quorum(members, {context.seat, *attempt.grants}, context.dead(members))",
        "        return bool(attempt.grants)",
    ),
    _bug(
        "take the lock from the old work set alone",
        "lock",
        "        if not all(self._is_granted(attempt, one) for one in sets_after(log.members, found)):",
        "        if False:",
        150,
        workload="workset",
    ),
    _bug(
        "count acknowledgements of another ballot",
        "commit",
        "                if acked.ballot == context.promised and peer.last_state.history == context.history:",
        "                if peer.last_state.history == context.history:",
    ),
    _bug(
        "believe that an index is decided without comparing hashes",
        "acceptor",
        "        if peer_state.decided > log.decided and log.hash_at(peer_state.decided) == peer_state.decided_hash:",
        "        if peer_state.decided > log.decided and log.hash_at(peer_state.decided) is not None:",
    ),
    _bug(
        "publish again what kept its place",
        "publish_queue",
        "        found = self._placed.pop(index, [])",
        "        found = self._placed.get(index, [])",
    ),
    _bug(
        "forget what lost its place",
        "publish_queue",
        "        self._pending.extendleft(reversed(publishes))\n",
        "        pass\n",
        300,
        mode="liveness",
    ),
    _bug(
        "publish again what may keep its place elsewhere",
        "publish_queue",
        "            self.displaced_chains.append(chain)\n",
        "            self._wait_again([one.publish for lost in chain for one in lost.placed])\n",
        400,
    ),
    _bug(
        "a restarted node takes its old seat",
        "context",
        "        return self.rng.randrange(1, 1 << 64)",
        "        return self.settings.identifier",
        300,
    ),
    _bug(
        "join with numbers of one's own",
        "context",
        "        self.streams = dict(self.window_base.streams)\n",
        "        self.streams = {}\n",
    ),
    _bug(
        "a joiner counts before it holds the window",
        "context",
        "        base, members = log.base, window_base.members\n",
        "        base, members, window_base = log.base_at(log.decided), log.members, WindowBase((), self.streams)\n",
    ),
    _bug(
        "tell the numbers of another place than the foot",
        "window.base",
        "                self.streams[stream] = end\n",
        "                pass\n",
    ),
    _bug(
        "say that one holds what others hold",
        "acceptor",
        "            context.ack_due = True\n            self.missing = None\n",
        "            context.ack_due = True\n            self.missing = None\n"
        "            peer.acked = max(other.acked for other in context.peers.by_id.values())\n",
        300,
    ),
    _bug(
        "hold entries that do not fit",
        "window.log",
        "            return (previous, entries) if before == previous_hash else None",
        "            return previous, entries",
    ),
    _bug(
        "never take the lock from the dead",
        "lock",
        "            self._start_attempt()\n\n    def shorten_wait",
        "            self._waiting_at = None\n\n    def shorten_wait",
        mode="liveness",
    ),
    _bug(
        "never ask for what is missing",
        "acceptor",
        "            context.send(peer, Fill(context.own_state()))",
        "            pass",
        mode="liveness",
    ),
    _bug(
        "never let anybody in",
        "reconfiguration",
        "    learned = recently and",
        "    learned = False and",
        150,
        mode="liveness",
    ),
    caught_by_tests(
        "a confirmation needs no entry",
        "sequence.core",
        "            context.publish_queue.add_confirmation(confirm)\n",
        "            from chaplain.sequence.events import Confirmed\n"
        "            context.out.append(Confirmed(confirm.token))\n",
        "unit/sequence/test_fresh_reads.py",
    ),
    caught_by_tests(
        "a verifying reader does not compare the link of a run",
        "client.api.sequence_calls",
        "        if (self._next or first == 1) and before != self._hash:\n",
        "        if not before:\n",
        "unit/sequence/test_layer.py",
        "verifying",
    ),
    caught_by_tests(
        "a recorded run is not compared with its hash",
        "verification.recorded_sequences",
        "        if found.chain_hash != real:\n",
        "        if not real:\n",
        "unit/verification/test_recorded_sequences.py",
    ),
]
