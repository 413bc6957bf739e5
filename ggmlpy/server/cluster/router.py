"""Chooses the replica of a request: by the beginning of its prompt, or by the load."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from ggmlpy.server.cluster.prefixes import Prefixes

_LEAST_MATCH = 0.1  # of a prompt: less is not worth that a replica waits


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """The replica that has seen most of a prompt's beginning, unless it has `imbalance` requests
    more than the one with the fewest; else the two with the fewest."""

    def initialize_state(self, imbalance: int = 4) -> None:
        """Ray calls it with the keywords of its configuration."""
        self._imbalance = imbalance
        self._prefixes = Prefixes()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas: Ray takes one of the first rank that has room."""
        by_load = sorted(candidate_replicas, key=self._n_requests)
        if not by_load:
            return []
        prefix = _prefix_of(pending_request)
        self._prefixes.keep(self.curr_replicas)
        matches = self._prefixes.matches(prefix, [each.replica_id for each in by_load])
        best = max(by_load, key=lambda each: matches[each.replica_id])  # of equals the least busy
        is_ahead = self._n_requests(best) - self._n_requests(by_load[0]) >= self._imbalance
        if matches[best.replica_id] < _LEAST_MATCH or is_ahead:
            return [by_load[:2], by_load]
        return [[best], by_load]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Ray has sent a request."""
        self._prefixes.note(_prefix_of(pending_request), replica_id)

    def _n_requests(self, replica: RunningReplica) -> int:
        """As far as it is known."""
        n = self.replica_queue_len_cache.get(replica.replica_id)
        return 0 if n is None else int(n)


def _prefix_of(request: PendingRequest | None) -> str:
    """The first argument of `Replica.ask`."""
    return str(request.args[0]) if request is not None and request.args else ""
