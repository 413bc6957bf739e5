"""A server as a process of its own, which ends with a `with` block."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from benchmarks.engines import EngineError
from ggmlpy.cli.loading import loading

HOST = "127.0.0.1"
START_S = 600.0  # to load a model in


class ServerProcess:
    """A program that listens on a port of this machine, and says at /health that it can answer."""

    def __init__(self, name: str, command: Sequence[str], port: int, model: str) -> None:
        """Start it, and wait until the model is loaded. Raises EngineError."""
        self.name = name
        self.port = port
        self._output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,  # an interrupt is for the benchmark, which ends it
            )
        except OSError as error:
            self._output.close()
            raise EngineError(f"{name}: cannot run {command[0]}: {error.strerror}") from None
        try:
            with loading(f"{model} in {name}"):
                self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._output.close()

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise self.death()
            if self._is_ready():
                return
            time.sleep(0.05)
        raise EngineError(f"{self.name}: not ready after {START_S:.0f} s")

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def has_ended(self) -> bool:
        """Whether the process has ended, or does so after its connections."""
        try:
            self._process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End the process, and with it the answers that others wait for."""
        self._process.kill()

    def death(self) -> EngineError:
        """Why it has ended."""
        code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        self._output.seek(0)
        lines = self._output.read().strip().splitlines()
        said = f"; its last words: {lines[-1]}" if lines else ""
        return EngineError(f"{self.name}: its process {how}{said}")

    def cpu_s(self) -> float | None:
        """Seconds that its first thread has run, which in ggmlpy is that of the event loop; None
        where the system does not say."""
        try:
            stat = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text()
        except OSError:
            return None
        return int(stat.split()[0]) / 1e9


def free_port() -> int:
    """A port that no one listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
