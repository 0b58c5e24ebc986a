"""The `chaplain` command: nouns, then verbs."""
