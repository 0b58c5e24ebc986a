"""What the demo shows, in order. A new stream kind adds its scene here: a function of cluster, findings and `tell`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chaplain.demo.findings import Findings
from chaplain.demo.graph_scene import graph_comes_together
from chaplain.demo.journal_scene import journal_survives
from chaplain.demo.scenes import (
    Tell,
    death_is_noticed,
    events_reach_all,
    key_is_replaced,
    members_agree,
    pool_reaches_all,
)
from chaplain.demo.sequence_scene import sequence_numbers
from chaplain.demo.sql_scene import accounts_add_up

Scene = Callable[[Path, Findings, Tell], None]

SCENES: tuple[Scene, ...] = (
    members_agree,
    pool_reaches_all,
    events_reach_all,
    graph_comes_together,
    sequence_numbers,
    journal_survives,
    accounts_add_up,
    death_is_noticed,
    key_is_replaced,
)


def spark_scene() -> Scene:
    """What comes last: it reads everything that the others wrote. Imported only if it is wanted: Spark is heavy."""
    from chaplain.demo.pipeline_scene import lands_and_proves  # noqa: PLC0415

    return lands_and_proves
