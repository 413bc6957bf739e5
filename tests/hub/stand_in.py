"""A hub on loopback: repositories of files, and what can go wrong with them."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass
class StandIn:
    """The repositories of a hub, by name their files, and its behaviour."""

    url: str = ""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)  # repositories that only the token opens
    token: str = "hf_right"
    cuts: list[int] = field(default_factory=list)  # bytes after which the next downloads end
    statuses: list[int] = field(default_factory=list)  # of the next downloads
    ranges: bool = True  # whether a part of a file can be asked for
    sent: list[tuple[str, str | None]] = field(default_factory=list)  # GETs: path, range
    stall: threading.Event | None = None  # downloads wait for it in the middle
    stalled: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: StandIn

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        self._serve(body=True)

    def _serve(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path).lstrip("/")
        if path.startswith("api/models/"):
            repo = "/".join(path.split("/")[2:4])
            if self._refused(repo):
                return
            files = self.hub.repos[repo]
            tree = [
                {"type": "file", "path": p, "size": len(files[p]), "oid": "0" * 40} for p in files
            ]
            self._answer(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
            return
        parts = path.split("/")
        if len(parts) > 4 and parts[2] == "resolve":
            repo, name = "/".join(parts[:2]), "/".join(parts[4:])
            if not self._refused(repo):
                self._file(self.hub.repos[repo].get(name), body)
            return
        self._file(self.hub.repos.get("plain", {}).get(path), body)

    def _refused(self, repo: str) -> bool:
        given = self.headers.get("Authorization")
        if repo not in self.hub.repos:
            self._answer(404 if given else 401, b"", {"X-Error-Code": "RepoNotFound"})
            return True
        if repo in self.hub.gated and given != f"Bearer {self.hub.token}":
            self._answer(403 if given else 401, b"", {"X-Error-Code": "GatedRepo"})
            return True
        return False

    def _file(self, content: bytes | None, body: bool) -> None:
        if content is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        asked = self.headers.get("Range")
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        if not body:
            self._answer(200, content, headers, body=False)
            return
        self.hub.sent.append((self.path, asked))
        if self.hub.statuses:
            self._answer(self.hub.statuses.pop(0), b"", {})
            return
        status = 200
        if asked and self.hub.ranges:
            begin = int(asked.removeprefix("bytes=").rstrip("-"))
            if begin >= len(content):
                self._answer(416, b"", {})
                return
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            content, status = content[begin:], 206
        self._answer(status, content, headers)

    def _answer(
        self, status: int, content: bytes, headers: dict[str, str], *, body: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not body or not content:
            return
        if status in (200, 206) and "ETag" in headers and self.hub.cuts:
            self.wfile.write(content[: self.hub.cuts.pop(0)])
            self.close_connection = True
            return
        if self.hub.stall is not None and "ETag" in headers:
            half = len(content) // 2
            self.wfile.write(content[:half])
            self.wfile.flush()
            self.hub.stalled.set()
            self.hub.stall.wait(60)
            content = content[half:]
        try:
            self.wfile.write(content)
        except OSError:  # the reader is gone
            self.close_connection = True


@contextmanager
def serving() -> Iterator[StandIn]:
    """A hub that runs in the block."""
    hub = StandIn()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            if hub.stall is not None:
                hub.stall.set()
            server.shutdown()
            thread.join()
