"""The page in a browser: chat, settings, the live view."""

from __future__ import annotations

import json
import re
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from ggmlpy.server import Settings
from tests.server.browser import Browser, Page, chromium
from tests.server.chats import (
    IS_DONE,
    N_MESSAGES,
    answer,
    answer_with,
    opened,
    record_requests,
    say,
    set_settings,
)
from tests.server.conftest import N_SEQS, Server, open_model, running, wait_for

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium")

N_CLIENTS = 32
ENDLESS = {"ignore_eos": True, "max_tokens": 480}


def test_an_answer_comes_as_it_is_made(page: Page) -> None:
    set_settings(page, more=json.dumps(ENDLESS))
    say(page, "Tell me a story about a cat.")
    lengths = []
    while not page.evaluate(IS_DONE):
        lengths.append(
            page.evaluate(
                "[...document.querySelectorAll('.message .body')].at(-1).innerText.length"
            )
        )
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 3
    text = answer(page)
    assert len(text) > 200
    assert re.search(r"\d+ tokens, \d+/s · prompt \d+, \d+ of it cached", page.text(
        ".message.assistant .figures-line"
    ))  # fmt: skip
    # A screen reader gets all of it, sentence by sentence.
    said = page.evaluate("[...document.querySelectorAll('#announcer p')].map((p) => p.innerText)")
    assert len(said) > 1
    assert re.sub(r"\s", "", "".join(said)) == re.sub(r"\s", "", text)


def test_stop_keeps_what_came_and_frees_the_sequence(page: Page, server: Server) -> None:
    set_settings(page, more=json.dumps({**ENDLESS, "max_tokens": -1}))
    say(page, "Tell me a story.")
    page.wait("[...document.querySelectorAll('.message .body')].at(-1).innerText.length > 10")
    page.press("Escape")
    text = answer(page)
    assert text
    assert "stopped" in page.text(".message.assistant .figures-line")
    wait_for(server.is_idle)
    page.go(f"{server.url}/")
    page.wait(f"{N_MESSAGES} === 2")  # it was kept
    assert answer(page) == text


def test_settings_are_sent(page: Page) -> None:
    page.click("#settings-open")
    page.wait("document.getElementById('settings').open")
    page.type("Be short.")  # the system prompt has the focus
    for name, value in {"temperature": "0.5", "max_tokens": "7", "seed": "3"}.items():
        page.evaluate(f"document.getElementById('set-{name}').focus()")
        page.type(value)
    page.evaluate("document.getElementById('set-more').focus()")
    page.type('{"ignore_eos": true, "logit_bias": {"5": -2}}')
    page.evaluate("document.getElementById('set-top_p').focus()")
    page.type("7")  # is no probability
    assert page.evaluate("document.getElementById('set-top_p').ariaInvalid") == "true"
    page.click("#settings .primary")
    assert page.evaluate("document.getElementById('settings').open")
    page.evaluate("document.getElementById('set-top_p').select()")
    page.type("0.75")
    page.click("#settings .primary")
    assert not page.evaluate("document.getElementById('settings').open")
    record_requests(page)
    say(page, "Hello")
    answer(page)
    (body,) = page.evaluate("bodies")
    assert body["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hello"},
    ]
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.5, 7, 3)
    assert body["ignore_eos"] is True
    assert body["logit_bias"] == {"5": -2}
    assert body["top_p"] == 0.75
    assert page.text(".message.assistant .figures-line").count("7 tokens") == 1


def test_fields_that_are_no_json_are_told(page: Page) -> None:
    page.click("#settings-open")
    page.evaluate("document.getElementById('set-more').focus()")
    page.type('{"stop": ')
    assert "not JSON" in page.text("#more-error")
    page.evaluate("document.getElementById('set-more').select()")
    page.type('{"stream": false}')
    assert "stream" in page.text("#more-error")


def test_an_error_of_the_server_is_shown(page: Page) -> None:
    set_settings(page, more='{"top_p": 7}')
    say(page, "Hello")
    answer(page)
    assert "top_p is 7" in page.text(".message.assistant .error")
    page.problems = [each for each in page.problems if "400" not in each]  # the browser's own line


def test_retry_edit_delete(page: Page) -> None:
    set_settings(page, sampling={"max_tokens": 12, "temperature": 1})
    say(page, "First")
    answer(page)
    say(page, "Second")
    answer(page)
    record_requests(page)

    def act(i: int, label: str) -> None:
        page.evaluate(
            f"[...document.querySelectorAll('.message')[{i}].querySelectorAll('button')]"
            f".find((each) => each.innerText === '{label}').click()"
        )

    act(3, "Retry")
    page.wait(IS_DONE)
    assert page.evaluate(N_MESSAGES) == 4
    assert [each["role"] for each in page.evaluate("bodies")[0]["messages"]] == [
        "user", "assistant", "user",
    ]  # fmt: skip
    act(0, "Edit")
    page.evaluate("document.activeElement.select()")
    page.type("Changed")
    act(0, "Send")
    page.wait(f"{IS_DONE} && {N_MESSAGES} === 2")
    assert page.evaluate("bodies")[1]["messages"] == [{"role": "user", "content": "Changed"}]
    act(1, "Edit")
    page.evaluate("document.activeElement.select()")
    page.type("Put *there*")
    act(1, "Save")
    assert page.evaluate("document.querySelectorAll('.message')[1].querySelector('em').innerText")
    act(1, "Delete")
    assert page.evaluate(N_MESSAGES) == 1


def test_chats_are_kept(page: Page, server: Server) -> None:
    set_settings(page, sampling={"max_tokens": 5})
    say(page, "About cats")
    answer(page)
    page.click("#new-chat")
    assert page.evaluate(N_MESSAGES) == 0
    say(page, "About dogs")
    answer(page)
    page.go(f"{server.url}/")
    titles = "[...document.querySelectorAll('.chat-title')].map((each) => each.innerText)"
    assert page.wait(titles) == ["About dogs", "About cats"]
    page.click("#chat-list li:nth-child(2) .chat-title")
    assert page.text(".message.user .body") == "About cats"
    page.click("#chat-list li:nth-child(2) .small")
    assert page.evaluate(titles) == ["About dogs"]


@pytest.mark.parametrize("layout", ["unified", "split", "paged"])
def test_the_view_under_load(browser: Browser, layout: Any) -> None:
    with running(open=lambda: open_model(kv_layout=layout)) as server:
        page = opened(browser, server)
        over = Event()

        def ask(i: int) -> None:
            with httpx.Client(timeout=60) as client:
                while not over.is_set():
                    body = {"prompt": f"Once upon a time there was {'x' * (i % 7)}", **ENDLESS}
                    client.post(f"{server.url}/v1/completions", json=body).raise_for_status()

        threads = [Thread(target=ask, args=(i,)) for i in range(N_CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            text = "document.getElementById('{}').textContent"
            page.wait(f"{text.format('running')} === '{N_SEQS}/{N_SEQS}'")
            page.wait(f"Number({text.format('waiting')}) > 20")
            page.wait(f"Number({text.format('rate')}) > 0")
            page.wait("document.querySelectorAll('#step-batch .decode').length > 0")
            page.wait("document.querySelectorAll('#slots tr.decode').length > 1")
            assert page.evaluate("document.getElementById('slots').rows.length") == N_SEQS + 1
            label = page.evaluate("document.querySelector('#caches canvas').ariaLabel")
            assert re.match(rf"[\d,]+ of [\d,]+ cells used, [\d,]+ shared, layout {layout}", label)
            n_colours = page.evaluate(
                "(() => { const canvas = document.querySelector('#caches canvas');"
                " const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width,"
                " canvas.height); return new Set(new Uint32Array(data.buffer)).size; })()"
            )
            assert n_colours > N_SEQS  # those of the sequences, and that of empty cells
        finally:
            over.set()
            for thread in threads:
                thread.join()
        page.wait("document.getElementById('engine-state').textContent === 'idle'")
        assert page.problems == []
        page.go("about:blank")


def test_the_rate_is_never_negative(page: Page, server: Server) -> None:
    """The engine counts anew once it was idle."""
    page.evaluate(
        "(() => { const box = document.getElementById('rate'); window.rates = [];"
        " new MutationObserver(() => rates.push(Number(box.textContent)))"
        ".observe(box, {childList: true, characterData: true, subtree: true}); })()"
    )
    page.wait("document.getElementById('engine-state').textContent === 'idle'")
    for n in (400, 5):
        page.evaluate("rates.length = 0")
        body = {"prompt": "Once", "max_tokens": n, "ignore_eos": True}
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).raise_for_status()
        page.wait("rates.some((each) => each) && rates.at(-1) === 0")
        assert min(page.evaluate("rates")) >= 0


def test_nobody_watches_a_view_that_is_hidden(page: Page, server: Server) -> None:
    page.wait("document.getElementById('engine-state').textContent === 'idle'")
    page.click("#engine-toggle")
    assert page.evaluate("document.getElementById('engine').checkVisibility()") is False
    page.evaluate("window.asked = 0; const before = fetch; window.fetch = (...all) => {"
                  " asked += 1; return before(...all); }; 0")  # fmt: skip
    n_steps = server.llm.engine.timings.n_generated
    page.evaluate("new Promise((done) => setTimeout(done, 600))")
    assert page.evaluate("asked") == 0
    page.click("#engine-toggle")
    page.wait("asked === 1")
    assert server.llm.engine.timings.n_generated == n_steps


def test_a_key_is_asked_for(browser: Browser) -> None:
    with running(Settings(api_keys=frozenset({"secret"}))) as server:
        page = browser.page()
        page.size(1280, 900)
        page.go(f"{server.url}/")
        page.wait("document.getElementById('key-dialog').open")  # of the models, and of the view
        page.type("secret")
        page.press("Enter")
        page.wait("document.getElementById('model').options.length === 1")
        page.wait("document.getElementById('engine-state').textContent === 'idle'")
        say(page, "Hello")
        assert answer(page)
        assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
        page.go("about:blank")


def test_reasoning_and_tool_calls(page: Page) -> None:
    """Of a model that has them: the events are made here."""
    deltas: list[dict[str, Any]] = [
        {"reasoning_content": "Let me "},
        {"reasoning_content": "think."},
        {"content": "It is "},
        {"content": "**sunny**."},
        {
            "tool_calls": [
                {"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"a"'}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
    ]
    events = [{"choices": [{"delta": each, "finish_reason": None}]} for each in deltas]
    answer_with(page, *events)
    say(page, "What is the weather?")
    assert answer(page) == "It is sunny."
    reasoning = ".message.assistant details.reasoning"
    assert page.evaluate(f"document.querySelector('{reasoning}').open") is False
    assert page.evaluate(f"document.querySelector('{reasoning} div').textContent") == (
        "Let me think."
    )
    call = page.text(".message.assistant .call")
    assert "look" in call
    assert '{\n  "a": 1\n}' in call


MARKDOWN = {
    "a *b* **c** `d*e*` ~~f~~": (
        "<p>a <em>b</em> <strong>c</strong> <code>d*e*</code> <del>f</del></p>"
    ),
    "2 * 3 and *4*": "<p>2 * 3 and <em>4</em></p>",
    "snake_case_name and _it_": "<p>snake_case_name and <em>it</em></p>",
    "**bold *both***": "<p><strong>bold <em>both</em></strong></p>",
    "a\nb\n\nc": "<p>a<br>b</p><p>c</p>",
    "# One\n### Three #": "<h3>One</h3><h5>Three</h5>",
    "- a\n- b\n  - c\n1. d": (
        "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><ol><li>d</li></ol>"
    ),
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "> a\n> b": "<blockquote><p>a<br>b</p></blockquote>",
    "---": "<hr>",
    "|a|b|\n|-|-:|\n|1|2 \\| 3|": (
        '<div class="scrolls"><table><thead><tr><th>a</th><th class="right">b</th></tr></thead>'
        '<tbody><tr><td>1</td><td class="right">2 | 3</td></tr></tbody></table></div>'
    ),
    "a | b": "<p>a | b</p>",
    "[a](https://b.example/c_(d))": (
        '<p><a href="https://b.example/c_(d)" target="_blank" rel="noopener noreferrer">a</a></p>'
    ),
    "see https://b.example/c.": (
        '<p>see <a href="https://b.example/c" target="_blank" rel="noopener noreferrer">'
        "https://b.example/c</a>.</p>"
    ),
    "[a](javascript:alert(1))": "<p>[a](javascript:alert(1))</p>",
    "![a](https://b.example/c.png)": (
        '<p><a href="https://b.example/c.png" target="_blank" rel="noopener noreferrer">a</a></p>'
    ),
    "<img src=x onerror=alert(1)> <b>&amp;": (
        "<p>&lt;img src=x onerror=alert(1)&gt; &lt;b&gt;&amp;amp;</p>"
    ),
    "\\*a\\*": "<p>*a*</p>",
    "**not closed": "<p>**not closed</p>",
}


def rendered(page: Page, text: str) -> Any:
    return page.evaluate(
        "import('/page/markdown.js').then(({render}) => {"
        " const box = document.createElement('div');"
        f" box.append(render({json.dumps(text)})); return box.innerHTML; }})"
    )


def test_markdown(page: Page) -> None:
    assert {text: rendered(page, text) for text in MARKDOWN} == MARKDOWN
    code = rendered(page, "```py\nx = *1*\n<script>")  # not closed yet
    assert "<code>x = *1*\n&lt;script&gt;</code>" in code
    assert "<span>py</span>" in code


def test_markdown_of_anything_is_quick_and_harmless(page: Page) -> None:
    """Long and deep texts too."""
    texts = ["*" * 20_000, "[" * 20_000, "> " * 5_000 + "a", "`a" * 10_000, "**a*_" * 5_000,
             "- " * 3_000 + "a", "|a" * 5_000 + "\n" + "|-" * 5_000, "![a](" * 4_000,
             "http://" * 4_000, "_a " * 8_000, "~~~\n" * 4_000, "\\" * 9_999]  # fmt: skip
    for text in texts:
        spent = page.evaluate(
            "import('/page/markdown.js').then(({render}) => { const t = performance.now();"
            f" const made = render({json.dumps(text)});"
            " if (made.querySelector('script, img, iframe, object')) throw new Error('unsafe');"
            " return performance.now() - t; })"
        )
        assert spent < 1000, text[:20]
