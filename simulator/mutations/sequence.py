"""One-line mutations of the sequence; each must be caught by a checker or by an assertion in the code."""

from __future__ import annotations

from simulator.mutate import Bug

_BY = ("sequence", "assert")


def _bug(
    name: str, module: str, old: str, new: str, seeds: int = 60, *, mode: str = "safety", workload: str = "sequence"
) -> Bug:
    return Bug(name, f"chaplain.sequence.{module}", old, new, workload, _BY, seeds, mode)


BUGS = [
    _bug(
        "remove the silent node without agreement",
        "core",
        "        self._intake.tick()\n",
        "        self._intake.tick()\n"
        "        silence_ns, heard_ns = self.settings.silence_ns, bench.company.heard_ns\n"
        "        bench.log.members = tuple(\n"
        "            member\n"
        "            for member in bench.log.members\n"
        "            if member == bench.me or bench.now_ns - heard_ns(*member, bench.now_ns) <= silence_ns\n"
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
        "        bench.promised = ballot\n        if self._attempt is not None and self._attempt.ballot < ballot:",
        "        if self._attempt is not None and self._attempt.ballot < ballot:",
    ),
    _bug(
        "begin a history with whoever is here",
        "discovery",
        "            self._begin(fresh, missing)",
        "            self._begin(fresh, missing)\n        elif bench.now_ns - bench.since_ns > 10**9:\n"
        "            self._begin(fresh, [])",
    ),
    _bug(
        "grant the lock to one who knows less",
        "lock",
        "        elif asker.decided < bench.log.decided:",
        "        elif asker.decided < bench.log.decided - 3:",
    ),
    _bug(
        "go on without what the granters hold",
        "lock",
        "        if best is None or best.bearing.head <= log.head:",
        "        if best is None or best.bearing.head >= log.head:",
    ),
    _bug(
        "take the longest log, whatever its ballot",
        "lock",
        "key=lambda grant: grant.bearing.head, default=None)\n"
        "        if best is None or best.bearing.head <= log.head:",
        "key=lambda grant: grant.bearing.head.index, default=None)\n"
        "        if best is None or best.bearing.head.index <= log.head.index:",
        300,
    ),
    _bug(
        "write when it is another's turn",
        "lock",
        "bench.is_member and self._attempt is None and log.turn == bench.seat and log.head.ballot == bench.promised",
        "bench.is_member and self._attempt is None and log.head.ballot == bench.promised",
    ),
    _bug(
        "take the lock with too few grants",
        "lock",
        "        return is_enough(members, {bench.seat, *attempt.grants}, bench.dead(members))",
        "        return bool(attempt.grants)",
    ),
    _bug(
        "take the lock from the old work set alone",
        "lock",
        "        if not all(self._is_granted(attempt, one) for one in sets_behind(log.members, found)):",
        "        if False:",
        150,
        workload="workset",
    ),
    _bug(
        "count acknowledgements of another ballot",
        "commit",
        "                if acked.ballot == bench.promised and fellow.bearing.history == bench.history:",
        "                if fellow.bearing.history == bench.history:",
    ),
    _bug(
        "believe that an index is decided without comparing hashes",
        "acceptor",
        "        if bearing.decided > log.decided and log.hash_at(bearing.decided) == bearing.decided_hash:",
        "        if bearing.decided > log.decided and log.hash_at(bearing.decided) is not None:",
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
        "            self.lost.append(chain)\n",
        "            self._wait_again([one.publish for lost in chain for one in lost.placed])\n",
        400,
    ),
    _bug(
        "a restarted node takes its old seat",
        "context",
        "        return self.chance.randrange(1, 1 << 64)",
        "        return self.settings.identifier",
        300,
    ),
    _bug(
        "join with numbers of one's own",
        "context",
        "        self.streams = dict(self.foot.streams)\n",
        "        self.streams = {}\n",
    ),
    _bug(
        "a joiner counts before it holds the window",
        "context",
        "        base, members = log.base, foot.members\n",
        "        base, members, foot = log.base_at(log.decided), log.members, WindowBase((), self.streams)\n",
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
        "            bench.ack_due = True\n            self.lack = None\n",
        "            bench.ack_due = True\n            self.lack = None\n"
        "            fellow.acked = max(other.acked for other in bench.company.fellows.values())\n",
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
        "            self._take()\n\n    def hurry",
        "            self._armed = None\n\n    def hurry",
        mode="liveness",
    ),
    _bug(
        "never ask for what is missing",
        "acceptor",
        "            bench.tell(fellow, Fill(bench.bearing()))",
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
]
