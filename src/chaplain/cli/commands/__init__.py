"""The commands of `chaplain`, one module for each noun."""
