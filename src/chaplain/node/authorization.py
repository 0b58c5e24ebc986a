"""Authorization of client requests: layers say which right a request needs, the journal says which client has it."""

from __future__ import annotations

from collections.abc import Mapping

from chaplain import rights
from chaplain.gossip.layer_api import LayerCore
from chaplain.journal.core import JournalCore
from chaplain.journal.model.records import IdentityStatus
from chaplain.rights import RequiredRight
from chaplain.wire.parcel import Layer


class Authorization:
    def __init__(self, journal: JournalCore | None, uppers: Mapping[Layer, LayerCore]) -> None:
        self._journal = journal
        self._layers: Mapping[int, LayerCore] = {int(layer): core for layer, core in uppers.items()}

    def required_right(self, layer: int, body: bytes) -> RequiredRight | None:
        """The right that a client needs for this request to a layer; None if it needs none."""
        core = self._layers.get(layer)
        return None if core is None else core.required_right(body)

    def may(self, key: bytes, want: RequiredRight) -> bool:
        """Whether the configuration stream grants the right.

        Without a journal, every admitted client may do everything.
        """
        if self._journal is None:
            return True
        client = self._journal.execution.client_of_key(key)
        return client is not None and client.status == IdentityStatus.ACTIVE and rights.may(client, want)

    def is_admin(self, key: bytes) -> bool:
        """Whether the configuration stream makes this client an admin.

        Without a journal, every admitted client is one.
        """
        if self._journal is None:
            return True
        client = self._journal.execution.client_of_key(key)
        return client is not None and client.status == IdentityStatus.ACTIVE and client.admin
