"""The page for everybody: keyboard, screen readers, phones, contrast."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ggmlpy.server.page import assets
from tests.server.browser import Browser, Page, chromium
from tests.server.chats import answer, answer_with, opened, say, set_settings
from tests.server.conftest import Server

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium")


def test_keyboard_alone(page: Page) -> None:
    """Tab goes through all that can be used, in the order in which it is read."""
    set_settings(page, sampling={"max_tokens": 5})
    page.type("Hello")  # the message has the focus from the start
    page.press("Enter")
    answer(page)
    assert page.evaluate("document.activeElement.id") == "input"
    page.evaluate("document.activeElement.blur(); document.querySelector('.skip').focus()")
    visited = []
    for _ in range(40):
        page.press("Tab")
        visited.append(
            page.evaluate(
                "(({id, innerText, tagName}) => id || innerText || tagName)(document.activeElement)"
            )
        )
        assert page.evaluate("document.activeElement.matches(':focus-visible')") or (
            visited[-1] == "BODY" or "\n" in visited[-1]
        )
    order = ["chats-toggle", "engine-toggle", "settings-open", "new-chat", "messages", "Retry",
             "input", "send", "What is a step?", "What is a slot?"]  # fmt: skip
    places = [visited.index(each) for each in order]
    assert places == sorted(places)
    page.evaluate("document.getElementById('settings-open').focus()")
    page.press("Enter")
    page.wait("document.getElementById('settings').open")
    page.press("Escape")
    page.wait("!document.getElementById('settings').open")
    assert page.evaluate("document.activeElement.id") == "settings-open"


def test_everything_that_can_be_used_has_a_name(page: Page) -> None:
    set_settings(page, sampling={"max_tokens": 5})
    say(page, "Hello")
    answer(page)
    for is_open in (False, True):
        if is_open:
            page.click("#settings-open")
        nodes = page.send("Accessibility.getFullAXTree")["nodes"]
        roles = {"button", "textbox", "combobox", "spinbutton", "link", "image", "img", "dialog",
                 "DisclosureTriangle", "log", "region", "navigation", "table"}  # fmt: skip
        found = [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"] and node["role"]["value"] in roles
        ]
        assert len(found) > 12
        assert [each for each in found if not each[1] and each[0] != "table"] == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone(page: Page, dark: bool) -> None:
    """Nothing is wider than the screen, in any panel."""
    set_settings(page, sampling={"max_tokens": 40})
    page.size(360, 740, dark=dark)
    say(page, "Hello")
    answer(page)
    widths = (
        "[document.documentElement.scrollWidth,"
        " ...['messages', 'engine', 'chats'].map((id) => document.getElementById(id).scrollWidth)]"
    )
    assert max(page.evaluate(widths)) <= 360
    page.click("#engine-toggle")
    page.wait("document.getElementById('slots').rows.length > 1")
    assert max(page.evaluate(widths)) <= 360
    assert page.evaluate("document.querySelector('main').checkVisibility()") is False
    page.click("#chats-toggle")
    assert page.evaluate("document.querySelector('main').checkVisibility()") is True
    assert max(page.evaluate(widths)) <= 360
    page.click("#new-chat")
    assert page.evaluate("document.getElementById('chats').checkVisibility()") is False
    assert page.evaluate("document.getElementById('chats-toggle').ariaExpanded") == "false"
    page.click("#settings-open")
    assert page.evaluate("document.getElementById('settings').scrollWidth") <= 360


def test_buttons_of_a_phone_are_large_enough_for_a_finger(page: Page) -> None:
    set_settings(page, sampling={"max_tokens": 5})
    page.size(390, 844)
    say(page, "Hello")
    answer(page)
    small = (
        "[...document.querySelectorAll('button, select, input, summary')].filter((each) => {"
        " const {width, height} = each.getBoundingClientRect();"
        " return each.checkVisibility() && Math.min(width, height) < 40; })"
        ".map((each) => each.id || each.innerText)"
    )
    for button in ("#chats-toggle", "#engine-toggle", "#settings-open"):
        assert page.evaluate(small) == []
        page.click(button)
    page.wait("document.getElementById('settings').open")
    assert page.evaluate(small) == []


def test_escape_closes_the_list_of_chats_on_a_phone(page: Page) -> None:
    """And leaves the answer alone."""
    set_settings(page, more=json.dumps({"ignore_eos": True, "max_tokens": -1}))
    page.size(390, 844)
    say(page, "Tell me a story.")
    page.click("#chats-toggle")
    page.press("Escape")
    assert page.evaluate("document.getElementById('chats').checkVisibility()") is False
    assert page.evaluate("document.activeElement.id") == "chats-toggle"
    assert page.evaluate("document.getElementById('stop').hidden") is False
    page.press("Escape")
    answer(page)
    assert "stopped" in page.text(".message.assistant .figures-line")


def test_the_focus_stays_where_a_chat_was_chosen(page: Page) -> None:
    page.evaluate("document.querySelector('.chat-title').focus()")
    page.press("Enter")
    assert page.evaluate("document.activeElement.id") == "messages"


def test_an_error_amid_an_answer_is_said_in_full(page: Page) -> None:
    answer_with(
        page,
        {"choices": [{"delta": {"content": "It is sunny. And"}, "finish_reason": None}]},
        {"error": {"message": "the model was unloaded"}},
    )
    say(page, "What is the weather?")
    answer(page)
    said = page.evaluate("[...document.querySelectorAll('#announcer p')].map((p) => p.innerText)")
    assert "".join(said).startswith("It is sunny.")
    assert said[-1] == "the model was unloaded"


def test_chats_that_cannot_be_read_are_left_out(browser: Browser, server: Server) -> None:
    page = opened(browser, server)
    kept = {"chats": [{"id": "a", "messages": [{"role": "user", "content": None}]}], "current": "a"}
    # The page keeps its own chats when it is left.
    page.go(f"{server.url}/health")
    page.evaluate(f"localStorage.setItem('ggmlpy.chats', {json.dumps(json.dumps(kept))})")
    page.go(f"{server.url}/")
    page.wait("document.getElementById('model').options.length === 1")
    assert page.text(".chat-title") == "New chat"
    assert page.problems == []


def test_contrast() -> None:
    """Of all colours of text on all grounds, in both themes: WCAG's AA."""
    css = (Path(assets.__file__).with_name("static") / "style.css").read_text()
    themes = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
        for block in re.findall(r"color-scheme: (?:light|dark);(.*?)}", css, re.S)
    ]
    assert len(themes) == 3
    assert themes[1] == themes[2]
    for theme in themes:
        for ground in ("page", "panel", "mine", "code"):
            for text in ("text", "muted", "accent", "error"):
                assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground)
        for ground in ("page", "panel"):  # of the edges of what can be filled in
            assert contrast(theme["edge"], theme[ground]) >= 3
        assert contrast(theme["on-accent"], theme["accent"]) >= 4.5


def contrast(one: str, other: str) -> float:
    """Source: www.w3.org/TR/WCAG22/#dfn-contrast-ratio"""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
