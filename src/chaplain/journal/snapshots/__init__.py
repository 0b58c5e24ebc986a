"""Checkpoints of the executed state: taking, confirming and installing them, and dropping the log behind them."""
