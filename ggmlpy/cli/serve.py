"""`ggmlpy serve`: a server for OpenAI's clients, llama-server's, and a page for people."""

from __future__ import annotations

import errno
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import partial
from ipaddress import ip_address
from logging import LogRecord
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from ggmlpy.cli import common, options
from ggmlpy.cli.adapter_options import AdapterOptions, adapter_options
from ggmlpy.cli.command import command, flag
from ggmlpy.cli.draft_options import DraftOptions, draft_options
from ggmlpy.cli.environment import with_environment
from ggmlpy.cli.guard import complain
from ggmlpy.cli.loading import loading
from ggmlpy.cli.options import ModelOptions
from ggmlpy.cli.reasoning_options import ReasoningOptions, reasoning_options
from ggmlpy.cli.sampling_options import FRESH_SEED, SamplingOptions
from ggmlpy.cli.server_options import (
    ClusterOptions,
    ServerOptions,
    cluster_options,
    server_options,
)
from ggmlpy.cli.show import Lossy, console, say
from ggmlpy.cli.template_options import TemplateOptions, template_options
from ggmlpy.common import log
from ggmlpy.common.quoting import printable
from ggmlpy.errors import AllocationError, ArgumentError, FileError, GgmlpyError, MissingPackage
from ggmlpy.packaged import packaged_model

if TYPE_CHECKING:
    from ggmlpy.llama import Llama
    from ggmlpy.server.settings import Settings

N_PARALLEL = 8  # without -np


@with_environment
@command
@options.model_file
@options.kv_unified
@options.kv_layout
@flag("verbose", "-v --verbose --log-verbose", "Show what was loaded.")
@server_options
@options.model_options
@options.sampling_options
@template_options
@reasoning_options
@draft_options
@adapter_options
@cluster_options
def serve(
    model: Path | None,
    kv_unified: bool,
    kv_layout: str | None,
    verbose: bool,
    server: ServerOptions,
    setup: ModelOptions,
    sampling: SamplingOptions,
    template: TemplateOptions,
    reasoning: ReasoningOptions,
    draft: DraftOptions,
    adapters: AdapterOptions,
    cluster: ClusterOptions,
) -> None:
    """Serve a model over HTTP: OpenAI's API and llama-server's, and a page for people.

    Requests of all clients run together, -np at a time. Options of sampling, reasoning and the end
    of the context are those of requests that do not say them. Ctrl-C, or SIGTERM, lets running
    answers finish, for 30 seconds at most.

    Examples:
      ggmlpy serve
      ggmlpy serve -m model.gguf -c 16384 -np 16 --port 8000
      ggmlpy serve -m model.gguf -c 16384 -np 16 --check
      ggmlpy serve -m model.gguf --ray --replicas 2-8 --ray-address auto
      ggmlpy serve --models-dir ~/models --sleep-idle-seconds 600
      ggmlpy serve -hf ggml-org/gemma-3-1b-it-GGUF --api-key-file keys.txt --host 0.0.0.0
      curl http://127.0.0.1:8080/v1/chat/completions -d '{"messages": [{"role": "user",
      "content": "Hello"}]}'
    """
    check_packages()
    path = model or packaged_model()
    defaults = sampling.as_arguments()
    if defaults["seed"] == FRESH_SEED:
        del defaults["seed"]
    arguments = {
        "n_seq_max": N_PARALLEL if server.n_parallel == -1 else server.n_parallel,
        "kv_layout": "unified" if kv_unified else kv_layout or "unified",
        "cache_ram": server.cache_mib,
        "draft_model": draft.source(),
        "overrides": template.overrides(),
        **adapters.arguments(),
    }
    chat_defaults = reasoning.as_arguments()
    settings = server.settings(defaults, chat_defaults)
    if server.check:
        _check(path, setup, arguments["n_seq_max"], arguments["kv_layout"])
        return
    if cluster.ray:
        _serve_on_ray(path, setup, server, settings, arguments, cluster)
        return
    tls = _tls(server)
    with (
        redirect_stderr(Lossy(sys.stderr)),
        server.writing_logs(),
        _listen(server.host, server.port) as listening,
    ):
        where = _url(listening, has_tls=bool(tls))
        if not settings.api_keys and not _is_loopback(listening.getsockname()[0]):
            _warn_of_no_keys()

        def open(file: Path) -> Llama:
            more = arguments if file == path else _of_any_model(arguments)
            llm = common.open_model(file, setup, **more)
            _tell(llm, file, where, verbose=verbose)
            return llm

        files = [path, *(file for file in server.models() if file != path)]
        _run(
            listening,
            server,
            {file: partial(open, file) for file in files},
            settings,
            lambda: server.settings(defaults, chat_defaults),
            tls,
        )


def _check(path: Path, setup: ModelOptions, n_seq_max: int, layout: str) -> None:
    """Show what memory is needed. Raises AllocationError if it is not there."""
    opener = common.opener_of(path, setup, n_seq_max=n_seq_max, kv_layout=layout)
    sizes, needs = opener.sizes, opener.needs()
    opener.warn_of_length()
    table = Table(title=f"{path.name}: {n_seq_max} sequences, {layout}", title_justify="left")
    for column in ("memory", "weights", "K, V, states", "largest step", "together", "there is"):
        table.add_column(column, justify="left" if column == "memory" else "right")
    for each in needs:
        amounts = (each.weights, each.state, each.compute, each.total, each.has)
        table.add_row(each.name, *("?" if n is None else _bytes(n) for n in amounts))
    console(sys.stdout).print(table)
    print(f"{sizes.n_ctx} tokens of context, {sizes.n_ctx_seq} of one sequence at most")
    for each in needs:
        if not each.fits:
            raise AllocationError(
                f"{each.name}: {_bytes(each.total)} are needed, there is {_bytes(each.has or 0)}; a"
                " smaller -c or -np takes less, and so do K and V of q8_0 (-ctk, -ctv)"
            )


def _bytes(n: int) -> str:
    return f"{n / 1e9:.2f} GB" if n >= 1e8 else f"{n / 1e6:.1f} MB"


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address, or a name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _warn_of_no_keys() -> None:
    complain("warning", "others can reach this server and need no key: --api-key asks for one")


def _serve_on_ray(
    path: Path,
    setup: ModelOptions,
    server: ServerOptions,
    settings: Settings,
    arguments: dict[str, Any],
    cluster: ClusterOptions,
) -> None:
    """Serve replicas of a model on a cluster, until the process is told to stop.

    Raises click.UsageError for options that are not for replicas.
    """
    for name, is_given in (
        ("--ssl-key-file", server.ssl_key_file is not None),
        ("--ssl-cert-file", server.ssl_cert_file is not None),
        ("--models-dir", server.models_dir is not None),
        ("--sleep-idle-seconds", server.sleep_idle_seconds != -1),
        ("--log-file", server.log_file is not None),
        ("--log-jsonl", server.log_jsonl),
    ):
        if is_given:  # each replica is a process of Ray's, which has the connections and the logs
            raise click.UsageError(f"{name} cannot be used with --ray.")
    if not settings.api_keys and not _is_loopback(server.host):
        _warn_of_no_keys()
    cluster.connect()
    from ray import serve as ray_serve

    from ggmlpy.server.cluster.running import start

    n_parallel = arguments["n_seq_max"]
    with loading(f"replicas of {printable(path.name)}"):
        start(
            server.names(path),
            partial(common.open_model, path.resolve(), setup, **arguments),
            settings,
            cluster.scale(setup.n_threads, n_parallel),
            host=server.host,
            port=server.port,
        )
    least, most = cluster.replicas
    n = str(least) if least == most else f"{least} to {most}"
    say(
        f"{printable(path.name)} answers at http://{server.host}:{server.port}: {n} replicas,"
        f" {n_parallel} sequences of each at a time"
    )
    stopped = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        stopped.wait()
    finally:
        ray_serve.shutdown()


def _of_any_model(arguments: dict[str, Any]) -> dict[str, Any]:
    """Those that do not belong to the model of -m alone: its template, its draft, its adapters."""
    return {name: arguments[name] for name in ("n_seq_max", "kv_layout", "cache_ram")}


def check_packages() -> None:
    """Raises MissingPackage."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingPackage(
            f"the server needs the package {error.name}: pip install 'ggmlpy[server]'"
        ) from None


def _tls(server: ServerOptions) -> dict[str, Any]:
    """uvicorn's options of HTTPS. Raises click.UsageError, ArgumentError."""
    key, certificate = server.ssl_key_file, server.ssl_cert_file
    if key is None and certificate is None:
        return {}
    if key is None or certificate is None:
        raise click.UsageError("--ssl-key-file and --ssl-cert-file are needed together.")
    for file in (key, certificate):
        common.read_bytes(file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise ArgumentError(
            f"{printable(certificate.name)} and {printable(key.name)}: not a certificate with its"
            f" key, in PEM: {error.reason or error}"
        ) from None
    return {"ssl_keyfile": str(key), "ssl_certfile": str(certificate)}


def _listen(host: str, port: int) -> socket.socket:
    """A socket on which clients can be accepted. Raises ArgumentError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except socket.gaierror:
        raise ArgumentError(f"--host {printable(host)}: there is no such address") from None
    except OSError as error:
        hint = ""
        if error.errno == errno.EADDRINUSE:
            hint = ", something listens there already: --port takes another one"
        raise ArgumentError(
            f"{printable(host)}:{port}: {os.strerror(error.errno or 0)}{hint}"
        ) from None


def _url(listening: socket.socket, *, has_tls: bool) -> str:
    host, port = listening.getsockname()[:2]
    return f"{'https' if has_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _tell(llm: Llama, file: Path, where: str, *, verbose: bool) -> None:
    """Say that a model is loaded, and where it answers."""
    if verbose:
        say(llm.describe())
    sizes = llm.engine.context.sizes
    say(
        f"{printable(file.name)} answers at {where}: {sizes.n_seq_max} sequences at a time,"
        f" {sizes.n_ctx_seq} tokens each, {sizes.n_ctx} together"
    )


@contextmanager
def _telling_once(failed: Sequence[Exception]) -> Iterator[None]:
    """The log leaves out what has `failed` and ends the server: the command's error says it."""

    def keeps(_: LogRecord) -> bool:
        return not failed

    log.logger.addFilter(keeps)
    try:
        yield
    finally:
        log.logger.removeFilter(keeps)


def _run(
    listening: socket.socket,
    server: ServerOptions,
    opened: dict[Path, Callable[[], Llama]],
    settings: Settings,
    read_settings: Callable[[], Settings],
    tls: dict[str, Any],
) -> None:
    """Serve models by their files, until the process is told to stop. Raises what opening the first
    one raises when the server starts: it could answer nothing."""
    import uvicorn

    from ggmlpy.server import Hosted, Models, create_app
    from ggmlpy.server.protocol import LimitedProtocol

    loaded = False
    failed: list[Exception] = []

    def open_first(open: Callable[[], Llama]) -> Llama:
        nonlocal loaded
        try:
            llm = open()
        except (GgmlpyError, OSError, MemoryError) as error:
            if not loaded:  # of those that SIGHUP loads anew the server tells, and goes on
                failed.append(error)
            raise
        loaded = True
        return llm

    class Server(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            return await super().on_tick(counter) or bool(failed)

    hosted = []
    for i, (file, open) in enumerate(opened.items()):
        if i == 0:
            open = partial(open_first, open)
        names = server.names(file) if i == 0 else [file.stem, file.name]
        hosted.append(Hosted(names, open, server.max_waiting))
    models = Models(
        hosted,
        max_loaded=server.models_max,
        autoload=server.models_autoload,
        sleep_idle_s=server.sleep_s,
    )
    config = uvicorn.Config(
        create_app(models, settings, read_settings=read_settings),
        http=LimitedProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=server.grace_s,
        **tls,
    )
    with _telling_once(failed) if server.logs_are_read_with_errors else nullcontext():
        Server(config).run(sockets=[listening])
    if failed and isinstance(failed[0], OSError):
        raise FileError(str(failed[0]))
    if failed:
        raise failed[0]
