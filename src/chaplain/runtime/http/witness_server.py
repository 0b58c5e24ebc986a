"""The HTTP server and the files of a witness.

One checkpoint for each origin is in the witness's directory, with the witness's cosignature. It is replaced and synced
before a response with a newer cosignature is sent, so a witness that was killed never signs a fork. A lock on the
directory prevents a second witness from using the same key.

Everything is bounded: connections, the size and the duration of a request, and the requests of a second.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

from chaplain import durable
from chaplain.errors import ConfigError, Malformed
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import witness
from chaplain.proofs.checkpoint import SignedCheckpoint
from chaplain.proofs.note import COSIGNATURE, KEY_BYTES, NOTE_BYTES_MAX, SecretKey
from chaplain.proofs.policy import Policy
from chaplain.proofs.witness import REQUEST_BYTES_MAX, TEXT, Witness, origin_hash
from chaplain.runtime.http.server import Answer, Handler, HttpServer
from chaplain.runtime.secret_files import read_secret, write_secret

KEY_FILE = "witness.key"
ADD_CHECKPOINT = "/add-checkpoint"
_LOCK_FILE = "lock"
_SUFFIX = ".checkpoint"


class WitnessStore:
    """The directory of a witness: its key, and the last checkpoint of each log."""

    def __init__(self, directory: Path, name: str = "") -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._lock = (directory / _LOCK_FILE).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ConfigError(f"another witness uses {directory}") from None
        self.secret = self._read_or_make_key(directory / KEY_FILE, name)

    def _read_or_make_key(self, file: Path, name: str) -> SecretKey:
        if not file.exists():
            secret = SecretKey(name or f"witness/{os.urandom(8).hex()}", os.urandom(KEY_BYTES), COSIGNATURE)
            write_secret(file, secret.text())
            return secret
        secret = read_secret(file, SecretKey.parse, "witness key")
        if name not in {"", secret.name} or secret.algorithm != COSIGNATURE:
            raise ConfigError(f"{file} contains the key of {secret.name}: leave out --name, or use another directory")
        return secret

    def read(self, origin: str) -> SignedCheckpoint | None:
        """Return the checkpoint of this log that was signed last."""
        text = self.text(origin_hash(origin))
        if text is None:
            return None
        try:
            found = checkpoints.parse(text)
        except Malformed as error:
            raise ConfigError(f"{self._file(origin_hash(origin))}: {error}; a witness must not forget") from None
        if found.checkpoint.origin != origin:
            raise ConfigError(f"{self._file(origin_hash(origin))} is a checkpoint of another log")
        return found

    def text(self, hashed: str) -> bytes | None:
        try:
            with self._file(hashed).open("rb") as file:
                return file.read(NOTE_BYTES_MAX + 1)
        except FileNotFoundError:
            return None

    def put(self, signed: SignedCheckpoint) -> None:
        durable.put(self._file(origin_hash(signed.checkpoint.origin)), signed.text)

    def _file(self, hashed: str) -> Path:
        return self._directory / f"{hashed}{_SUFFIX}"

    def close(self) -> None:
        self._lock.close()


class WitnessViews:
    """Answers requests to a witness."""

    def __init__(self, trusted: Policy, store: WitnessStore) -> None:
        self._store = store
        self._witness = Witness(trusted, store.secret)
        self._lock = threading.Lock()
        self._served = {f"/{origin_hash(origin)}/checkpoint": origin for origin in self._witness.origins}
        for origin in self._witness.origins:
            store.read(origin)  # a damaged file is an error before the first request

    def answer(self, path: str) -> Answer:
        """Serve the checkpoint that was signed last."""
        origin = self._served.get(path)
        text = None if origin is None else self._store.text(origin_hash(origin))
        return (404, TEXT, b"there is no such checkpoint\n") if text is None else (200, TEXT, text)

    def add_checkpoint(self, body: bytes) -> Answer:
        try:
            request = witness.parse(body)
        except Malformed as error:
            return 400, TEXT, f"{error}\n".encode()
        found = self._witness.check(request)
        if found is None:
            # One request at a time from here: two that extend the same checkpoint must not both succeed.
            with self._lock:
                last = self._store.read(request.signed.checkpoint.origin)
                found = self._witness.answer(request, last, int(time.time()))
                if found.stored is not None:
                    self._store.put(found.stored)
        return found.status, found.content_type, found.body.encode()


class _WitnessHandler(Handler):
    server: WitnessServer

    def do_POST(self) -> None:  # noqa: N802  the name that http.server calls
        self.respond(self._post)

    def _post(self) -> Answer:
        self.close_connection = True  # a refused body may be left unread
        if self.path != ADD_CHECKPOINT:
            return 404, TEXT, f"a witness accepts POST {ADD_CHECKPOINT}\n".encode()
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdecimal() or len(length) > 9 or int(length) > REQUEST_BYTES_MAX:
            return 413, TEXT, f"Content-Length must be at most {REQUEST_BYTES_MAX}\n".encode()
        body = self.rfile.read(int(length))
        if len(body) != int(length):
            return 400, TEXT, b"the request ended too early\n"
        return self.server.witness.add_checkpoint(body)


class WitnessServer(HttpServer):
    """Serves a witness in background threads, from construction until `end`."""

    handler = _WitnessHandler

    def __init__(self, host: str, port: int, trusted: Policy, store: WitnessStore) -> None:
        self.witness = WitnessViews(trusted, store)
        super().__init__(host, port, self.witness)
