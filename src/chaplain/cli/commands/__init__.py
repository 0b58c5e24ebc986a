"""The commands of `chaplain`: one module for each command group, named like the group."""
