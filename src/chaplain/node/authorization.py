"""Authorization of client requests: layers say which right a request needs, the journal says which client has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chaplain import rights
from chaplain.journal.core import JournalCore
from chaplain.journal.model.records import IdentityStatus
from chaplain.node.layer_api import UpperCore
from chaplain.rights import RequiredRight
from chaplain.wire.parcel import Layer


class Authorization:
    def __init__(self, journal: JournalCore | None, uppers: Mapping[Layer, UpperCore]) -> None:
        self._journal = journal
        self._wants: dict[int, Callable[[bytes], RequiredRight | None]] = {
            layer: core.wants for layer, core in uppers.items() if hasattr(core, "wants")
        }

    def wants(self, layer: int, body: bytes) -> RequiredRight | None:
        wanted = self._wants.get(layer)
        return None if wanted is None else wanted(body)

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
