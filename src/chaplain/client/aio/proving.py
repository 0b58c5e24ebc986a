"""Proofs of messages, for asyncio: asks nodes for the parts that `api.proof_calls` puts together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaplain.client.aio.connection import AsyncClientContext
from chaplain.client.api import proof_calls
from chaplain.client.api.proof_calls import FoundPack, LeafSearch
from chaplain.errors import Missing
from chaplain.proofs.proof import Proof
from chaplain.proofs.tiles import Tile

if TYPE_CHECKING:
    from chaplain.client.aio.journal import AsyncJournal


async def prove(context: AsyncClientContext, journal: AsyncJournal[Any], offset: int) -> Proof:
    """Make a proof of one message. Waits until a signed checkpoint covers it."""
    offset = proof_calls.offset(offset)
    pack = await _find_pack(journal, offset)
    signed = await context.run(proof_calls.checkpoint(pack.index))
    size = signed.checkpoint.size
    search = LeafSearch(pack, journal.stream, size)
    while (name := search.next_bundle()) is not None:
        search.take(await context.run(proof_calls.tile(name)))
    at = search.result()
    tiles: dict[Tile, bytes] = {}
    for tile in proof_calls.tiles_needed(at[0], size):
        tiles[tile] = await context.run(proof_calls.tile(tile.path))
    return proof_calls.assemble(pack, at, offset, signed, tiles)


async def _find_pack(journal: AsyncJournal[Any], offset: int) -> FoundPack:
    async with journal.read(offset, offset + 1) as reader:
        async for chunk in reader.portions():
            return proof_calls.find_pack(chunk, offset)
    raise Missing(f"stream {journal.stream!r} has no message at offset {offset}")
