"""Offers the complete checkpoints of a node to witnesses (C2SP tlog-witness), and returns their cosignatures.

    newest complete checkpoint ──▶ to all witnesses at once ──▶ published, with the cosignatures that arrived in time

Decides what a witness is asked, and when. `TreeService` decides which checkpoint is offered and served. The hashes of a
consistency proof come from the node's own tiles, so a wrong tile can only make a witness refuse.

Invariant: only valid signatures of configured keys are retained. An invalid line in the name of a node or of another
witness would make every proof with this checkpoint fail.

Bounds: `ANSWER_S` for all answers to one checkpoint. A witness that failed is not asked again for `PAUSE_S`, so one
that is down delays one checkpoint in that time. An answer has at most `NOTE_BYTES_MAX` octets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from http.client import HTTPException
from typing import Protocol
from urllib.error import HTTPError
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

from chaplain.errors import ChaplainError, Malformed, Missing
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import merkle, note
from chaplain.proofs.checkpoint import SignedCheckpoint
from chaplain.proofs.note import NOTE_BYTES_MAX, Signature, VerifierKey
from chaplain.proofs.tiles import TileSource, node_source
from chaplain.proofs.witness import SIZE_TEXT, AddCheckpoint

ADD_CHECKPOINT = "/add-checkpoint"
ANSWER_S = 2.0
PAUSE_S = 10.0
LOOK_S = 0.1
"""Interval at which the node is asked for a new checkpoint."""
ATTEMPTS = 3
"""Requests for one checkpoint: the witness answers the first one with the size that it signed last."""
CONFLICT = 409


class WitnessedTree(Protocol):
    """The node's side. Each method may raise `TimeoutError` if the node does not answer."""

    def unpublished(self) -> SignedCheckpoint | None:
        """Return the newest complete checkpoint if it was not published yet."""

    def publish(self, signed: SignedCheckpoint) -> None:
        """Serve this checkpoint, to which cosignatures were added."""

    def report(self, url: str, reason: str) -> None:
        """Record that a witness gave no cosignature."""


class WitnessLink:
    """One witness: its URL, the size that it signed last, and the time until which it is left alone."""

    def __init__(self, url: str, keys: Sequence[VerifierKey], opener: OpenerDirector) -> None:
        self.url = url
        self._keys = keys
        self._opener = opener
        self._size = 0
        self.paused_until_s = 0.0

    def cosign(self, signed: SignedCheckpoint, source: TileSource) -> tuple[Signature, ...]:
        """Return the witness's signatures of this checkpoint. Raises `Missing` if it gives none."""
        tree = signed.checkpoint
        for _ in range(ATTEMPTS):
            old = min(self._size, tree.size)
            path = merkle.consistency_proof(old, tree.size, node_source(tree.size, source))
            status, kind, body = self._post(AddCheckpoint(old, tuple(path), signed).encode().encode())
            if status == CONFLICT and kind.startswith(SIZE_TEXT):
                self._size = checkpoints.parse_number(body.decode("ascii", "replace").strip(), "witness: size")
                if self._size > tree.size:
                    raise Missing(f"it has signed {self._size} entries already")
                continue
            if status != 200:
                raise Missing(f"status {status}: {body[:200].decode('utf-8', 'replace').strip()}")
            self._size = tree.size
            found = note.parse_signatures(body.decode("utf-8", "replace"))
            held = tuple(one for one in found for key in self._keys if checkpoints.holds(key, tree, one))
            if not held:
                raise Missing("its answer has no valid signature of a key in witness.keys")
            return held
        raise Missing("it changes the size that it expects with every request")

    def _post(self, body: bytes) -> tuple[int, str, bytes]:
        request = Request(self.url.rstrip("/") + ADD_CHECKPOINT, body, method="POST")  # noqa: S310  http, from the settings
        try:
            with self._opener.open(request, timeout=ANSWER_S) as response:
                return response.status, str(response.headers.get("Content-Type", "")), response.read(NOTE_BYTES_MAX)
        except HTTPError as error:
            with error:
                return error.code, str(error.headers.get("Content-Type", "")), error.read(NOTE_BYTES_MAX)


class WitnessClient:
    """Offers checkpoints in a background thread, from construction until `end`."""

    def __init__(
        self, urls: Sequence[str], keys: Sequence[VerifierKey], tree: WitnessedTree, source: TileSource
    ) -> None:
        opener = build_opener(ProxyHandler({}))
        self._links = [WitnessLink(url, keys, opener) for url in urls]
        self._tree = tree
        self._source = source
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(len(urls), "witness")
        self._thread = threading.Thread(target=self._run, name="witnesses", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            with suppress(TimeoutError):  # the node is busy or ends: look again
                signed = self._tree.unpublished()
                if signed is not None:
                    self._tree.publish(checkpoints.with_signatures(signed, self.offer(signed)))

    def offer(self, signed: SignedCheckpoint) -> list[Signature]:
        """Offer a checkpoint to all witnesses. Returns the signatures that arrived in time."""
        now_s = time.monotonic()
        asked = {
            self._pool.submit(link.cosign, signed, self._source): link
            for link in self._links
            if now_s >= link.paused_until_s
        }
        done, late = wait(asked, ANSWER_S)
        found: list[Signature] = []
        for one in done:
            try:
                found += one.result()
            except (OSError, HTTPException, ChaplainError) as error:
                self._pause(asked[one], str(error))
        for one in late:
            one.cancel()
            self._pause(asked[one], f"no answer within {ANSWER_S} s")
        return found

    def _pause(self, link: WitnessLink, reason: str) -> None:
        link.paused_until_s = time.monotonic() + PAUSE_S
        self._tree.report(link.url, reason)

    def end(self) -> None:
        self._ended.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._thread.join(ANSWER_S)


def parse_keys(texts: Sequence[str]) -> tuple[VerifierKey, ...]:
    """Read the keys of witnesses. Raises `Malformed` for a key that cannot cosign."""
    keys = tuple(note.parse_key(text) for text in texts)
    for key in keys:
        if key.algorithm != note.COSIGNATURE:
            raise Malformed(f"{key.name!r} has no key of cosignatures")
    return keys
