"""Keeps sessions with a few nodes up, whatever happens to the nodes.

Owns the link and decides which endpoints it is to meet: a first and a second node, another one in place of any that
parts, refuses, falls silent, does not greet or was removed. Knows nothing of calls: what the layer above must hear of
is left in `news`, in order, and what the host must do in `effects`.

Invariants: every session's endpoint is wanted; sessions are listed in the order in which they came up, so the first
one serves and the others are spare.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias, assert_never

from chaplain.client.protocol.endpoints import Endpoints
from chaplain.client.protocol.events import SessionLost, SessionReady, Settings
from chaplain.client.protocol.session import ClientSession
from chaplain.core import (
    Admit,
    Arrived,
    Connected,
    Core,
    Dial,
    Disconnected,
    Drained,
    Flushed,
    HangUp,
    HostEffect,
    Refuse,
    Report,
    Send,
    Woken,
    soonest,
)
from chaplain.journal.messages.client import MembersAre
from chaplain.link.events import (
    CommandDropped,
    Forget,
    LinkEffect,
    LinkInput,
    Meet,
    Met,
    Missed,
    Parted,
    Pin,
    Said,
    Say,
)

REFUSED = "refused"
"""How a reason begins when somebody is there and will not have us, or is not who they should be: trying again changes
nothing until a person does. The host says so when the door is shut, the keeper when the link turned a greeting down."""
NOT_GREETED = "it let us in but does not greet us; is it of another cluster, or another version?"
GREETING_REFUSED = "greeting refused"
"""What the link calls that in its reports."""


News: TypeAlias = SessionReady | SessionLost | Said | Missed | CommandDropped


class ConnectionManager:
    def __init__(self, link: Core[LinkInput, LinkEffect], endpoints: Endpoints, settings: Settings) -> None:
        self._link = link
        self._endpoints = endpoints
        self._settings = settings
        self._dials: dict[int, str] = {}
        self._stopped = False
        self._reaching_ns: int | None = None
        """When a greeting is late, or an endpoint may be tried."""
        self._reaching_stale = True
        """Endpoints or sessions came or went since that was worked out."""
        self.sessions: dict[bytes, ClientSession] = {}
        self.effects: list[HostEffect] = []
        self.news: deque[News] = deque()

    def host(self, now_ns: int, event: Arrived | Connected | Disconnected | Flushed) -> None:
        channel = event.dial if isinstance(event, Connected) else event.channel
        endpoint = self._dials.get(channel, "") if isinstance(channel, int) else ""
        self._tell(now_ns, event, endpoint)
        match event:
            case Connected() if endpoint in self._unmet():
                self._endpoints.note(endpoint, NOT_GREETED)
            case Disconnected() if endpoint:
                self._gone(now_ns, channel, event.reason)

    def set_aside(self, now_ns: int, instances: frozenset[bytes]) -> None:
        """These take nothing of ours: sessions with others are wanted beside them."""
        found = frozenset(self.sessions[one].endpoint for one in instances if one in self.sessions)
        if found != self._endpoints.aside:
            self._endpoints.aside = found
            self._choose(now_ns)

    def told(self, now_ns: int, nodes: MembersAre) -> None:
        """A node says who belongs to the cluster now: others may be met, and those that are gone are left."""
        over = self._endpoints.told(nodes)
        self._tell(now_ns, Pin(self._endpoints.keys, self._endpoints.gone), "")
        for endpoint in over:
            self._give_up(now_ns, endpoint, "it was removed from the cluster")
        self._choose(now_ns)

    def drained(self, now_ns: int, event: Drained) -> None:
        """All was said for now: the link sends it."""
        self._tell(now_ns, event, "")

    def say(self, now_ns: int, say: Say) -> None:
        session = self.sessions[say.instance]
        self._tell(now_ns, say, session.endpoint)

    def tick(self, now_ns: int) -> None:
        """Everything that is due: the link's own timers, pings, silence, late greetings, and endpoints to try."""
        due = self._link.deadline()
        if due is not None and due <= now_ns:
            self._tell(now_ns, Woken(), "")
        for session in list(self.sessions.values()):
            if session.is_silent(now_ns):
                seconds = self._settings.answer_within_ns / 1e9
                self._give_up(now_ns, session.endpoint, f"it left a ping unanswered for {seconds:g} s")
            elif session.wants_ping(now_ns):
                self.say(now_ns, session.ping(now_ns))
        for endpoint in self._late(now_ns):
            seconds = self._settings.greet_within_ns / 1e9
            self._give_up(now_ns, endpoint, self._endpoints.noted(endpoint) or f"no answer within {seconds:g} s")
        self._choose(now_ns)

    def stop(self, now_ns: int) -> None:
        """Hang up everywhere, and dial no more."""
        self._stopped = True
        for endpoint in list(self._endpoints.wanted):
            del self._endpoints.wanted[endpoint]
            self._tell(now_ns, Forget(endpoint), endpoint)
        self.sessions.clear()
        self.news.clear()

    def deadline(self) -> int | None:
        if self._stopped:
            return None
        if self._reaching_stale:
            late = [since + self._settings.greet_within_ns for since in self._unmet().values()]
            self._reaching_ns = soonest((self._endpoints.next_ns(), *late))
            self._reaching_stale = False
        first = soonest((self._reaching_ns, self._link.deadline()))
        for session in self.sessions.values():
            due_ns = session.next_ns()
            first = due_ns if first is None or due_ns < first else first
        return first

    def _choose(self, now_ns: int) -> None:
        self._reaching_stale = True
        if self._stopped:
            return
        for endpoint in self._endpoints.choose(now_ns):
            self._tell(now_ns, Meet(endpoint), endpoint)

    def _unmet(self) -> dict[str, int]:
        met = {session.endpoint for session in self.sessions.values()}
        return {endpoint: since for endpoint, since in self._endpoints.wanted.items() if endpoint not in met}

    def _late(self, now_ns: int) -> list[str]:
        within_ns = self._settings.greet_within_ns
        return [endpoint for endpoint, since in self._unmet().items() if now_ns >= since + within_ns]

    def _tell(self, now_ns: int, event: LinkInput, endpoint: str) -> None:
        """Step the link. Host effects go out first: what follows from the news must leave after them."""
        upward: list[LinkEffect] = []
        for effect in self._link.step(now_ns, event):
            match effect:
                case Dial():
                    self._dials[effect.dial] = effect.endpoint
                    self.effects.append(effect)
                case Send() | Admit() | Refuse():
                    self.effects.append(effect)
                case HangUp():
                    self.effects.append(effect)
                    upward.append(effect)
                case Report():
                    self.effects.append(effect)
                    upward.append(effect)
                case Met() | Said() | Missed() | CommandDropped() | Parted():
                    upward.append(effect)
                case _:
                    assert_never(effect)
        for effect in upward:
            self._take(now_ns, effect, endpoint)

    def _take(self, now_ns: int, effect: LinkEffect, endpoint: str) -> None:
        match effect:
            case Met():
                self._met(now_ns, effect, endpoint)
            case Parted():
                session = self.sessions.get(effect.peer.instance)
                if session is not None:
                    self._give_up(now_ns, session.endpoint, effect.reason)
            case HangUp():
                self._gone(now_ns, effect.channel, "it was hung up on")
            case Report():
                self._reported(now_ns, effect, endpoint or effect.peer)
            case Said():
                if (session := self.sessions.get(effect.instance)) is not None:
                    session.heard(now_ns)
                    self.news.append(effect)
            case Missed() | CommandDropped():
                self.news.append(effect)

    def _reported(self, now_ns: int, report: Report, endpoint: str) -> None:
        """A greeting that the link refused will not get better by waiting for it."""
        if report.event == GREETING_REFUSED and endpoint in self._unmet():
            detail = ", ".join(f"{name} {value}" for name, value in report.detail.items() if name != "reason")
            reason = f"{REFUSED}, {report.detail.get('reason', '')}{f' ({detail})' if detail else ''}"
            self._give_up(now_ns, endpoint, reason)

    def _met(self, now_ns: int, met: Met, endpoint: str) -> None:
        self._reaching_stale = True
        instance = met.peer.instance
        endpoint = endpoint or met.peer.endpoint
        before = self.sessions.pop(instance, None)
        if before is not None:
            self.news.append(SessionLost(instance, before.endpoint, "a new session took its place"))
        if before is not None and before.endpoint != endpoint:
            self._give_up(now_ns, before.endpoint, f"it is the same node as {endpoint}")
        if endpoint not in self._endpoints.wanted:
            return
        self._endpoints.succeeded(endpoint, met.peer.key)
        self.sessions[instance] = ClientSession(instance, endpoint, now_ns, self._settings)
        self.news.append(SessionReady(instance))

    def _gone(self, now_ns: int, channel: int | bytes, reason: str) -> None:
        """A connection ended. If that was our only way to a wanted endpoint, it failed."""
        endpoint = self._dials.pop(channel, "") if isinstance(channel, int) else ""
        if endpoint in self._endpoints.wanted:
            self._give_up(now_ns, endpoint, reason)

    def _give_up(self, now_ns: int, endpoint: str, reason: str) -> None:
        """The endpoint failed: end what there is with it, and try another."""
        if endpoint in self._endpoints.wanted:
            self._endpoints.failed(now_ns, endpoint, reason, refused=reason.startswith(REFUSED))
        for session in [session for session in self.sessions.values() if session.endpoint == endpoint]:
            del self.sessions[session.instance]
            self.news.append(SessionLost(session.instance, endpoint, reason))
        self._tell(now_ns, Forget(endpoint), endpoint)
        self._choose(now_ns)
