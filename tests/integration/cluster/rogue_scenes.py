"""A holder of the cluster's key who lies. Promised: it evicts nobody, speaks for nobody, and memory stays bounded."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from chaplain.config import NODE_FILE
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.cluster.probe import get_status
from tests.support.process_cluster import Cluster, process, throughout, until
from tests.support.traffic_capture import talking, wait_to_hear

GROWTH_KIB_MAX = 64 * 1024
"""What 4,096 members that somebody else spoke of may cost a node, and what is on its way to it."""


def rogue_config(cluster: Cluster, name: str) -> Path:
    """A node of its own, with a stolen key ring."""
    directory = cluster.directory.parent / f"{name}-{time.monotonic_ns()}"
    make_cluster(directory, 1, "none", None)
    folder = directory / "node-1"
    shutil.copy(cluster[1].folder / "keyring", folder / "keyring")
    file = folder / NODE_FILE
    text = re.sub(r"(?m)^cluster = .*$", f'cluster = "{cluster.file.cluster}"', file.read_text())
    text = re.sub(r"(?m)^id = .*$", "id = 99", text)
    text = re.sub(r'(?m)^"1" = .*$', "", text.replace("[nodes]", "[nodes]\n"))
    endpoints = [cluster.endpoint(node.number) for node in cluster]
    file.write_text(re.sub(r"(?m)^neighbours = .*$", f"neighbours = {endpoints}".replace("'", '"'), text))
    return file


def honest_stand(cluster: Cluster) -> bool:
    """Nobody honest is held for gone by anybody honest."""
    views = [node.members() for node in cluster]
    return all(view.get(node.number) != "left" for view in views if view for node in cluster)


def liar_evicts_nobody(cluster: Cluster, seconds: float) -> dict[str, object]:
    """Every lie there is, for so long, while honest clients go on talking."""
    before = [node.memory_kib() for node in cluster]
    with talking(cluster.directory, speakers=[1, 2], ears=[2, 3], per_second=20) as (mouths, ears):
        with process("tests.support.rogue_member", str(rogue_config(cluster, "liar")), "liar") as liar:
            until(lambda: all(node.count("gossip_leaves_refused") > 0 for node in cluster), "it lies to everybody")
            throughout(seconds, lambda: honest_stand(cluster), "the liar evicted somebody")
            assert liar.poll() is None, "the liar gave up"
            known = [len(node.members()) for node in cluster]
            counts = {name: [node.count(f"gossip_{name}") for node in cluster] for name in COUNTED}
        growth = [node.memory_kib("VmHWM") - kib for node, kib in zip(cluster, before, strict=True)]
        for mouth in mouths:
            mouth.stop()
        for ear in ears:
            wait_to_hear(ear, mouths, more=0)
            for mouth in mouths:
                assert ear.heard(mouth.name)[-1] == mouth.sent, f"{ear}, {mouth}"
            assert ear.faults([mouth.name for mouth in mouths]) == []
    assert max(growth) <= GROWTH_KIB_MAX, growth
    assert [change for _, change in cluster.ever_left() if change.peer in cluster.nodes] == []
    assert all(sum(counted) > 0 for counted in counts.values()), counts
    wait_until_well(cluster)
    return {"growth KiB": growth, "members listed": known, **counts}


def wait_until_well(cluster: Cluster) -> None:
    """The honest hold each other for alive, whatever else is on their lists, and however that still changes."""

    def well(seen: Mapping[int, str]) -> bool:
        return all(seen.get(number) == "alive" for number in cluster.nodes)

    until(lambda: all(well(node.members()) for node in cluster), "all is well")
    for node in cluster:
        node.check()


COUNTED = ("leaves_refused", "claims_ignored", "card_refused", "message_forged")


def impostor_is_refused(cluster: Cluster, victim: int, seconds: float) -> int:
    """It shows the victim's public key. How many greetings of it were refused."""
    others = cluster.others(victim)
    refused = [node.count("link_greetings_refused") for node in others]
    incarnations = _incarnations(cluster)
    with process(
        "tests.support.rogue_member", str(rogue_config(cluster, "impostor")), "impostor", _key(cluster, victim)
    ):
        until(
            lambda: all(node.count("link_greetings_refused") > old for node, old in zip(others, refused, strict=True)),
            "everybody refuses it",
        )
        throughout(seconds, lambda: honest_stand(cluster), "the impostor evicted somebody")
    assert _incarnations(cluster) == incarnations, "nobody had to defend itself"
    return sum(node.count("link_greetings_refused") for node in others)


def twin_takes_nothing_over(cluster: Cluster, victim: int, seconds: float) -> None:
    """Under the victim's instance it may disturb its connections, but neither be it nor have it thrown out."""
    instance = _instance(cluster, victim)
    config = str(rogue_config(cluster, "twin"))
    others = cluster.others(victim)
    refused = [node.count("link_greetings_refused") for node in others]
    with process("tests.support.rogue_member", config, "twin", "", instance):
        until(
            lambda: all(node.count("link_greetings_refused") > old for node, old in zip(others, refused, strict=True)),
            "everybody refuses it",
        )
        throughout(seconds, lambda: honest_stand(cluster), "the twin had somebody evicted")
    wait_until_well(cluster)


def _incarnations(cluster: Cluster) -> list[dict[int, int]]:
    until(lambda: all(get_status(node.http) for node in cluster), "every node says whom it knows")
    views = [(get_status(node.http) or {}).get("member_list", []) for node in cluster]
    return [{member["id"]: member["incarnation"] for member in view} for view in views]  # type: ignore[attr-defined]


def _instance(cluster: Cluster, victim: int) -> str:
    with process("tests.support.rogue_member", str(rogue_config(cluster, "spy")), "spy", _key(cluster, victim)) as spy:
        assert spy.stdout is not None
        return spy.stdout.readline().strip()


def _key(cluster: Cluster, number: int) -> str:
    return next(node.key for node in cluster.file.nodes if node.id == number)
