"""The journal's side of client sessions: receipts, subscriptions, queries and configuration requests."""
