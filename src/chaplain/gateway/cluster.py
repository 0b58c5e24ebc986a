"""Endpoints of the cluster: checkpoint, policy, members, status and health."""

from __future__ import annotations

from collections.abc import Callable

from chaplain.gateway.documents import (
    ClientHealthDocument,
    HealthDocument,
    MembersDocument,
    StatusDocument,
    member_document,
)
from chaplain.gateway.operations import TEXT, Answer, Call, Documented, Operation


class ClusterEndpoints:
    """The handlers. `policy` returns the text of the cluster's policy."""

    def __init__(self, policy: Callable[[], str]) -> None:
        self._policy = policy

    def operations(self) -> list[Operation]:
        """The declarations of these endpoints."""
        return [
            Operation(
                "getCheckpoint", "GET", "/v1/checkpoint", "The newest checkpoint that a majority signed",
                self._checkpoint, Documented(200, "A signed note (C2SP tlog-checkpoint)", None, TEXT),
            ),
            Operation(
                "getPolicy", "GET", "/v1/policy", "The keys of the nodes, to check proofs with", self._get_policy,
                Documented(200, "The policy, for `chaplain check`", None, TEXT), needs_cluster=False,
            ),
            Operation(
                "listMembers", "GET", "/v1/members", "The membership list", self._members,
                Documented(200, "The members", MembersDocument),
            ),
            Operation(
                "getStatus", "GET", "/v1/status", "The status of the cluster", self._status,
                Documented(200, "The status", StatusDocument),
            ),
            Operation(
                "getClientHealth", "GET", "/v1/health", "Whether the cluster answers the token's client",
                self._client_health, Documented(200, "It answers", ClientHealthDocument),
            ),
            Operation(
                "getHealth", "GET", "/healthz", "Whether the gateway accepts requests", self._health,
                Documented(200, "It does", HealthDocument), needs_token=False,
                needs_cluster=False,
            ),
        ]  # fmt: skip

    async def _checkpoint(self, call: Call) -> Answer:
        async with call.lend() as client:
            return Answer((await client.checkpoint()).text)

    async def _get_policy(self, call: Call) -> Answer:
        return Answer(self._policy())

    async def _members(self, call: Call) -> Answer:
        async with call.lend() as client:
            return Answer(MembersDocument([*map(member_document, await client.members())]))

    async def _status(self, call: Call) -> Answer:
        async with call.lend() as client:
            return Answer(StatusDocument(await client.status()))

    async def _client_health(self, call: Call) -> Answer:
        async with call.lend() as client:
            return Answer(ClientHealthDocument("ok", call.token.name, await client.ping()))

    async def _health(self, call: Call) -> Answer:
        return Answer(HealthDocument("ok"))
