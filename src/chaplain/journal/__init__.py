"""The journal: a replicated log of client requests, as journal.txt specifies it.

A write passes through these packages: `ingest` admits and replicates it, `consensus` orders it, `storage` writes it to
disk, `execution` applies it, and `clients` sends the receipt. `snapshots` truncates the log behind checkpoints. `model`
and `messages` are data without behaviour. `core` connects the parts of one node.

A receipt leaves only after a quorum of serializers has the message on disk, and this node has executed it. See
docs/protocol/journal-order.md.
"""
