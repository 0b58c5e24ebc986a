"""Peer presence, pools and heartbeats between nodes: the protocol of mesh.txt."""
