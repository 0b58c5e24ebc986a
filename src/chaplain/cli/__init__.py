"""The command line `chaplain`. See `chaplain.cli.main`."""
