"""Files of requests on a Ray cluster, by Ray Data."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import ray.data

from ggmlpy.llama import Llama
from ggmlpy.server.app import create_app
from ggmlpy.server.batch import Line, run_batch
from ggmlpy.server.cluster.running import Scale
from ggmlpy.server.hosted import Hosted, Models
from ggmlpy.server.settings import Settings

_N_WAVES = 4  # of requests in a block, whose last ones run with fewer and fewer beside them


class Worker:
    """A replica of the model that answers blocks of requests, on a loop that it keeps."""

    def __init__(self, names: Sequence[str], open: Callable[[], Llama], settings: Settings) -> None:
        self._models = Models([Hosted(names, open, settings.max_waiting)])
        self._app = create_app(self._models, settings)
        self._loop = asyncio.new_event_loop()
        self._lifespan = self._app.router.lifespan_context(self._app)
        self._loop.run_until_complete(self._lifespan.__aenter__())
        self._loop.run_until_complete(self._models.load(self._models.all[0]))

    def __call__(self, block: dict[str, Any]) -> dict[str, list[str]]:
        """The answers of a block, as lines of JSON."""
        lines = [Line(**json.loads(each)) for each in block["line"]]
        found: list[dict[str, Any]] = []
        n = self._models.all[0].llm.llama.engine.context.sizes.n_seq_max
        running = run_batch(self._app, iter(lines), found.append, at_once=2 * n)
        self._loop.run_until_complete(running)
        return {"answer": [json.dumps(answer) for answer in found]}


def answers(
    lines: Sequence[Line],
    names: Sequence[str],
    open: Callable[[], Llama],
    settings: Settings,
    scale: Scale,
) -> Iterator[dict[str, Any]]:
    """The answers of requests, in any order, from as many replicas as there is work for."""
    size = max(1, min(_N_WAVES * scale.n_parallel, -(-len(lines) // scale.most)))
    ray.data.DataContext.get_current().enable_progress_bars = False
    for name in ("ray.data", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)
    rows = [{"line": json.dumps(asdict(line))} for line in lines]
    # Blocks as they are made: to cut them anew would take cores, which the replicas have.
    data = ray.data.from_items(rows, override_num_blocks=-(-len(rows) // size))
    found = data.map_batches(
        Worker,
        fn_constructor_args=(names, open, settings),
        batch_size=None,  # a block
        compute=ray.data.ActorPoolStrategy(min_size=scale.least, max_size=scale.most),
        num_cpus=scale.n_cpus,
        num_gpus=scale.n_gpus or None,
    )
    for row in found.iter_rows():
        yield json.loads(row["answer"])
