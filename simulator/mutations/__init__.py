"""Lists of planted bugs, one module per layer; each has `BUGS`."""
