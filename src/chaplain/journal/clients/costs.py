"""The cost of a client's request to the journal for the cluster, beyond the cost of its size (`chaplain.costs`)."""

from __future__ import annotations

from chaplain import costs
from chaplain.journal.messages import client
from chaplain.journal.messages.write_request import statements_in


def extra_cost(message: client.ClientMessage, payload: bytes) -> int:
    match message:
        case client.Write():
            return costs.STATEMENT * statements_in(payload)
        case client.Read():
            return costs.READ
        case client.SubmitPetition() | client.Grant():
            return costs.SPREAD
        case _:
            return 0
