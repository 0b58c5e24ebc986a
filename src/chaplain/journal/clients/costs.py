"""The cost of a client's request to the journal for the cluster, beyond the cost of its size (`chaplain.costs`)."""

from __future__ import annotations

from chaplain import costs
from chaplain.journal.messages import client
from chaplain.journal.messages.write_request import statements_in
from chaplain.journal.tree.service import CHECKPOINT


def extra_cost(message: client.ClientMessage, payload: bytes) -> int:
    match message:
        case client.Write():
            return costs.STATEMENT * statements_in(payload)
        case client.Read() | client.AskProof():
            return costs.READ
        case client.AskConsumers():
            return costs.SPREAD if message.name else costs.READ
        case client.AskTree():
            # A tile may be read from a file, and a part of it is made anew. A checkpoint is in memory.
            return 0 if message.name == CHECKPOINT else costs.SPREAD
        case client.SubmitPetition() | client.Grant():
            return costs.SPREAD
        case _:
            return 0
