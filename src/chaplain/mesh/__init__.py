"""Peers that greet, group and ping each other: mesh.txt."""
