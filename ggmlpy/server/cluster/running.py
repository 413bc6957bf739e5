"""Starts the replicas and the fronts on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, HTTPOptions, RequestRouterConfig

from ggmlpy.llama import Llama
from ggmlpy.server.cluster.front import APP, REPLICAS, make_front
from ggmlpy.server.cluster.replica import Replica
from ggmlpy.server.settings import Settings


@dataclass(frozen=True, slots=True)
class Scale:
    """How many replicas there are, and what each takes of a machine."""

    least: int = 1
    most: int = 1
    n_cpus: int = 1
    n_gpus: float = 0.0
    n_parallel: int = 8  # sequences of each: with more requests another one is started
    grow_s: float = 30.0  # for which there are more requests, before another one is started
    shrink_s: float = 600.0  # for which there are fewer, before one is ended


def start(
    names: Sequence[str],
    open: Callable[[], Llama],
    settings: Settings,
    scale: Scale,
    *,
    host: str,
    port: int,
) -> None:
    """Deploy on the cluster that Ray is connected to. Returns when the model answers.

    The API keys of `settings` are checked by the replicas. Raises RuntimeError where no replica
    can be started.
    """
    serve.start(http_options=HTTPOptions(host=host, port=port))
    sized: dict[str, Any] = {"num_replicas": scale.least}
    if scale.most > scale.least:
        sized = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=scale.least,
                max_replicas=scale.most,
                target_ongoing_requests=scale.n_parallel,
                upscale_delay_s=scale.grow_s,
                downscale_delay_s=scale.shrink_s,
                look_back_period_s=min(30.0, scale.grow_s),
                metrics_interval_s=min(10.0, scale.grow_s / 2),
            )
        }
    replicas = serve.deployment(
        Replica,
        name=REPLICAS,
        max_ongoing_requests=scale.n_parallel + settings.max_waiting,
        ray_actor_options={"num_cpus": scale.n_cpus, "num_gpus": scale.n_gpus},
        request_router_config=RequestRouterConfig(
            request_router_class="ggmlpy.server.cluster.router.PrefixRouter",
            request_router_kwargs={"imbalance": max(2, scale.n_parallel // 2)},
        ),
        **sized,
    ).bind(names, open, settings)

    def build() -> Any:
        return make_front(settings)

    fronts = serve.deployment(
        serve.ingress(build)(),
        name="fronts",
        max_ongoing_requests=2**20,
        ray_actor_options={"num_cpus": 0},
    )
    serve.run(fronts.bind(replicas), name=APP, route_prefix="/")
