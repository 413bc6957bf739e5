"""The chat of the page, used as a person does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.server.browser import Browser, Page

if TYPE_CHECKING:
    from tests.server.conftest import Server

IS_DONE = "document.getElementById('stop').hidden"
N_MESSAGES = "document.querySelectorAll('.message').length"


def opened(browser: Browser, server: Server) -> Page:
    page = browser.page()
    page.size(1280, 900)
    page.go(f"{server.url}/")
    page.wait("document.getElementById('model').options.length === 1")
    return page


def set_settings(page: Page, **settings: Any) -> None:
    """As the dialog keeps them."""
    page.evaluate(f"localStorage.setItem('ggmlpy.settings', {json.dumps(json.dumps(settings))})")
    page.go()
    page.wait("document.getElementById('model').value")


def record_requests(page: Page) -> None:
    """Keep the bodies of requests in `window.bodies`."""
    page.evaluate(
        "(() => { window.bodies = []; const before = fetch; window.fetch = (path, options) => {"
        " if (options.body) bodies.push(JSON.parse(options.body)); return before(path, options);"
        " }; })()"
    )


def say(page: Page, text: str) -> None:
    n = page.evaluate(N_MESSAGES)
    page.evaluate("document.getElementById('input').focus()")
    page.type(text)
    page.press("Enter")
    page.wait(f"{N_MESSAGES} === {n + 2}")


def answer(page: Page) -> str:
    """The text of the last message, when it is complete."""
    page.wait(IS_DONE)
    return str(page.evaluate("[...document.querySelectorAll('.message .body')].at(-1).innerText"))


def answer_with(page: Page, *events: Any) -> None:
    """Have the next messages answered by these events, not by the server."""
    text = "".join(f"data: {json.dumps(each)}\n\n" for each in events) + "data: [DONE]\n\n"
    page.evaluate(
        "(() => { const before = fetch; window.fetch = async (path, options) =>"
        " options.body ? new Response(new Blob(["
        f"{json.dumps(text)}])) : before(path, options); }})()"
    )
