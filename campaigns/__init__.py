"""Long test campaigns that write their results to docs/results: `python -m campaigns`."""
