"""Handshakes, sealed sessions and dial attempts, as state machines."""
