"""Adds and removes nodes for `chaplain member`: one configuration change after the other, each followed to its end.

If this program ends, the cluster continues the change; `chaplain cluster status` shows it.
"""

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
    from chaplain.client.types.journal import ChangeRecord, ClusterConfigRecord, NodeRecord

FOLLOW_S = 60.0
"""The command waits this long for a change. The cluster continues with the change after that."""
WORK_SET_S = 10.0
"""Longer than the sequence takes to detect a silent member and to take over the lock from it."""
POLL_S = 0.05


class ChangeFollower:
    """Waits for configuration changes, and reports each stage that they reach."""

    def __init__(self, client: Client, report: Callable[[str], None]) -> None:
        self._client = client
        self._report = report

    def follow(self, change_id: str) -> ChangeRecord:
        """Wait until the change is complete. Raises `Refused` if the cluster refused it, `Unknown` after `FOLLOW_S`."""
        from chaplain.client.api.admin_calls import find_change  # noqa: PLC0415

        stage, end = "", time.monotonic() + FOLLOW_S
        while time.monotonic() < end:
            change = find_change(self._client.nodes(), change_id)
            if change is not None and change.stage != stage:
                stage = change.stage
                self._report(f"{change.change.replace('_', ' ')} {', '.join(map(str, change.nodes))}: {stage}")
            if change is not None and not change.open:
                return _raise_if_refused(change)
            time.sleep(POLL_S)
        raise Unknown(f"the change is still at stage {stage or 'none'} and goes on; `cluster status` shows it")


def _raise_if_refused(change: ChangeRecord) -> ChangeRecord:
    if change.stage == "refuse":
        raise Refused(f"refused: {change.why}; nothing has changed")
    return change


def add_node(
    client: Client, directory: Path, number: int | None, roles: Sequence[str], endpoint: str, http: str
) -> dict[str, object]:
    """Add a new node with these roles. If the node exists already, give it those roles that it lacks."""
    known = {node.id: node for node in client.nodes().nodes}
    changes = ChangeFollower(client, progress)
    if number in known:
        missing = [role for role in roles if role not in known[number].roles]
        assert number is not None
        return _add_roles(client, changes, number, missing)
    number = number or max(known) + 1
    return _add_new_node(client, changes, directory, number, roles, endpoint, http)


def _add_new_node(
    client: Client,
    changes: ChangeFollower,
    directory: Path,
    number: int,
    roles: Sequence[str],
    endpoint: str,
    http: str,
) -> dict[str, object]:
    """Make the node's directory, propose its first role, start it, and wait until it has caught up.

    The first role lets the node into the cluster; the node catches up only once it runs. A node for another machine
    (`endpoint`) is not started here.
    """
    from chaplain.runtime.cluster.join import list_node, make_folder  # noqa: PLC0415
    from chaplain.runtime.cluster.local import bring_up_one  # noqa: PLC0415

    holds_data = any(role != "config" for role in roles)
    newcomer = make_folder(directory, number, endpoint, http, _current_members(client), holds_data=holds_data)
    key = from_text(newcomer.node.key, KEY_BYTES, "a node's key")
    try:
        opened = client.add_node(number, roles[0], newcomer.node.endpoint, key, newcomer.disk)
    except (Refused, ConfigError):
        shutil.rmtree(newcomer.folder)  # the cluster will never accept these keys
        raise
    list_node(directory, newcomer.node)
    if endpoint:
        return {"id": number, "roles": [], "folder": str(newcomer.folder), "waits": True}
    bring_up_one(directory, newcomer.node, progress)
    changes.follow(opened)
    given = {"roles": list(roles), "shown": ", ".join(roles), "folder": str(newcomer.folder)}
    return _add_roles(client, changes, number, roles[1:]) | given


def _current_members(client: Client) -> LastKnownMembers:
    """Return the members that a new node may trust. Its own log is empty, and the nodes of the initial configuration
    may all have been replaced.
    """
    config = client.nodes()
    keys = {node.id: node.key for node in config.nodes if node.member}
    return LastKnownMembers(client.status()["agreed"], (config.serializers,), keys)


def _add_roles(client: Client, changes: ChangeFollower, number: int, roles: Sequence[str]) -> dict[str, object]:
    for role in roles:
        changes.follow(client.add_node(number, role))
    return {"id": number, "roles": list(roles), "shown": ", ".join(roles) or "it was", "waits": False}


def remove_node(client: Client, directory: Path, number: int, roles: Sequence[str]) -> dict[str, object]:
    """Remove these roles from the node or, without roles, all of them; stop the node if it is no member after that."""
    from chaplain.runtime.cluster.join import unlist_node  # noqa: PLC0415
    from chaplain.runtime.cluster.local import stop_nodes  # noqa: PLC0415

    config = client.nodes()
    node = _find(config, number)
    changes = ChangeFollower(client, progress)
    lost: list[str] = []
    given = {*node.roles, *_roles_being_added(config, number)}
    if not roles and number in config.serializers:
        left = _serializers_without(config, number)
        if warning := lost_fault_tolerance(config.serializers, left):
            progress(warning)
        changes.follow(client.new_serializers(left))
        lost.append("serializer")
    for role in ("ingest", "executor"):
        held = role in given or (role == "ingest" and "config" in given)
        if role in roles or (not roles and held):
            changes.follow(client.remove_node(number, role))
            lost.append(role)
    if not any(one.id == number and one.member for one in client.nodes().nodes):
        _wait_until_out_of_work_set(client, number)
        unlist_node(directory, number)
        stop_nodes([directory / f"node-{number}"])
    return {"id": number, "lost": lost, "shown": ", ".join(lost)}


def lost_fault_tolerance(before: Sequence[int], after: Sequence[int]) -> str:
    """Return a warning if the serializers `after` tolerate fewer failures than those `before`, otherwise ""."""
    tolerated_before, tolerated_after = ((len(set(nodes)) - 1) // 2 for nodes in (before, after))
    if tolerated_after >= tolerated_before:
        return ""
    new, old = (", ".join(map(str, nodes)) for nodes in (after, before))
    failures = "no failure" if not tolerated_after else f"{tolerated_after} failure{'s' * (tolerated_after != 1)}"
    return f"serializers {new} tolerate {failures}; the present serializers {old} tolerate {tolerated_before}."


def _roles_being_added(config: ClusterConfigRecord, number: int) -> Iterator[str]:
    """Yield the roles of open changes of a node that has not caught up yet, and may never do so."""
    for change in config.changes:
        if change.open and number in change.nodes and change.change.startswith("add_"):
            yield change.change.removeprefix("add_").removesuffix("_node")


def _wait_until_out_of_work_set(client: Client, number: int) -> None:
    """Wait until the sequence's work set excludes the node. Until then its copy counts towards the majority, and
    stopping it may cost the majority.
    """
    end = time.monotonic() + WORK_SET_S
    while number in client.status().get("sequence", {}).get("work_set", ()):
        if time.monotonic() > end:
            progress(
                f"node {number} is still in the sequence's work set after {WORK_SET_S:.0f} s and is stopped anyway; "
                "see `chaplain cluster status`"
            )
            return
        time.sleep(POLL_S)


def _find(config: ClusterConfigRecord, number: int) -> NodeRecord:
    node = next((one for one in config.nodes if one.id == number and one.member), None)
    if node is None:
        members = ", ".join(str(one.id) for one in config.nodes if one.member)
        raise Missing(f"there is no node {number}; there are {members}")
    return node


def _serializers_without(config: ClusterConfigRecord, number: int) -> list[int]:
    left = [node for node in config.serializers if node != number]
    if not left:
        raise ConfigError(f"node {number} is the only serializer: name others with `chaplain member serializers` first")
    if len(left) > SERIALIZERS_MAX:
        name = f"name at most {SERIALIZERS_MAX} with `chaplain member serializers` first"
        raise ConfigError(f"{len(left)} serializers would be left, more than a new set may have: {name}")
    return left
