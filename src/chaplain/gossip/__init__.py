"""Who is here, who has left, and what most of them say: gossip.txt."""
