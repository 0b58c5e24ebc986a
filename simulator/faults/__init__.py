"""The faults of a run: drawn from its seed, and injected."""
