"""Options of the server: llama-server's names."""

from __future__ import annotations

import math
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggmlpy.cli.groups import group, setting
from ggmlpy.cli.options import FILE
from ggmlpy.cli.text_options import context_shift_setting, keep_setting
from ggmlpy.cli.types import Range, Real, Whole
from ggmlpy.common.quoting import printable
from ggmlpy.errors import ArgumentError, MissingFile, MissingPackage

if TYPE_CHECKING:
    from ggmlpy.server.cluster.running import Scale
    from ggmlpy.server.settings import Settings

SECTION = "Server"
_LATER_PART = r"-(?!00001)\d{5}-of-\d{5}\.gguf$"  # of a split model


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """What servers and batches have in common."""

    n_parallel: int = setting(
        -1,
        "-np --parallel N",
        "Sequences that run together. They share the context of -c, unless -kvl is split.",
        type=Whole(1, 256, unlimited=-1),
        show_default="8, of a batch 32",
    )
    alias: str | None = setting(
        None,
        "-a --alias NAME,…",
        "Names of the model in requests; answers have the first.",
        show_default="the file's name",
    )
    n_predict: int = setting(
        -1,
        "-n --predict --n-predict N",
        "Most tokens of an answer, where a request has no limit; -1: until the context is full.",
        type=Whole(1, unlimited=-1),
    )
    cache_ram: int = setting(
        8192,
        "-cram --cache-ram MIB",
        "Host memory for K and V of prompts that others displace; -1: no limit, 0: none.",
        type=Whole(0, unlimited=-1),
        show_default="8192, but at most an eighth of the machine's memory",
    )

    def names(self, file: Path) -> list[str]:
        """Of the model in requests."""
        given = _names(self.alias or "")
        return [*given, *(name for name in (file.stem, file.name) if name not in given)]

    @property
    def cache_mib(self) -> int | None:
        """As `Llama` takes it: None for the default."""
        return None if self.cache_ram == 8192 else self.cache_ram


@dataclass(frozen=True, slots=True)
class ServerOptions(SharedOptions):
    """Where the server listens, and what it lets clients do."""

    check: bool = setting(
        False,
        "--check",
        "Say what memory the model, its sequences and their context take, and end: with exit code"
        " 1 if that does not fit.",
        is_flag=True,
    )
    host: str = setting(
        "127.0.0.1",
        "--host ADDRESS",
        "The address to listen on: 127.0.0.1 is for this machine only, 0.0.0.0 for all networks.",
    )
    port: int = setting(
        8080, "--port N", "The port; 0: any free one, which is shown.", type=Whole(0, 65535)
    )
    api_key: tuple[str, ...] = setting(
        (),
        "--api-key KEY,…",
        "Answer only requests with one of these keys; several with commas.",
        multiple=True,
        show_default=False,
    )
    api_key_file: Path | None = setting(  # noqa: RUF009 - as in all groups
        None,
        "--api-key-file FILE",
        "Keys from a file, one in a line; lines that begin with # are comments.",
        type=FILE,
    )
    cors_origins: str = setting(
        "localhost",
        "--cors-origins ORIGIN,…",
        "Pages from which browsers may ask this server: origins as https://example.org, localhost"
        " for any port of this machine, or *.",
    )
    ssl_key_file: Path | None = setting(  # noqa: RUF009
        None, "--ssl-key-file FILE", "The private key for HTTPS, PEM.", type=FILE
    )
    ssl_cert_file: Path | None = setting(  # noqa: RUF009
        None, "--ssl-cert-file FILE", "Its certificate, PEM.", type=FILE
    )
    models_dir: Path | None = setting(  # noqa: RUF009
        None,
        "--models-dir FOLDER",
        "Offer all models of a folder too, under the names of their files: requests load them.",
        type=FILE,
    )
    models_max: int = setting(
        4,
        "--models-max N",
        "Most models that are loaded at a time: the one that was not used for the longest gives"
        " way; 0: no limit.",
        type=Whole(0),
    )
    models_autoload: bool = setting(
        True, "--models-autoload/--no-models-autoload", "Load them when a request asks for one."
    )
    sleep_idle_seconds: int = setting(
        -1,
        "--sleep-idle-seconds N",
        "Unload a model that nobody has asked for so long; the next request loads it. -1: never.",
        type=Whole(1, unlimited=-1),
    )
    timeout: int = setting(
        3600, "-to --timeout SECONDS", "Limit of a whole request, from its arrival on.",
        type=Whole(1),
    )  # fmt: skip
    store_ram: int = setting(
        64,
        "--store-ram N",
        "MiB of memory for responses that clients may go on from (/v1/responses with store); 0:"
        " none are kept.",
        type=Whole(0),
    )
    max_waiting: int = setting(
        512,
        "--max-waiting N",
        "Sequences that may wait for their turn; more requests are refused with status 429.",
        type=Whole(0),
    )
    pooling: str | None = setting(
        None,
        "--pooling KIND",
        "What makes an embedding of a text's tokens: mean, cls (the first), last, none (/embedding"
        " gives all), or rank (the scores of a reranker).",
        type=click.Choice(("none", "mean", "cls", "last", "rank")),
        show_default="what the file says",
    )
    context_shift: bool = context_shift_setting()
    n_keep: int = keep_setting()
    metrics: bool = setting(False, "--metrics", "Have /metrics, for Prometheus.", is_flag=True)
    props: bool = setting(False, "--props", "Let clients change settings at /props.", is_flag=True)
    slots: bool = setting(True, "--slots/--no-slots", "Have /slots, which shows what runs.")
    slot_save_path: Path | None = setting(  # noqa: RUF009
        None, "--slot-save-path FOLDER", "Where /slots saves and restores.", type=FILE
    )
    otlp_traces_endpoint: str | None = setting(
        None,
        "--otlp-traces-endpoint URL",
        "Send traces to an OpenTelemetry collector, as http://localhost:4318/v1/traces.",
    )
    log_jsonl: bool = setting(
        False, "--log-jsonl/--no-log-jsonl", "Write logs as JSON, an object in each line."
    )
    log_file: Path | None = setting(  # noqa: RUF009
        None, "--log-file FILE", "Write logs there, not to stderr.", type=FILE
    )
    log_disable: bool = setting(
        False, "--log-disable", "Write no line for each request.", is_flag=True
    )
    log_prompts: bool = setting(
        False, "--log-prompts", "Have the bodies of requests in logs.", is_flag=True
    )
    ui: bool = setting(True, "--ui/--no-ui --webui/--no-webui", "Have a page for people at /.")

    def settings(self, defaults: dict[str, Any], chat_defaults: dict[str, Any]) -> Settings:
        """Of the server; `defaults` are options of requests that do not have them, and
        `chat_defaults` those of chats besides. Raises FileError."""
        from ggmlpy.server.settings import Settings

        folder = self.slot_save_path
        if folder is not None and not folder.is_dir():
            raise MissingFile(f"--slot-save-path {printable(str(folder))}: there is no such folder")
        ends = {"context_shift": self.context_shift, "n_keep": self.n_keep}
        if self.n_predict > 0:
            ends["max_tokens"] = self.n_predict
        return Settings(
            api_keys=self.keys(),
            cors_origins=tuple(_names(self.cors_origins)),
            max_stored_bytes=self.store_ram * 2**20,
            max_waiting=self.max_waiting,
            timeout_s=self.timeout,
            pooling=self.pooling,
            slots=self.slots,
            metrics=self.metrics,
            props=self.props,
            page=self.ui,
            otlp_endpoint=self.otlp_traces_endpoint,
            log_prompts=self.log_prompts,
            slot_save_path=None if self.slot_save_path is None else str(self.slot_save_path),
            defaults={**defaults, **ends},
            chat_defaults=chat_defaults,
        )

    def writing_logs(self) -> AbstractContextManager[None]:
        """Logs are written in the block. Raises FileError."""
        from ggmlpy.server.logs import writing_logs

        if self.log_disable:
            return nullcontext()
        return writing_logs(as_json=self.log_jsonl, file=self.log_file)

    @property
    def logs_are_read_with_errors(self) -> bool:
        """They are lines of text on stderr, where a command's error is too."""
        return not self.log_jsonl and self.log_file is None

    def keys(self) -> frozenset[str]:
        """The API keys. Raises FileError, and click.UsageError where there should be some."""
        from ggmlpy.cli.common import read_bytes

        found = [key for each in self.api_key for key in _names(each)]
        if self.api_key and not found:
            raise click.BadParameter("the key is empty.", param_hint="'--api-key'")
        if self.api_key_file is not None:
            lines = read_bytes(self.api_key_file).decode(errors="replace").splitlines()
            in_file = [line.strip() for line in lines if line.strip()]
            in_file = [key for key in in_file if not key.startswith("#")]
            if not in_file:
                raise ArgumentError(f"--api-key-file {self.api_key_file}: there is no key in it")
            found += in_file
        return frozenset(found)

    def models(self) -> list[Path]:
        """The models of --models-dir, of split ones the first files. Raises FileError."""
        folder = self.models_dir
        if folder is None:
            return []
        if not folder.is_dir():
            raise MissingFile(f"--models-dir {printable(str(folder))}: there is no such folder")
        found = sorted(folder.glob("*.gguf"))
        return [path for path in found if not re.search(_LATER_PART, path.name)]

    @property
    def sleep_s(self) -> float:
        return math.inf if self.sleep_idle_seconds == -1 else self.sleep_idle_seconds

    @property
    def grace_s(self) -> int:
        """Seconds that running answers have when the server is stopped."""
        return math.ceil(min(self.timeout, 30))


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Whether Ray runs the model on other machines, and on how many."""

    ray: bool = setting(
        False,
        "--ray",
        "Run replicas of the model on a Ray cluster: the one of --ray-address, or this machine.",
        is_flag=True,
    )
    ray_address: str | None = setting(
        None,
        "--ray-address ADDRESS",
        "Where the cluster is: HOST:PORT of its head, or auto.",
        show_default="$RAY_ADDRESS, or a cluster of this machine alone",
    )
    replicas: tuple[int, int] = setting(
        (1, 1),
        "--replicas N|MIN-MAX",
        "How many replicas there are; of a range as many as the requests need.",
        type=Range(),
        show_default="1",
    )
    replica_gpus: float = setting(
        0.0, "--replica-gpus N", "GPUs that each of them has.", type=Real(0)
    )

    def scale(self, n_threads: int | None, n_parallel: int) -> Scale:
        """Each replica has the cores of its threads: by default all of a machine."""
        from ggmlpy.backends.cpu.cores import default_n_threads
        from ggmlpy.server.cluster.running import Scale

        least, most = self.replicas
        return Scale(least, most, n_threads or default_n_threads(), self.replica_gpus, n_parallel)

    def connect(self) -> None:
        """Connect to the cluster. Raises MissingPackage, ArgumentError."""
        try:
            import ray
        except ImportError:
            raise MissingPackage(
                "--ray needs the package ray: pip install 'ggmlpy[server,ray]'"
            ) from None
        try:
            ray.init(address=self.ray_address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ArgumentError(
                f"--ray-address {self.ray_address}: no Ray cluster can be reached there: {error}"
            ) from None


cluster_options = group(ClusterOptions, "cluster", "Ray cluster")
server_options = group(ServerOptions, "server", SECTION)
shared_options = group(SharedOptions, "shared", SECTION)
