"""What `ggmlpy bench` prints: llama-bench's table, or records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ggmlpy.cli.show import count_text, say, size_text
from ggmlpy.cli.table import Column, Format, Records, Table, rate_text
from ggmlpy.common.quoting import printable

if TYPE_CHECKING:
    from ggmlpy.bench.bench import Setup, SpeedResult, SpeedTest
    from ggmlpy.gguf import GGUFFile

# Columns of what differs between the setups: llama-bench's title, and the field of a setup.
VARIED = {
    "n_batch": "n_batch",
    "n_ubatch": "n_ubatch",
    "type_k": "type_k",
    "type_v": "type_v",
    "fa": "flash_attn",
    "ngl": "n_gpu_layers",
}


@dataclass(frozen=True, slots=True)
class Described:
    """What rows tell of a model."""

    path: Path
    type: str  # `llama q4_0`
    size: int  # bytes
    n_params: int

    @classmethod
    def of(cls, path: Path, file: GGUFFile) -> Described:
        tensors = file.tensors.values()
        n_bytes, n_elements = sum(t.n_bytes for t in tensors), sum(t.n_elements for t in tensors)
        return cls(path, _model_type(file), n_bytes, n_elements)


class Report:
    """Writes results: rows of a table, or records. Used as a context."""

    model: Described
    setup: Setup
    backend: str
    available: float | None  # bytes a second
    _cache_bytes: int | None = None

    def __init__(self, models: Sequence[Described], setups: Sequence[Setup], form: Format) -> None:
        """For all results of some models in some setups."""
        self._form = form
        self._records = Records(form, "llama_bench")
        self._table: Table | None = None
        self.bandwidths: dict[int, float] = {}  # that were measured, by the number of threads
        self._type_width = max(len(model.type) for model in models)
        self._varied = [
            (title, name)
            for title, name in VARIED.items()
            if len({getattr(setup, name) for setup in setups}) > 1
        ]

    def __enter__(self) -> Report:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._records.__exit__(kind, error, where)

    def begin(
        self,
        model: Described,
        setup: Setup,
        backend: str,
        available: float | None,
        tests: Sequence[SpeedTest],
    ) -> None:
        """Start the results of a model in a setup. The first call writes the table's head."""
        from ggmlpy.bench.bandwidth import last_level_cache_bytes

        self.model, self.setup, self.backend, self.available = model, setup, backend, available
        if self.available is not None:
            self._cache_bytes = last_level_cache_bytes()
        is_new = self.available is not None and setup.threads not in self.bandwidths
        if self.available is not None:
            self.bandwidths[setup.threads] = self.available
        if self._form is not Format.md:
            return
        if self.available is not None and is_new:
            threads = f"{self.setup.threads} thread{'s' * (self.setup.threads > 1)}"
            say(f"read bandwidth of this machine: {self.available / 1e9:.1f} GB/s with {threads}")
        self._table = self._table or Table(
            [
                Column("model", self._type_width, "<"),
                Column("size", 9),
                Column("params", 8),
                Column("backend", len(self.backend), "<"),
                Column("threads"),
                *(Column(title, 7) for title, _ in self._varied),
                Column("test", max(len(test.name) for test in tests)),
                Column("t/s", 20),
                Column("GB/s", 6),
                Column("of bandwidth"),
            ],
            rulers=True,
        )

    def add(self, result: SpeedResult) -> None:
        """A row."""
        if self._table is None:
            self._records.write(self._as_dict(result))
            return
        share = self._share(result)
        unknown = "cache" if result.fits(self._cache_bytes) else "-"
        self._table.row(
            [
                self.model.type,
                size_text(self.model.size),
                count_text(self.model.n_params),
                self.backend,
                str(self._n_threads(result)),
                *(_cell(getattr(self.setup, name)) for _, name in self._varied),
                result.test.name,
                f"{rate_text(result.mean_rate)} ± {rate_text(result.rate_deviation)}",
                f"{result.bandwidth / 1e9:.2f}",
                unknown if share is None else f"{share:.0%}",
            ]
        )

    def _n_threads(self, result: SpeedResult) -> int:
        """The number asked for, or else the one that the test used."""
        return self.setup.n_threads or result.n_threads

    def _share(self, result: SpeedResult) -> float | None:
        """Of the bandwidth of memory; None where that is not known, or not what is read from."""
        if self.available is None or result.fits(self._cache_bytes):
            return None
        return result.bandwidth / self.available

    def _as_dict(self, result: SpeedResult) -> dict[str, Any]:
        """A line of JSON, with llama-bench's names where it has the field."""
        setup, test = self.setup, result.test
        samples_ns = [round(s * 1e9) for s in result.samples_s]
        return {
            "model_filename": str(self.model.path),
            "model_type": self.model.type,
            "model_size": self.model.size,
            "model_n_params": self.model.n_params,
            "backends": self.backend,
            "n_batch": setup.n_batch,
            "n_ubatch": min(setup.n_ubatch, setup.n_batch),
            "n_threads": self._n_threads(result),
            "type_k": setup.type_k,
            "type_v": setup.type_v,
            "kv_rotation": setup.kv_rotation,  # null: where it is the default
            "flash_attn": setup.flash_attn,
            "n_gpu_layers": setup.n_gpu_layers,
            "n_prompt": test.n_prompt,
            "n_gen": test.n_generated,
            "n_depth": test.depth,
            "avg_ns": round(statistics.fmean(samples_ns)),
            "stddev_ns": round(statistics.stdev(samples_ns)) if len(samples_ns) > 1 else 0,
            "avg_ts": result.mean_rate,
            "stddev_ts": result.rate_deviation,
            "samples_ns": samples_ns,
            "samples_ts": result.rates,
            "bandwidth_gbs": result.bandwidth / 1e9,
            "bandwidth_share": self._share(result),
        }


def _cell(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _model_type(file: GGUFFile) -> str:
    """`llama q4_0`: the architecture, and the type of most bytes."""
    n_bytes: dict[str, int] = {}
    for tensor in file.tensors.values():
        n_bytes[tensor.type.name] = n_bytes.get(tensor.type.name, 0) + tensor.n_bytes
    architecture = printable(file.metadata.str("general.architecture"))
    return f"{architecture} {max(n_bytes, key=lambda name: n_bytes[name])}"
