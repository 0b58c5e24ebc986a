"""One-line mutations of the graph's core; each must be caught by a checker or by an assertion in the code."""

from __future__ import annotations

from simulator.mutate import Bug

_BY = ("graph", "assert", "host contract")


def _bug(name: str, module: str, old: str, new: str, seeds: int = 100, *, mode: str = "safety") -> Bug:
    return Bug(name, f"chaplain.graph.{module}", old, new, "graph", _BY, seeds, mode)


BUGS = [
    _bug(
        "acknowledge before sync",
        "core",
        "            self._append_calls[name, stream.model.find(made.id)] = event.call",
        "            self.context.out.append(Settled(event.call, client.encode(Appended(made.id))))",
    ),
    _bug(
        "broadcast and confirm before sync",
        "core",
        "            self.context.out.append(Persist(self._ticket, tuple(operations)))",
        "            self.context.out.append(Persist(self._ticket, tuple(operations)))\n"
        "            self._persisted(now_ns, self._ticket)",
    ),
    _bug(
        "forget events at a restart",
        "storage.recovery",
        "    stream.load(kept)\n    return True",
        "    if kept.place.index == 0:\n        stream.load(kept)\n    return True",
    ),
    _bug(
        "forget what was read",
        "storage.store",
        "        elif record.kind == READ:",
        "        elif record.kind == READ + 9:",
    ),
    _bug(
        "count a confirmation twice",
        "unread",
        "            count = self._count(one, mask)\n            self.counts",
        "            count = self._count(one, mask) * 2\n            self.counts",
    ),
    _bug(
        "believe a forged confirmation",
        "dissemination",
        "                if right:\n                    self._count(",
        "                if right or not right:\n                    self._count(",
        300,
    ),
    _bug(
        "call an event read with half of the confirmations",
        "dissemination",
        "        read_at = self._context.read_at\n",
        "        read_at = self._context.read_at // 2\n",
    ),
    _bug(
        "need fewer confirmations while others are silent",
        "context",
        "        elif event.member.graceful:",
        "        else:",
    ),
    _bug(
        "read without its ancestors",
        "model",
        "                stack.extend(self.parents_of(one))\n        found.sort()",
        "                stack.extend([])\n        found.sort()",
    ),
    _bug(
        "order by arrival within a height",
        "model",
        "            level = sorted((self.id_of(number), number) for number in self._level(place))",
        "            level = [(self.id_of(number), number) for number in self._level(place)]",
    ),
    _bug(
        "a parent stays a leaf",
        "model",
        "        for link in links:\n            self.leaves.pop(link, None)",
        "        for link in links[1:]:\n            self.leaves.pop(link, None)",
    ),
    _bug(
        "add without waiting for parents",
        "model",
        "        return [link.id for link in event.links if link.height >= self.floor and self.find(link.id) < 0]",
        "        return [link.id for link in event.parents if link.height >= self.floor and self.find(link.id) < 0]",
    ),
    _bug(
        "drop forks",
        "admission",
        "            elif problem := stream.model.problem(one.event):",
        "            elif problem := stream.model.problem(one.event) or (\n"
        '                "fork" if one.event.previous is None and stream.model.last_of(one.event.author) else ""\n'
        "            ):",
        mode="liveness",
    ),
    _bug(
        "refuse old events in a sync, too",
        "admission",
        "            refused = old and (first or any(link.id in self.refused for link in event.links))",
        "            refused = old",
        mode="liveness",
    ),
    _bug(
        "accept an event that was too old when its author repeats it",
        "admission",
        "        elif event.id in self.refused:\n            refused = True",
        "        elif event.id in self.refused:\n            refused = False",
    ),
    _bug(
        "never fetch",
        "anti_entropy",
        "        if name in self._fetches or len(self._fetches) >= FETCHES_MAX or instance not in self._context.peers:",
        "        if name in self._fetches or len(self._fetches) >= FETCHES_MAX or instance in self._context.peers:",
        mode="liveness",
    ),
    _bug(
        "a locator of leaves alone",
        "anti_entropy",
        "            known = [number for one in request.locator if (number := stream.model.find(one)) >= 0]",
        "            known = list(stream.model.leaves)",
        mode="liveness",
    ),
    _bug(
        "never resend what is unread",
        "dissemination",
        "                self._resend_leaves(stream, leaves[-LEAVES_RESENT_MAX:])",
        "                pass",
        mode="liveness",
    ),
    _bug(
        "keep orphans without a bound",
        "orphans",
        "        return self._shrink(event.author)",
        "        return 0",
    ),
    _bug(
        "leave orphans waiting for ever",
        "admission",
        "                waiting += self.orphans.take_children(one.event.id)",
        "                pass",
        mode="liveness",
    ),
    _bug(
        "a reader gets on from its own number at any node",
        "reading",
        "        if request.log == self._context.log:\n            return []",
        "        if request.log:\n            return []",
    ),
    _bug(
        "show what is not on disk",
        "core",
        "            written.append(TicketContents(stream.name, tuple(places), tuple(marked), floor))",
        "            stream.persisted(len(places), list(places))\n"
        "            written.append(TicketContents(stream.name, (), tuple(marked), floor))",
    ),
]
