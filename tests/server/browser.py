"""A headless Chromium, told what to do by its DevTools protocol over a pair of pipes.

Source of the protocol: chromedevtools.github.io/devtools-protocol
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from time import monotonic, sleep
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT_S = 30
_KEYS = {
    "Enter": (13, "\r"),
    "Tab": (9, ""),
    "Escape": (27, ""),
    "Space": (32, " "),
    "ArrowDown": (40, ""),
    "ArrowRight": (39, ""),
}


def chromium() -> str | None:
    """The path of a Chromium, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class CommandError(Exception):
    """The browser has refused a command."""


class Page:
    """A tab. What goes wrong in it is in `problems`."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.problems: list[str] = []

    def send(self, method: str, **params: Any) -> Any:
        return self._browser.send(method, session=self._session, **params)

    def note(self, method: str, params: dict[str, Any]) -> None:
        """An event of the page."""
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", str(details)))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def size(self, width: int, height: int, *, dark: bool = False, still: bool = True) -> None:
        """Of the window; `still`: its person wants no animations."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.send("Emulation.setEmulatedMedia", features=features)

    def go(self, url: str | None = None) -> None:
        """Open a page, or this one anew."""
        self.evaluate("window.isOld = true")
        if url is None:
            self.send("Page.reload")
        else:
            self.send("Page.navigate", url=url)
        self.wait("!window.isOld && document.readyState === 'complete'", changes=True)

    def evaluate(self, code: str) -> Any:
        """The value of an expression, or of its promise."""
        answer = self.send(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{code}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, code: str, *, changes: bool = False) -> Any:
        """The value of an expression once it is true; with `changes` the page may change."""
        until = monotonic() + LIMIT_S
        while True:
            try:
                value = self.evaluate(code)
            except CommandError:
                if not changes:
                    raise
                value = None
            if value:
                return value
            assert monotonic() < until, f"never true: {code}; {self.problems}"
            sleep(0.02)

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({selector!r}).innerText"))

    def click(self, selector: str) -> None:
        """With a mouse, at its middle."""
        x, y = self.evaluate(
            f"(() => {{ const each = document.querySelector({selector!r});"
            " each.scrollIntoView({block: 'nearest'}); const box = each.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        code, text = _KEYS[key]
        common = {
            "key": " " if key == "Space" else key,
            "code": key,
            "windowsVirtualKeyCode": code,
            "modifiers": 8 if shift else 0,
        }
        more = {"text": text} if text else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **more)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path: Path) -> None:
        shot = self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


class Browser:
    """The process."""

    def __init__(self, folder: Path) -> None:
        path = chromium()
        assert path is not None
        our_read, its_write = os.pipe()
        its_read, our_write = os.pipe()
        arguments = [
            path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--remote-debugging-pipe", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-extensions", "--hide-scrollbars",
            f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        # The pipes have to be 3 and 4.
        redirected = f'exec "$0" "$@" 3<&{its_read} 4>&{its_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", redirected, *arguments],
            pass_fds=(its_read, its_write),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(its_read)
        os.close(its_write)
        self._read, self._write = our_read, our_write
        self._rest = b""
        self._n_sent = 0
        self._pages: dict[str, Page] = {}

    def send(self, method: str, session: str | None = None, **params: Any) -> Any:
        """The result of a command. Events that come meanwhile go to their pages."""
        self._n_sent += 1
        command = {"id": self._n_sent, "method": method, "params": params}
        if session is not None:
            command["sessionId"] = session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._n_sent:
                if "error" in message:
                    raise CommandError(f"{method}: {message['error']}")
                return message["result"]
            page = self._pages.get(message.get("sessionId", ""))
            if page is not None and "method" in message:
                page.note(message["method"], message["params"])

    def _receive(self) -> dict[str, Any]:
        until = monotonic() + LIMIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select([self._read], [], [], max(0, until - monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._read, 2**20)
            assert part, "the browser has ended"
            self._rest += part
        line, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def page(self) -> Page:
        """A new tab, of a profile of its own."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)
        session = self.send(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )["sessionId"]  # fmt: skip
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        return page

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(LIMIT_S)
        os.close(self._read)
        os.close(self._write)


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser in a block, whose profile is in a folder."""
    browser = Browser(folder)
    try:
        yield browser
    finally:
        browser.close()
