"""msgspec looks at a class when it is first to decode one, and the process dies if two threads come to that at once.

So whatever a client decodes is looked at when it is imported: then threads may begin with anything, all at once.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from contextlib import suppress

from chaplain import AsyncClient, Client
from chaplain.client.api import admin_calls, calls, graph_calls, journal_calls, sequence_calls
from chaplain.client.types.equivocation_proof import read_proof
from chaplain.config import load_cluster
from chaplain.errors import Malformed
from chaplain.graph.messages.client import ReadSnapshot
from msgspec import DecodeError

USES = {
    "load_cluster": lambda: load_cluster(sys.argv[1]),
    "status": lambda: calls.status().read(b""),
    "members": lambda: calls.members().read(b""),
    "ask": lambda: calls.ask("x", 1, b"").read(b""),
    "fire": lambda: calls.fire_and_wait("x", b"", None, 1).read(b""),
    "rotate_keys": lambda: calls.rotate_keys().read(b""),
    "streams": lambda: journal_calls.streams().read(b""),
    "clients": lambda: journal_calls.clients().read(b""),
    "nodes": lambda: admin_calls.cluster_config().read(b""),
    "proof": lambda: read_proof(b""),
    "append": lambda: graph_calls.append("x", b"").read(b""),
    "read": lambda: graph_calls.look_up(ReadSnapshot("x"), 1).read(b""),
    "publish": lambda: sequence_calls.publish("x", [b""]).read(b""),
    "look": lambda: sequence_calls.read_page("x", 1, 1, 0).read(b""),
}

def note(frame, event, _):
    if event == "call" and frame.f_code.co_name == "get_class_annotations":
        looked.add(use)

looked = set()
for use, perform in USES.items():
    sys.setprofile(note)
    with suppress(Malformed, DecodeError):
        perform()
    sys.setprofile(None)
print(*sorted(looked))
"""


def test_concurrent_first_use_inspects_no_class(tmp_path: Path) -> None:
    node = '[[nodes]]\nid = 1\nendpoint = "tcp://127.0.0.1:7001"\nkey = "k"\n'
    cluster = f'cluster = "x"\nseal = "hmac-sha256"\nidentity = "i"\n{node}'
    (tmp_path / "cluster.toml").write_text(cluster)
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("\n", "")
