"""`chaplain console`: serves the web console."""

from __future__ import annotations

from pathlib import Path

import click

from chaplain.cli.support.output import cluster_option, output_option, print_json

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(epilog="Example: chaplain console --cluster demo")
@cluster_option
@click.option("--node", type=click.IntRange(1), metavar="I", help="Show only node I.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve at.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=7470, show_default=True, help="Port to serve at; 0: any free port."
)
@click.option("--token-file", type=_FILE, help="File with the token that browsers must present.")
@click.option("--tls-cert", type=_FILE, help="TLS certificate, required for addresses other than loopback.")
@click.option("--tls-key", type=_FILE, help="Private key of the certificate.")
@output_option
def console(
    cluster: str,
    node: int | None,
    host: str,
    port: int,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    output: str,
) -> None:
    """Serve a read-only web page that shows nodes, master, streams and clients live.

    By default only this machine can open it. Other addresses need a token and TLS. Ctrl-C ends the command.
    """
    from chaplain.config import choose_nodes, load_cluster  # noqa: PLC0415
    from chaplain.console.app import check_exposure, make_app  # noqa: PLC0415
    from chaplain.console.serve import serve  # noqa: PLC0415
    from chaplain.console.watch import Watcher  # noqa: PLC0415

    choose_nodes(load_cluster(cluster).nodes, node)
    token = token_file.read_text().strip() if token_file is not None else ""
    check_exposure(host, token=token, tls=tls_cert is not None and tls_key is not None)
    tls = (tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
    serve(make_app(Watcher(cluster, node), token), host, port, tls, lambda url: _print_url(url, output))


def _print_url(url: str, output: str) -> None:
    if output == "json":
        print_json({"url": url})
    else:
        click.echo(f"The console is at {url} (Ctrl-C ends it)")
