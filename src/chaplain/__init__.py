"""chaplain: events in an order that can be proven, without a broker."""

__version__ = "0.1.0"
