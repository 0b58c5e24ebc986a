"""`chaplain gateway` serves a cluster over HTTP; `chaplain token` manages the tokens of its users."""

from __future__ import annotations

import time
from pathlib import Path

import click

from chaplain.cli.support.connection_options import cluster_options, connected
from chaplain.cli.support.new_client import add_with_identity, rights
from chaplain.cli.support.output import cluster_option, output_option, print_json, print_table, progress

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_NEW_FILE = click.Path(path_type=Path, dir_okay=False, writable=True)


@click.command(epilog="Example: chaplain gateway --cluster demo --port 7490")
@cluster_option
@click.option("--bind", default="127.0.0.1", show_default=True, help="Address to serve at.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=7490, show_default=True, help="Port to serve at; 0: any free port."
)
@click.option("--tls-cert", type=_FILE, help="TLS certificate.")
@click.option("--tls-key", type=_FILE, help="Private key of the certificate.")
@click.option("--plain-http", is_flag=True, help="Serve without TLS beyond loopback, behind a proxy that does TLS.")
@click.option("--settings", "settings_file", type=_FILE, help="TOML file with bounds and time-outs.")
@output_option
def gateway(
    cluster: str,
    bind: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    plain_http: bool,
    settings_file: Path | None,
    output: str,
) -> None:
    """Serve streams, proofs and status over HTTP, for programs in any language.

    Requests carry a token of `chaplain token new`. The gateway signs with the key of the token's client, and the
    cluster enforces this client's rights. Ctrl-C ends the command.
    """
    from chaplain.cli.commands.proof import policy_text  # noqa: PLC0415
    from chaplain.client.aio import AsyncClient  # noqa: PLC0415
    from chaplain.client.connect.identity_file import parse_identity_file  # noqa: PLC0415
    from chaplain.config import find_cluster  # noqa: PLC0415
    from chaplain.gateway.app import Gateway, make_app  # noqa: PLC0415
    from chaplain.gateway.clients import ClientPool  # noqa: PLC0415
    from chaplain.gateway.server import check_exposure, serve  # noqa: PLC0415
    from chaplain.gateway.settings import load_settings  # noqa: PLC0415
    from chaplain.gateway.tokens import TokenStore, token_directory  # noqa: PLC0415
    from chaplain.runtime.secret_files import read_secret  # noqa: PLC0415

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    tls = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
    check_exposure(bind, tls=tls is not None, plain=plain_http)
    settings = load_settings(settings_file)
    file = find_cluster(cluster)

    def connect(identity: str) -> AsyncClient:
        read_secret(Path(identity), parse_identity_file, "identity")  # refuses a file that others can read
        return AsyncClient.connect(file, identity=identity, timeout=settings.request_seconds)

    pool = ClientPool(connect, settings.clients_max, settings.client_idle_seconds)
    tokens = TokenStore(token_directory(cluster), time.monotonic, _report)
    served = Gateway(
        settings, tokens, pool, policy=lambda: policy_text(str(file)), clock_s=time.monotonic, report=_report
    )
    serve(make_app(served), settings, bind, port, tls=tls, report=lambda url: _print_url(url, output))


def _report(line: str) -> None:
    click.echo(f"chaplain: {line}", err=True)


def _print_url(url: str, output: str) -> None:
    if output == "json":
        print_json({"url": url})
    else:
        click.echo(f"The gateway is at {url} (Ctrl-C ends it)")


@click.group(epilog="Example: chaplain token new shop --write 'orders*' --out shop.header --cluster demo")
def token() -> None:
    """Create, list and remove the tokens of the HTTP gateway. Each token stands for one client of the cluster."""


@token.command(epilog="Example: chaplain token new shop --write 'orders*' --read '*' --out shop.header --cluster demo")
@click.argument("name")
@click.option("--write", "writes", multiple=True, metavar="PATTERN", help="Streams it may write; repeatable.")
@click.option("--read", "reads", multiple=True, metavar="PATTERN", help="Streams it may read; repeatable.")
@click.option("--identity", type=_FILE, help="Use the client of this identity file, instead of adding one.")
@click.option("--out", type=_NEW_FILE, help="Write the token to this new file, as a header for `curl -H @FILE`.")
@cluster_options
def new(
    name: str,
    writes: tuple[str, ...],
    reads: tuple[str, ...],
    identity: Path | None,
    out: Path | None,
    cluster: str,
    node: int | None,
    output: str,
) -> None:
    """Create a token called NAME, and print it. It cannot be shown again.

    The command adds a client of the same name to the cluster, with these rights; with neither --write nor --read it may
    write and read all streams. With --identity the token stands for an existing client and has its rights. The
    directory `gateway` of the cluster has the identity file and a hash of the token.
    """
    from chaplain.config import load_cluster  # noqa: PLC0415
    from chaplain.errors import ConfigError  # noqa: PLC0415
    from chaplain.gateway.tokens import create_token, make_directory, token_directory, token_file  # noqa: PLC0415
    from chaplain.runtime.secret_files import write_secret  # noqa: PLC0415

    if identity is not None and (writes or reads):
        raise click.UsageError("the client of --identity has its rights: leave out --write and --read")
    directory = token_directory(cluster)
    for file in (token_file(directory, name), out):
        if file is not None and file.exists():
            raise ConfigError(f"{file} exists: choose another name, or remove the token")
    client = ""
    if identity is None:
        make_directory(directory)
        client, identity = name, directory / f"{name}.identity"
        with connected(cluster, node) as admins:
            add_with_identity(admins, load_cluster(cluster), name, identity, rights(writes, reads))
    text = create_token(directory, name, identity.resolve(), client)
    if out is not None:
        write_secret(out, f"Authorization: Bearer {text}\n")
    if output == "json":
        shown = {"token": text} if out is None else {"file": str(out)}
        print_json({"name": name, "client": client or None, "identity": str(identity), **shown})
    elif out is None:
        progress("This token cannot be shown again:")
        click.echo(text)
    else:
        click.echo(f"The token of {name} is in {out}: curl -H @{out} …")


@token.command("list", epilog="Example: chaplain token list --cluster demo")
@cluster_option
@output_option
def list_tokens(cluster: str, output: str) -> None:
    """List the tokens. Neither tokens nor their hashes are shown."""
    from chaplain.gateway import tokens  # noqa: PLC0415

    found = tokens.list_tokens(tokens.token_directory(cluster))
    rows = [{"name": one.name, "client": one.client or None, "identity": one.identity} for one in found]
    if output == "json":
        print_json(rows)
    else:
        print_table(["name", "client", "identity"], rows)


@token.command(epilog="Example: chaplain token remove shop --cluster demo")
@click.argument("name")
@cluster_options
def remove(name: str, cluster: str, node: int | None, output: str) -> None:
    """Remove a token. A running gateway refuses it within a second.

    If `chaplain token new` added a client for the token, the command removes this client and its identity file, too.
    """
    from chaplain.errors import Missing  # noqa: PLC0415
    from chaplain.gateway.tokens import remove_token, token_directory  # noqa: PLC0415

    record = remove_token(token_directory(cluster), name)  # first: this works without the cluster
    if record.client:
        with connected(cluster, node) as admins:
            try:
                admins.remove_client(record.client)
            except Missing:  # removed by `chaplain client remove`
                progress(f"there is no client {record.client}")
        Path(record.identity).unlink(missing_ok=True)
    if output == "json":
        print_json({"removed": name, "client": record.client or None})
    else:
        click.echo(f"{name} is removed.")
