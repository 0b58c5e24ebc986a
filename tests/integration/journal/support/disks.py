"""Disks that fail: syncs that return EIO, and small file systems that can be filled. Needs root and Debian tools."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.process_cluster import Node, until

HOW = "`apt-get install strace mount`, and run as root"
FAILING = "inject=fdatasync,fsync:error=EIO"
MIB = 1 << 20


@cache
def missing() -> str:
    """Why disks cannot be made to fail here; empty if they can."""
    if os.geteuid() != 0:
        return f"failing disks need root: {HOW}"
    for tool in ("strace", "mount"):
        if shutil.which(tool) is None:
            return f"{tool} is missing: {HOW}"
    done = subprocess.run(
        ["strace", "-f", "-o", "/dev/null", "-e", "inject=fdatasync:error=EIO", "true"],
        capture_output=True,
        check=False,
    )
    return "" if done.returncode == 0 else f"strace does not work here ({done.stderr.decode().strip()}): {HOW}"


@contextlib.contextmanager
def syncs_fail(node: Node, trace: Path) -> Iterator[None]:
    """From now on every sync of this process returns EIO; `trace` shows each that it tried."""
    command = [
        "strace",
        "-f",
        "-o",
        str(trace),
        "-e",
        "trace=fdatasync,fsync",
        "-e",
        "inject=fdatasync,fsync:error=EIO",
    ]
    tracer = subprocess.Popen([*command, "-p", str(node.pid)], stderr=subprocess.PIPE)
    try:
        assert tracer.stderr is not None
        assert b"attached" in tracer.stderr.readline()
        yield
    finally:
        tracer.terminate()
        tracer.communicate()


def failed_syncs(trace: Path) -> int:
    return trace.read_text().count("(INJECTED)")


class SmallDisk:
    """A file system of its own for one node's log."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        self._size_bytes = size_bytes
        self._filler = folder / "filler"

    def __enter__(self) -> SmallDisk:
        held = {file.name: file.read_bytes() for file in self.folder.iterdir()}
        options = f"size={self._size_bytes},mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)], check=True)
        for name, data in held.items():
            (self.folder / name).write_bytes(data)
        return self

    def __exit__(self, *_: object) -> None:
        until(self._unmounted, f"{self.folder} is let go", limit_s=20)

    def _unmounted(self) -> bool:
        return subprocess.run(["umount", str(self.folder)], capture_output=True, check=False).returncode == 0

    def fill(self) -> None:
        """To the last octet."""
        with self._filler.open("wb") as stream, contextlib.suppress(OSError):
            while True:
                stream.write(bytes(MIB // 16))
                stream.flush()

    def make_room(self) -> None:
        self._filler.unlink()
