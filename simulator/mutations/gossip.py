"""Bugs of gossip: what its list, clocks, messages and questions must each be able to catch."""

from __future__ import annotations

from simulator.mutate import Bug

_GOSSIP = "chaplain.gossip."


def _bug(name: str, module: str, old: str, new: str, *expected: str, mode: str = "safety") -> Bug:
    return Bug(name, _GOSSIP + module, old, new, workload="gossip", expected=expected, mode=mode, seeds=100)


BUGS = [
    _bug(
        "believe forged messages",
        "dissemination",
        "if not codec.is_genuine(body, self.check):",
        "if not body.signature:",
        "events",
        "members",
    ),
    _bug(
        "believe forged cards",
        "members",
        "if not cards.is_genuine(card, self._check):",
        "if not card.signature:",
        "members",
    ),
    _bug(
        "believe a forged good-bye among cards",
        "membership",
        "if codec.is_genuine(leave, self._dissemination.check):",
        "if leave.signature:",
        "members",
    ),
    _bug(
        "follow any leave on behalf",
        "membership",
        "if self._detector.may_lose(leave.subject, self._dissemination.now_ns):",
        "if leave.signature:",
        "members",
    ),
    _bug(
        "forget what was seen",
        "seen",
        "return behind < self._settings.window and not window.mask >> behind & 1",
        "return behind < self._settings.window",
        "events",
    ),
    _bug(
        "lose at T",
        "failure_detector",
        "if silence_ns >= 2 * self.timeout_ns and",
        "if silence_ns >= self.timeout_ns and",
        "members",
    ),
    _bug(
        "take a broken connection for silence",
        "failure_detector",
        "watch.broken_ns = now_ns",
        "watch.broken_ns, watch.known_ns = now_ns, 0",
        "members",
    ),
    _bug(
        "do not count what is heard",
        "failure_detector",
        "        watch.direct_ns = now_ns\n        return self._known_alive(watch, now_ns, now_ns)",
        "        watch.direct_ns = now_ns\n        return False",
        "members",
        "views",
    ),
    _bug(
        "climb to whatever others claim",
        "membership",
        "elif incarnation == self.card.incarnation:",
        "elif incarnation >= self.card.incarnation:",
        "members",
    ),
    _bug(
        "raise by ten",
        "membership",
        "self.card = cards.make(self._dissemination.signer, self._uri, above + 1)",
        "self.card = cards.make(self._dissemination.signer, self._uri, above + 10)",
        "members",
    ),
    _bug(
        "never refute",
        "membership",
        "                self._refuted_ns = self._dissemination.now_ns\n"
        "                self._raise_incarnation(incarnation)\n",
        "                self._refuted_ns = self._dissemination.now_ns\n",
        "views",
        mode="liveness",
    ),
    _bug(
        "never try a lost member again",
        "connectivity",
        "if left and now_ns >= due_ns and identifier not in self._dissemination.sessions:",
        "if not left:",
        "views",
        mode="liveness",
    ),
    _bug(
        "take the same card for a newer one",
        "members",
        "if card.incarnation == record.card.incarnation:",
        "if card.incarnation == 0:",
        "assert",
    ),
    _bug("decide with less than half", "query", "if 2 * best > members:", "if 3 * best > members:", "questions"),
    _bug("decide a tie", "query", '            return "tie"', '            return ""', "questions"),
    _bug("decide twice", "query", "        del self._open[query]\n        self", "        self", "questions"),
]
