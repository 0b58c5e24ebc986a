"""Builds a node's layers from its configuration and its data directory."""
