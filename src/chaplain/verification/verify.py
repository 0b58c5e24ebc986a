"""Verifies a log, by itself or after the part that a manifest covers.

This module decides which manifest is trusted and when a new one is written. It does not know how the tasks run: a
`Runner` does, in this process (`verify_here`), in several processes (`process_pool`), or in Spark
(`chaplain.pipeline`). All runners give the same result, because the checks of a task and the joining of results are the
same functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from chaplain.config import find_cluster, load_cluster
from chaplain.verification import manifest as manifests
from chaplain.verification.manifest import ManifestContent
from chaplain.verification.plan import TASKS_MIN, VerifyPlan, VerifyRequest, keys_of, make_plan
from chaplain.verification.record_reader import check
from chaplain.verification.result import VerifyResult, join_results
from chaplain.verification.tree_check import TreeSource

Runner: TypeAlias = Callable[[VerifyRequest], tuple[VerifyResult, VerifyPlan]]


def verify_here(request: VerifyRequest, tasks: int = TASKS_MIN) -> tuple[VerifyResult, VerifyPlan]:
    """Verify a log in this process."""
    plan = make_plan(request, tasks)
    segments = [
        check(segment, keys_of(plan, segment), plan.siblings, plan.leaf_range(task))
        for task, segment in enumerate(plan.segments)
    ]
    return join_results(plan, segments), plan


def verify_log(
    run: Runner = verify_here,
    *,
    cluster: str | Path = "",
    path: str | Path = "",
    manifest: str | Path | None = None,
    identity: str = "",
    signatures: bool = False,
    founding: str = "",
    tree: TreeSource | None = None,
) -> VerifyResult:
    """Verify a log and return the result, including its breaks.

    Arguments:
        run: The runner of the tasks.
        cluster: The cluster's folder. The longest log is verified, and the other nodes' logs are compared with it.
        path: A node's folder of segments, instead of `cluster`.
        manifest: A file with the signed result of an earlier verification. The verification continues where it ended.
            A result without breaks is written to this file.
        identity: The identity file that signs the manifest. Default: `CHAPLAIN_IDENTITY`, the cluster's client, or a
            key that is created beside the manifest.
        signatures: Also verify the clients' signatures, from the founding clients on.
        founding: A `node.toml` with the founding clients, if there is none beside the segments.
        tree: A signed checkpoint to compare the log with, and where the leaves of its tree are.

    Raises `Inaccessible` if a file cannot be read, and `Missing` if there is no log.
    """
    path, cluster = str(path), str(cluster)
    if manifest is None:
        return run(VerifyRequest(path, cluster, founding, signatures, tree=tree))[0]
    file = Path(manifest)
    signer = manifests.signer_for(file, signing(identity, cluster))
    before = manifests.read(file, signer)
    proof, plan = run(VerifyRequest(path, cluster, founding, signatures, before, tree))
    if not proof.breaks:
        rows = proof.rows + (before.rows if before is not None and plan.begin == before.state else 0)
        manifests.write(file, ManifestContent(plan.cluster, proof.state, plan.start, rows, plan.signers), signer)
    return proof


def signing(identity: str, cluster: str) -> str:
    """Return the identity file that signs a manifest: the given one, the environment's, or the cluster's client's."""
    chosen = identity or os.environ.get(manifests.IDENTITY_VARIABLE, "")
    if chosen or not cluster:
        return chosen
    file = find_cluster(cluster)
    return str(file.parent / load_cluster(file).identity)
