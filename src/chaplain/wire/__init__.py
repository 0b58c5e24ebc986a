"""Bytes that travel: primitives, mesh commands, parcels, and the limits all of them keep."""
