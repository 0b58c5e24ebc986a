"""Serves the console's application on a socket until Ctrl-C."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from chaplain.runtime.http.listening import listen

STOP_WITHIN_S = 2
"""After Ctrl-C the server closes connections that are still open after this time, such as those of live pages."""


def serve(app: Starlette, host: str, port: int, tls: tuple[Path, Path] | None, report: Callable[[str], object]) -> None:
    """Listen, report the URL, and serve until interrupted. `tls` is the certificate and its key."""
    listening = listen(host, port)
    name = f"[{host}]" if ":" in host else host
    report(f"{'https' if tls else 'http'}://{name}:{listening.getsockname()[1]}/")
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        timeout_graceful_shutdown=STOP_WITHIN_S,
        ssl_certfile=None if tls is None else str(tls[0]),
        ssl_keyfile=None if tls is None else str(tls[1]),
    )
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop
        uvicorn.Server(config).run([listening])
