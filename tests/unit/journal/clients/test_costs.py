"""Which requests of clients the journal charges, beside what their size costs."""

from __future__ import annotations

from chaplain.costs import READ, STATEMENT, Charge
from chaplain.journal.events import JournalParcel
from chaplain.journal.messages import client
from chaplain.journal.messages.consumer import CONSUMER
from chaplain.journal.messages.write_request import STATEMENTS
from chaplain.wire.parcel import Layer, Parcel
from tests.support.execution_stage import pack
from tests.support.journal_cluster import Client, Cluster


def charges(asker: Client, message: client.ClientMessage, payload: bytes = b"") -> list[int]:
    """The units that the client's node charges for this message."""
    parcel = Parcel(asker.identity.identifier, Layer.JOURNAL, client.encode(message), payload)
    node = asker.cluster.nodes[asker.node]
    effects = node.core.step(asker.cluster.now_ns, JournalParcel(asker.peer, parcel))
    charged = [effect for effect in effects if isinstance(effect, Charge)]
    assert all(effect.key == asker.peer.key for effect in charged)
    return [effect.units for effect in charged]


def test_client_is_charged_for_reads_and_statements_and_not_for_plain_writes() -> None:
    cluster = Cluster(3)
    cluster.elect()
    asker = Client(cluster).connect(cluster.master)
    lane = asker.lease()
    assert charges(asker, client.Read(1, "s", 0, 1)) == [READ]
    assert charges(asker, client.Write("s"), bytes(pack(lane, 1).raw)) == []
    statements = pack(lane, 2, (b"a", b"b"), message_type=STATEMENTS)
    assert charges(asker, client.Write("s"), bytes(statements.raw)) == [2 * STATEMENT]
    commands = pack(lane, 2, (b"a", b"b", b"c"), message_type=CONSUMER)
    assert charges(asker, client.Write("s"), bytes(commands.raw)) == [3 * STATEMENT]
