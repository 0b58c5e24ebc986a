"""The sequence layer: one agreed, gapless order of events, replicated in the memory of a work set of nodes."""
