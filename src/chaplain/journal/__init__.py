"""The journal of journal.txt: one agreed order, on disk at a quorum before any client is told of it.

    messages    byte layouts of everything that is sent, stored and signed
    model       values that the parts share
    storage     the log on disk
    execution   the state machine that applies agreed messages
    snapshots   checkpoints, and dropping the log that they cover
    consensus   the serializer: elections, proposals, catch-up, repair
    ingest      accepts packs of clients and distributes them to the serializers
    clients     client sessions, reads and configuration requests

See docs/protocol/journal-order.md.
"""
