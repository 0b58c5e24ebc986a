"""Keep sessions with three nodes (`sessions_warm`) open, and replace nodes that fail.

Owns the link core and decides which endpoints it connects to. An endpoint is replaced when its node disconnects,
refuses us, falls silent, does not complete the handshake, or was removed from the cluster. Knows nothing of calls:
events for the layer above are queued in `session_events`, in order, and effects for the host in `effects`.

Invariants: every session's endpoint is wanted; sessions are listed in the order in which they began. The first one
serves, and the others are spare.
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
    PinNodeKeys,
    Said,
    Say,
)

REFUSED = "refused"
"""Prefix of the reason when a node is reachable but rejects us, or is not the expected node: retrying does not help
until a person corrects the cause. The host reports it when the connection is rejected, this module when the link
rejected a greeting.
"""
NOT_GREETED = "it accepts connections but does not greet us; does it belong to another cluster, or run another version?"
GREETING_REFUSED = "greeting refused"
"""The link's report of a rejected greeting."""


SessionEvent: TypeAlias = SessionReady | SessionLost | Said | Missed | CommandDropped


class ConnectionManager:
    """The sessions of one client and the link under them."""

    def __init__(self, link: Core[LinkInput, LinkEffect], endpoints: Endpoints, settings: Settings) -> None:
        self._link = link
        self._endpoints = endpoints
        self._settings = settings
        self._dials: dict[int, str] = {}
        self._stopped = False
        self._connect_due_ns: int | None = None
        """When a handshake is late, or an endpoint may be tried."""
        self._connect_due_stale = True
        """True if endpoints or sessions changed since that time was computed."""
        self.sessions: dict[bytes, ClientSession] = {}
        self.effects: list[HostEffect] = []
        """Effects for the host."""
        self.session_events: deque[SessionEvent] = deque()
        """Events for the layer above, oldest first."""

    def on_host_event(self, now_ns: int, event: Arrived | Connected | Disconnected | Flushed) -> None:
        """Process a network event of a connection."""
        channel = event.dial if isinstance(event, Connected) else event.channel
        endpoint = self._dials.get(channel, "") if isinstance(channel, int) else ""
        self._step_link(now_ns, event, endpoint)
        match event:
            case Connected() if endpoint in self._connecting():
                self._endpoints.set_progress(endpoint, NOT_GREETED)
            case Disconnected() if endpoint:
                self._on_connection_closed(now_ns, channel, event.reason)

    def mark_unusable(self, now_ns: int, instances: frozenset[bytes]) -> None:
        """The nodes of these sessions accept no requests of this client: keep sessions with others as well."""
        found = frozenset(self.sessions[one].endpoint for one in instances if one in self.sessions)
        if found != self._endpoints.unusable:
            self._endpoints.unusable = found
            self._choose(now_ns)

    def on_members(self, now_ns: int, nodes: MembersAre) -> None:
        """A node sent its member list: connect to new members and leave removed ones."""
        removed = self._endpoints.update_members(nodes)
        self._step_link(now_ns, PinNodeKeys(self._endpoints.keys, self._endpoints.removed_keys), "")
        for endpoint in removed:
            self._give_up(now_ns, endpoint, "it was removed from the cluster")
        self._choose(now_ns)

    def on_drained(self, now_ns: int, event: Drained) -> None:
        """All inputs of this round are processed: the link sends its queues."""
        self._step_link(now_ns, event, "")

    def send(self, now_ns: int, say: Say) -> None:
        """Send a command on its session."""
        session = self.sessions[say.instance]
        self._step_link(now_ns, say, session.endpoint)

    def tick(self, now_ns: int) -> None:
        """Act on everything that is due: the link's timers, PINGs, silent nodes, late handshakes, and retries."""
        due = self._link.deadline()
        if due is not None and due <= now_ns:
            self._step_link(now_ns, Woken(), "")
        for session in list(self.sessions.values()):
            if session.is_silent(now_ns):
                seconds = self._settings.answer_within_ns / 1e9
                self._give_up(now_ns, session.endpoint, f"it left a ping unanswered for {seconds:g} s")
            elif session.needs_ping(now_ns):
                self.send(now_ns, session.ping(now_ns))
        for endpoint in self._late(now_ns):
            seconds = self._settings.greet_within_ns / 1e9
            self._give_up(now_ns, endpoint, self._endpoints.progress(endpoint) or f"no answer within {seconds:g} s")
        self._choose(now_ns)

    def stop(self, now_ns: int) -> None:
        """Close all sessions, and dial no more."""
        self._stopped = True
        for endpoint in list(self._endpoints.wanted):
            del self._endpoints.wanted[endpoint]
            self._step_link(now_ns, Forget(endpoint), endpoint)
        self.sessions.clear()
        self.session_events.clear()

    def deadline(self) -> int | None:
        """When `tick` has something to do; None after `stop`."""
        if self._stopped:
            return None
        if self._connect_due_stale:
            late = [since + self._settings.greet_within_ns for since in self._connecting().values()]
            self._connect_due_ns = soonest((self._endpoints.next_ns(), *late))
            self._connect_due_stale = False
        return soonest((self._connect_due_ns, self._link.deadline(), *[one.due_ns for one in self.sessions.values()]))

    def _choose(self, now_ns: int) -> None:
        self._connect_due_stale = True
        if self._stopped:
            return
        for endpoint in self._endpoints.choose(now_ns):
            self._step_link(now_ns, Meet(endpoint), endpoint)

    def _connecting(self) -> dict[str, int]:
        """Wanted endpoints without a session, and since when they are wanted."""
        met = {session.endpoint for session in self.sessions.values()}
        return {endpoint: since for endpoint, since in self._endpoints.wanted.items() if endpoint not in met}

    def _late(self, now_ns: int) -> list[str]:
        """Endpoints whose handshake takes too long."""
        within_ns = self._settings.greet_within_ns
        return [endpoint for endpoint, since in self._connecting().items() if now_ns >= since + within_ns]

    def _step_link(self, now_ns: int, event: LinkInput, endpoint: str) -> None:
        """Step the link. Host effects are queued before internal ones are processed.

        Effects that follow from the internal ones must leave after them.
        """
        internal: list[LinkEffect] = []
        for effect in self._link.step(now_ns, event):
            match effect:
                case Dial():
                    self._dials[effect.dial] = effect.endpoint
                    self.effects.append(effect)
                case Send() | Admit() | Refuse():
                    self.effects.append(effect)
                case HangUp():
                    self.effects.append(effect)
                    internal.append(effect)
                case Report():
                    self.effects.append(effect)
                    internal.append(effect)
                case Met() | Said() | Missed() | CommandDropped() | Parted():
                    internal.append(effect)
                case _:
                    assert_never(effect)
        for effect in internal:
            self._on_link_effect(now_ns, effect, endpoint)

    def _on_link_effect(self, now_ns: int, effect: LinkEffect, endpoint: str) -> None:
        match effect:
            case Met():
                self._on_met(now_ns, effect, endpoint)
            case Parted():
                session = self.sessions.get(effect.peer.instance)
                if session is not None:
                    self._give_up(now_ns, session.endpoint, effect.reason)
            case HangUp():
                self._on_connection_closed(now_ns, effect.channel, "this client closed the connection")
            case Report():
                self._on_report(now_ns, effect, endpoint or effect.peer)
            case Said():
                if (session := self.sessions.get(effect.instance)) is not None:
                    session.mark_heard(now_ns)
                    self.session_events.append(effect)
            case Missed() | CommandDropped():
                self.session_events.append(effect)

    def _on_report(self, now_ns: int, report: Report, endpoint: str) -> None:
        """Give up an endpoint whose greeting the link rejected: waiting does not help."""
        if report.event == GREETING_REFUSED and endpoint in self._connecting():
            detail = ", ".join(f"{name} {value}" for name, value in report.detail.items() if name != "reason")
            reason = f"{REFUSED}, {report.detail.get('reason', '')}{f' ({detail})' if detail else ''}"
            self._give_up(now_ns, endpoint, reason)

    def _on_met(self, now_ns: int, met: Met, endpoint: str) -> None:
        self._connect_due_stale = True
        instance = met.peer.instance
        endpoint = endpoint or met.peer.endpoint
        # The same instance again: the node reconnected, or two endpoints lead to one node.
        previous = self.sessions.pop(instance, None)
        if previous is not None:
            self.session_events.append(SessionLost(instance, previous.endpoint, "a new session took its place"))
        if previous is not None and previous.endpoint != endpoint:
            self._give_up(now_ns, previous.endpoint, f"it is the same node as {endpoint}")
        if endpoint not in self._endpoints.wanted:
            return
        self._endpoints.succeeded(endpoint, met.peer.key)
        self.sessions[instance] = ClientSession(instance, endpoint, now_ns, self._settings)
        self.session_events.append(SessionReady(instance))

    def _on_connection_closed(self, now_ns: int, channel: int | bytes, reason: str) -> None:
        """A connection ended. If it was the only one to a wanted endpoint, the endpoint failed."""
        endpoint = self._dials.pop(channel, "") if isinstance(channel, int) else ""
        if endpoint in self._endpoints.wanted:
            self._give_up(now_ns, endpoint, reason)

    def _give_up(self, now_ns: int, endpoint: str, reason: str) -> None:
        """The endpoint failed: end its session and try another endpoint."""
        if endpoint in self._endpoints.wanted:
            self._endpoints.failed(now_ns, endpoint, reason, refused=reason.startswith(REFUSED))
        for session in [session for session in self.sessions.values() if session.endpoint == endpoint]:
            del self.sessions[session.instance]
            self.session_events.append(SessionLost(session.instance, endpoint, reason))
        self._step_link(now_ns, Forget(endpoint), endpoint)
        self._choose(now_ns)
