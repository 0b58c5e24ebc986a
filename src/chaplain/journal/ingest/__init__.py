"""From a client's pack to a payload that can be ordered: admission, signature checks and replication."""
