"""What the demo shows, in order."""

from __future__ import annotations

from chaplain.demo.journal_scene import journal_survives
from chaplain.demo.scenes import death_is_noticed, events_reach_all, key_is_replaced, members_agree, pool_reaches_all

SCENES = (members_agree, pool_reaches_all, events_reach_all, journal_survives, death_is_noticed, key_is_replaced)
