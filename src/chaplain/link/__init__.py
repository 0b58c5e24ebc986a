"""Connections: who may knock, the greeting, the seal, the key ring. Everything above talks in sealed sessions."""
