"""Carries out what `chaplain member` promises: one change after the other, each followed to its end."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chaplain.cli.support.output import progress
from chaplain.errors import ConfigError, Missing, Refused, Unknown
from chaplain.journal.messages.membership import SERIALIZERS_MAX
from chaplain.journal.storage.last_known_members import LastKnownMembers
from chaplain.link.auth.identity import KEY_BYTES, from_text

if TYPE_CHECKING:
    from chaplain.client.sync import Client
    from chaplain.client.types.journal import AssemblyRecord, ChangeRecord, NodeRecord

FOLLOW_S = 60.0
"""How long a change is followed; it goes on without us."""
LET_GO_S = 10.0
"""Longer than the sequence takes to notice that a member is silent, and to take the lock from it."""
POLL_S = 0.05


class Changes:
    """Follows changes by their stages."""

    def __init__(self, client: Client, tell: Callable[[str], None]) -> None:
        self._client = client
        self._tell = tell

    def follow(self, change_id: str) -> ChangeRecord:
        """Wait until the change is over, and say each stage; raises if it was refused."""
        from chaplain.client.api.admin_calls import find_change  # noqa: PLC0415

        stage, end = "", time.monotonic() + FOLLOW_S
        while time.monotonic() < end:
            change = find_change(self._client.nodes(), change_id)
            if change is not None and change.stage != stage:
                stage = change.stage
                self._tell(f"{change.change.replace('_', ' ')} {', '.join(map(str, change.nodes))}: {stage}")
            if change is not None and not change.open:
                return _granted(change)
            time.sleep(POLL_S)
        raise Unknown(f"the change is still at stage {stage or 'none'} and goes on; `cluster status` shows it")


def _granted(change: ChangeRecord) -> ChangeRecord:
    if change.stage == "refuse":
        raise Refused(f"refused: {change.why}; nothing has changed")
    return change


def add_node(
    client: Client, directory: Path, number: int | None, roles: Sequence[str], endpoint: str, http: str
) -> dict[str, object]:
    census = client.nodes()
    known = {node.id: node for node in census.nodes}
    changes = Changes(client, progress)
    if number in known:
        wanted = [role for role in roles if role not in known[number].roles]
        assert number is not None
        return _give_roles(client, changes, number, wanted)
    number = number or max(known) + 1
    return _let_in(client, changes, directory, number, roles, endpoint, http)


def _let_in(
    client: Client,
    changes: Changes,
    directory: Path,
    number: int,
    roles: Sequence[str],
    endpoint: str,
    http: str,
) -> dict[str, object]:
    """The first role lets it in; it can catch up only once it runs."""
    from chaplain.runtime.cluster.join import list_node, make_folder  # noqa: PLC0415
    from chaplain.runtime.cluster.local import bring_up_one  # noqa: PLC0415

    holds_data = any(role != "config" for role in roles)
    newcomer = make_folder(directory, number, endpoint, http, _roster(client), holds_data=holds_data)
    key = from_text(newcomer.node.key, KEY_BYTES, "a node's key")
    try:
        opened = client.add_node(number, roles[0], newcomer.node.endpoint, key, newcomer.disk)
    except (Refused, ConfigError):
        shutil.rmtree(newcomer.folder)  # nobody will ever let these keys in
        raise
    list_node(directory, newcomer.node)
    if endpoint:
        return {"id": number, "roles": [], "folder": str(newcomer.folder), "waits": True}
    bring_up_one(directory, newcomer.node, progress)
    changes.follow(opened)
    given = {"roles": list(roles), "shown": ", ".join(roles), "folder": str(newcomer.folder)}
    return _give_roles(client, changes, number, roles[1:]) | given


def _roster(client: Client) -> LastKnownMembers:
    """Whom a newcomer may believe: its log is empty, and names founders who may all be gone."""
    census = client.nodes()
    keys = {node.id: node.key for node in census.nodes if node.member}
    return LastKnownMembers(client.status()["agreed"], (census.serializers,), keys)


def _give_roles(client: Client, changes: Changes, number: int, roles: Sequence[str]) -> dict[str, object]:
    for role in roles:
        changes.follow(client.add_node(number, role))
    return {"id": number, "roles": list(roles), "shown": ", ".join(roles) or "it was", "waits": False}


def remove_node(client: Client, directory: Path, number: int, roles: Sequence[str]) -> dict[str, object]:
    from chaplain.runtime.cluster.join import unlist_node  # noqa: PLC0415
    from chaplain.runtime.cluster.local import stop_nodes  # noqa: PLC0415

    census = client.nodes()
    node = _find(census, number)
    changes = Changes(client, progress)
    lost: list[str] = []
    given = {*node.roles, *_on_their_way(census, number)}
    if not roles and number in census.serializers:
        left = _without(census, number)
        if warning := weakened(census.serializers, left):
            progress(warning)
        changes.follow(client.new_serializers(left))
        lost.append("serializer")
    for role in ("ingest", "executor"):
        held = role in given or (role == "ingest" and "config" in given)
        if role in roles or (not roles and held):
            changes.follow(client.remove_node(number, role))
            lost.append(role)
    if not any(one.id == number and one.member for one in client.nodes().nodes):
        _wait_until_let_go(client, number)
        unlist_node(directory, number)
        stop_nodes([directory / f"node-{number}"])
    return {"id": number, "lost": lost, "shown": ", ".join(lost)}


def weakened(before: Sequence[int], after: Sequence[int]) -> str:
    """What is lost when others serialize; nothing if as many of them may fail."""
    survived, left = ((len(set(nodes)) - 1) // 2 for nodes in (before, after))
    if left >= survived:
        return ""
    shown, former = (", ".join(map(str, nodes)) for nodes in (after, before))
    less = "no failure of them is survived" if not left else f"{left} of them may fail"
    return f"{shown} alone will agree on the order, and {less}; of {former}, who do now, {survived} may."


def _on_their_way(census: AssemblyRecord, number: int) -> Iterator[str]:
    """Roles that the node has been given and has not caught up for: it may never do so."""
    for change in census.changes:
        if change.open and number in change.nodes and change.change.startswith("add_"):
            yield change.change.removeprefix("add_").removesuffix("_node")


def _wait_until_let_go(client: Client, number: int) -> None:
    """Its memory counts in the sequence, and may be missed, until the others have agreed on a work set without it."""
    end = time.monotonic() + LET_GO_S
    while number in client.status().get("sequence", {}).get("work_set", ()):
        if time.monotonic() > end:
            progress(
                f"node {number} still has a seat in the sequence's work set after {LET_GO_S:.0f} s and is stopped all "
                "the same; see `chaplain cluster status`"
            )
            return
        time.sleep(POLL_S)


def _find(census: AssemblyRecord, number: int) -> NodeRecord:
    node = next((one for one in census.nodes if one.id == number and one.member), None)
    if node is None:
        members = ", ".join(str(one.id) for one in census.nodes if one.member)
        raise Missing(f"there is no node {number}; there are {members}")
    return node


def _without(census: AssemblyRecord, number: int) -> list[int]:
    left = [node for node in census.serializers if node != number]
    if not left:
        raise ConfigError(f"node {number} is the only serializer: name others with `chaplain member serializers` first")
    if len(left) > SERIALIZERS_MAX:
        name = f"name at most {SERIALIZERS_MAX} with `chaplain member serializers` first"
        raise ConfigError(f"{len(left)} serializers would be left, more than a new set may have: {name}")
    return left
