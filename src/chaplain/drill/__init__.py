"""Breaks a cluster on purpose, under load, and checks what its clients saw against what was promised."""
