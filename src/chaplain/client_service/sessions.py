"""The clients that have a session with this node, and what each of them listens to."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Topic(NamedTuple):
    """Something to listen to: all events, these and news of nodes, a pool, or the asking of a question."""

    kind: Literal["events", "news", "pool", "question"]
    name: str = ""


class ConnectedClient:
    def __init__(self, instance: bytes, name: str, key: bytes) -> None:
        self.instance = instance
        self.name = name
        self.key = key
        self.waiting = 0
        """Calls of this client that another layer has yet to answer."""
        self.listening: dict[int, Topic] = {}
        self.missed = 0
        """Messages lost on the way to this client since its last pool item."""

    @property
    def is_in_a_pool(self) -> bool:
        return any(topic.kind == "pool" for topic in self.listening.values())


class Listeners:
    """Who listens to what, in the order they came."""

    def __init__(self) -> None:
        self._by_topic: dict[Topic, list[tuple[ConnectedClient, int]]] = {}

    def of(self, topic: Topic) -> tuple[tuple[ConnectedClient, int], ...]:
        return tuple(self._by_topic.get(topic, ()))

    def names(self, kind: str) -> tuple[str, ...]:
        """Of the topics of one kind that somebody here listens to."""
        return tuple(topic.name for topic in self._by_topic if topic.kind == kind)

    def add(self, topic: Topic, guest: ConnectedClient, call: int) -> bool:
        """True if this is the topic's first listener here."""
        guest.listening[call] = topic
        listeners = self._by_topic.setdefault(topic, [])
        listeners.append((guest, call))
        return len(listeners) == 1

    def remove(self, topic: Topic, guest: ConnectedClient, call: int) -> bool:
        """True if nobody here listens to the topic any more."""
        del guest.listening[call]
        listeners = self._by_topic[topic]
        listeners.remove((guest, call))
        if listeners:
            return False
        del self._by_topic[topic]
        return True

    def drop(self, guest: ConnectedClient) -> list[Topic]:
        """Forget a client; the topics that nobody here listens to any more."""
        return [topic for call, topic in list(guest.listening.items()) if self.remove(topic, guest, call)]
