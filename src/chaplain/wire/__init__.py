"""Encodings of bytes that are sent: primitives, mesh commands, parcels, and the size limits of all of them."""
