"""An HTTP gateway to a cluster: journals, proofs and status for programs in any language.

The gateway is an ordinary client. Each bearer token stands for one client of the cluster: the gateway connects as this
client, signs with its key, and the cluster enforces its rights.
"""
