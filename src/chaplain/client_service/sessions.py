"""The clients that have a session with this node, and the subscriptions of each."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Topic(NamedTuple):
    """The topic of a subscription: events, events together with changes of nodes, a pool, messages to this node,
    or a question.
    """

    kind: Literal["events", "news", "pool", "messages", "question"]
    name: str = ""


class ConnectedClient:
    """A client that has a session with this node."""

    def __init__(self, instance: bytes, name: str, key: bytes) -> None:
        self.instance = instance
        self.name = name
        self.key = key
        self.waiting = 0
        """Calls of this client that another layer has not answered yet."""
        self.listening: dict[int, Topic] = {}
        """The topic of each subscription, by call."""
        self.missed = 0
        """Messages to this client that were lost since its last pool item."""

    @property
    def is_in_a_pool(self) -> bool:
        return any(topic.kind == "pool" for topic in self.listening.values())


class Listeners:
    """The listeners of each topic, in the order in which they subscribed."""

    def __init__(self) -> None:
        self._by_topic: dict[Topic, list[tuple[ConnectedClient, int]]] = {}

    def of(self, topic: Topic) -> tuple[tuple[ConnectedClient, int], ...]:
        """The listeners of a topic, with the number of each subscription."""
        return tuple(self._by_topic.get(topic, ()))

    def names(self, kind: str) -> tuple[str, ...]:
        """The names of all topics of one kind that have a listener here."""
        return tuple(topic.name for topic in self._by_topic if topic.kind == kind)

    def add(self, topic: Topic, client: ConnectedClient, call: int) -> bool:
        """Add a listener. Returns True if it is the first one of the topic."""
        client.listening[call] = topic
        listeners = self._by_topic.setdefault(topic, [])
        listeners.append((client, call))
        return len(listeners) == 1

    def remove(self, topic: Topic, client: ConnectedClient, call: int) -> bool:
        """Remove a listener. Returns True if it was the last one of the topic."""
        del client.listening[call]
        listeners = self._by_topic[topic]
        listeners.remove((client, call))
        if listeners:
            return False
        del self._by_topic[topic]
        return True

    def drop(self, client: ConnectedClient) -> list[Topic]:
        """Remove all subscriptions of a client. Returns the topics that have no listener any more."""
        return [topic for call, topic in list(client.listening.items()) if self.remove(topic, client, call)]
