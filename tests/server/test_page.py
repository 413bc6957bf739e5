"""The files of the page: types, caching, what they may load, and a server without them."""

from __future__ import annotations

import re

import httpx
import pytest

from ggmlpy.server import Settings
from ggmlpy.server.page import assets
from tests.server.conftest import Server, running

FOLDER = assets._FOLDER
NAMES = sorted(path.name for path in FOLDER.iterdir() if path.name != "index.html")
TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def test_the_page(client: httpx.Client) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect", "img")} == {"'self'"}
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.head("/").status_code == 200


@pytest.mark.parametrize("name", NAMES)
def test_assets(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/page/{name}")
    assert answer.content == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"].startswith(TYPES[name.rpartition(".")[2]])
    again = client.get(f"/page/{name}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == answer.headers["etag"]
    assert again.headers["cache-control"] == "no-cache"
    other = client.get(f"/page/{name}", headers={"If-None-Match": '"another"'})
    assert other.status_code == 200


@pytest.mark.parametrize(
    "path", ["/page/no.js", "/page/index.html", "/page/..%2fassets.py", "/page/%2e%2e/view.py"]
)
def test_nothing_else_is_served(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"


def test_references_are_relative_and_there() -> None:
    """So that the page works behind any prefix, and loads nothing from elsewhere."""
    html = (FOLDER / "index.html").read_text()
    found = re.findall(r'(?:src|href)="([^#"][^"]*)"', html)
    assert found
    assert {each.removeprefix("page/") for each in found} <= set(NAMES)
    for path in FOLDER.glob("*.js"):
        text = path.read_text()
        for name in re.findall(r'from "\./([^"]+)"', text):
            assert name in NAMES
    text = "".join(p.read_text() for p in FOLDER.iterdir()).replace(
        "http://www.w3.org/2000/svg", ""
    )
    assert not re.findall(r"https?://\w|url\(", text)


def test_no_text_becomes_html() -> None:
    for path in FOLDER.glob("*.js"):
        text = path.read_text()
        assert not re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text
        )
    assert not re.findall(r"\son\w+=|style=|<script>|<style", (FOLDER / "index.html").read_text())


def test_every_id_of_a_script_is_in_the_page() -> None:
    html = (FOLDER / "index.html").read_text()
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    for path in FOLDER.glob("*.js"):
        for name in re.findall(r'(?:byId|getElementById|[^.]say)\("([^"]+)"', path.read_text()):
            assert name in ids, f"{path.name}: {name}"
    for name in re.findall(
        r'(?:for|aria-controls|aria-labelledby|aria-describedby)="([^"]+)"', html
    ):
        assert name in ids


def test_with_keys_the_files_are_public_and_the_engine_is_not() -> None:
    with running(Settings(api_keys=frozenset({"secret"}))) as server:
        assert httpx.get(f"{server.url}/").status_code == 200
        assert httpx.get(f"{server.url}/page/app.js").status_code == 200
        refused = httpx.get(f"{server.url}/engine")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


def test_without_the_page() -> None:
    with running(Settings(page=False)) as server:
        _says_so(server)


def _says_so(server: Server) -> None:
    answer = httpx.get(f"{server.url}/")
    assert answer.status_code == 404
    assert "--no-ui" in answer.json()["error"]["message"]
    assert httpx.get(f"{server.url}/page/app.js").status_code == 404
    assert httpx.get(f"{server.url}/health").status_code == 200
