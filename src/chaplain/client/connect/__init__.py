"""How a client finds its cluster and its identity."""
