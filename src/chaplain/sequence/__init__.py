"""One agreed, gapless numbering of events, held in memory: discovery, lock, work set, delivery. See `core`."""
