"""State machines of handshakes, sealed sessions and dial attempts."""
