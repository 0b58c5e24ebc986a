"""Membership, failure detection, events and cluster-wide queries: the protocol of gossip.txt."""
