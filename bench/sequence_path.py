"""Measures the Python cost of one event of the sequence: three nodes in one process, without sockets.

The cores are the real ones; frames are passed in memory. One node publishes, one event at a time, as in `sequence.py`.
The figures are microseconds with warm caches, and function calls including built-in ones, whose number does not depend
on the load of the machine. An event on real nodes costs more: see `sequence.py`.
"""

from __future__ import annotations

import time
from random import Random

from paths import Network, Party, measure, options, show
from support.sequence_programs import make_node

NODES = 3


def build() -> Network:
    network = Network(time.time_ns())
    endpoints = [f"tcp://127.0.0.1:{port}" for port in range(1, 1 + NODES)]
    for index, endpoint in enumerate(endpoints):
        node = make_node(index, endpoints, Random(index), network.now_ns)
        network.parties[endpoint] = Party(f"node {index}", node, node.routing_id)
    network.run(lambda: all(party.core.working() for party in network.parties.values()))
    return network


def publish(network: Network, publisher: Party, value: bytes) -> None:
    numbers: list[int] = []
    layer = publisher.core.layer
    layer.publish(value, numbers.append)
    network.give(publisher, layer.taken())
    network.run(lambda: bool(numbers))


def main() -> None:
    parser = options("event", __doc__)
    parser.add_argument("--publisher", type=int, default=0, choices=range(NODES), help="which node publishes")
    asked = parser.parse_args()
    value = bytes(asked.size)
    network = build()
    publisher = list(network.parties.values())[asked.publisher]
    for _ in range(200):
        publish(network, publisher, value)
    found = measure(network, lambda: publish(network, publisher, value), asked.acts, asked.profile)
    show("an event", network, found, asked.acts, lambda party: " (publisher)" if party is publisher else "")


if __name__ == "__main__":
    main()
