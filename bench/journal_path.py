"""Measures the Python cost of one write: three nodes and a client in one process, without sockets and disks.

The cores are the real ones; frames are passed in memory, and writes to disk complete immediately. The figures are
microseconds with warm caches, function calls including built-in ones, and modules of the package that at least every
second write calls. Calls and modules do not depend on the load of the machine. A write to real nodes costs more: see
`journal.py`.
"""

from __future__ import annotations

import tempfile
import time
from itertools import count
from pathlib import Path
from random import SystemRandom

from chaplain.client.api.journal_calls import single
from chaplain.client.api.journal_calls import write as ask_to_write
from chaplain.client.connect.options import prepare
from chaplain.client.protocol.events import Returned
from chaplain.client.protocol.journal.events import WritesAcknowledged
from chaplain.config import NODE_FILE, load_cluster, load_node
from chaplain.journal.consensus.events import Role
from chaplain.journal.events import Verified, Verify
from chaplain.journal.messages.signing import holds
from chaplain.link.auth.identity import new_instance
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.layers.node import make_node
from paths import Network, Party, measure, options, show

STREAM = "bench"


def build(directory: Path) -> tuple[Network, Party]:
    make_cluster(directory, 3, "none", None)
    network = Network(time.time_ns(), {Verify: _verified})
    for node in load_cluster(directory).nodes:
        config = load_node(directory / f"node-{node.id}" / NODE_FILE)
        core = make_node(config, node.endpoint, new_instance(SystemRandom()), network.now_ns)
        network.parties[node.endpoint] = Party(f"node {node.id}", core, core.routing_id)
    opening = prepare(directory, endpoints=None, identity=None, node_keys=None, name=None, node=None, timeout_s=30.0)
    core, sockets = opening.build()
    client = network.parties["client"] = Party("client", core, sockets.routing_id)
    sockets.close()
    nodes = [party for party in network.parties.values() if party is not client]
    network.run(lambda: sum(party.core.role.role is Role.MASTER for party in nodes) == 1)
    return network, client


def write(network: Network, client: Party, number: int, value: bytes) -> None:
    ask = ask_to_write(single(STREAM, value, None, None))
    client.told.clear()
    network.give(client, ask.build(number, 30 * 10**9))
    network.run(lambda: any(isinstance(told, Returned | WritesAcknowledged) for told in client.told))


def _verified(verify: Verify) -> Verified:
    return Verified(verify.ticket, tuple(map(holds, verify.items)))


def role(party: Party) -> str:
    return f" ({party.core.role.role.name.lower()})" if hasattr(party.core, "role") else ""


def main() -> None:
    asked = options("write", __doc__).parse_args()
    value = bytes(asked.size)
    numbers = count(1)
    with tempfile.TemporaryDirectory(prefix="chaplain-bench-") as directory:
        network, client = build(Path(directory))
        for _ in range(200):
            write(network, client, next(numbers), value)
        found = measure(network, lambda: write(network, client, next(numbers), value), asked.acts, asked.profile)
        show("a write", network, found, asked.acts, role)


if __name__ == "__main__":
    main()
