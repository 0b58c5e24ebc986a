"""The journal of journal.txt: one agreed order, on disk at a quorum before anybody is told of it.

The order (who is master, what is agreed) is `serializer` and what it is made of: `cluster_message`, `order_message`,
`order_events`, `log`, `standing`, `election`, `agreement`, `catchup`, `shelf`. See docs/protocol/journal-order.md.
"""
