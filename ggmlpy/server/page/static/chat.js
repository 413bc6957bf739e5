// The chat: sends messages, shows answers as they come, and lets people change what was said.

import { ApiError, events } from "./api.js";
import { element } from "./markdown.js";
import { article, show } from "./messages.js";
import { fieldsOf } from "./settings.js";
import { titleOf } from "./store.js";

const KEEP_MS = 1000; // between two times that an answer is kept while it comes
const SHOW_MS = 50;

const byId = (id) => document.getElementById(id);

export class Chat {
  constructor(store, model) {
    this.store = store;
    this.model = model; // a function: the name that is chosen
    this.running = null; // { chat, message, controller }
    this.box = byId("messages");
    this.input = byId("input");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    this.input.addEventListener("input", () => this.fit());
    byId("stop").addEventListener("click", () => this.stop());
    byId("new-chat").addEventListener("click", () => {
      store.add();
      this.keep();
      this.showAll();
      document.body.classList.remove("shows-chats");
      dispatchEvent(new Event("resize")); // the panel may be hidden now
      this.input.focus();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.stop();
    });
    addEventListener("pagehide", () => this.keep());
    this.showAll();
  }

  get messages() {
    return this.store.current.messages;
  }

  keep() {
    const notice = this.store.keep() ? "" : "This browser does not keep chats: there is no room.";
    byId("notice").textContent = notice;
  }

  fit() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight + 2, innerHeight / 3)}px`;
  }

  // --- asking ---

  send() {
    const content = this.input.value.trim();
    if (!content || this.running) return;
    this.messages.push({ role: "user", content });
    this.input.value = "";
    this.fit();
    this.answer();
  }

  stop() {
    this.running?.controller.abort();
  }

  /** Have the last message answered. */
  async answer() {
    const chat = this.store.current;
    const isSaid = (each) => each.content || each.toolCalls?.length; // not one that has failed
    const history = chat.messages.filter(isSaid).map(asSent);
    const message = { role: "assistant", content: "" };
    chat.messages.push(message);
    const running = { chat, message, controller: new AbortController(), isDirty: false };
    this.running = running;
    this.showAll();
    this.scrollDown(true);
    const announcer = new Announcer();
    let shown = 0;
    let kept = performance.now();
    let timer = null;
    const update = () => {
      timer = null;
      shown = performance.now();
      const wasAtEnd = this.isAtEnd();
      if (running.article?.isConnected) show(running.article, message, true);
      if (wasAtEnd) this.scrollDown();
      announcer.add(message.content);
      if (shown - kept > KEEP_MS) {
        kept = shown;
        this.keep();
      }
    };
    try {
      const { system } = this.store.settings;
      const body = {
        ...fieldsOf(this.store.settings),
        messages: system ? [{ role: "system", content: system }, ...history] : history,
        model: this.model() || undefined,
        stream: true,
        stream_options: { include_usage: true },
      };
      for await (const data of events("v1/chat/completions",
                                      { body, signal: running.controller.signal })) {
        if (data.error) throw new ApiError(0, data.error.message);
        take(message, data);
        timer ??= setTimeout(update, Math.max(0, SHOW_MS - (performance.now() - shown)));
      }
    } catch (error) {
      if (error.name === "AbortError") message.state = "stopped";
      else if (error instanceof ApiError) message.error = error.message;
      else message.error = `The server does not answer: ${error.message}`;
    }
    clearTimeout(timer);
    this.running = null;
    announcer.end(message);
    const wasAtEnd = this.isAtEnd();
    this.keep();
    this.showAll();
    if (wasAtEnd) this.scrollDown(true);
  }

  // --- showing ---

  isAtEnd() {
    return this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 80;
  }

  scrollDown(force = false) {
    if (force || this.isAtEnd() || this.running) this.box.scrollTop = this.box.scrollHeight;
  }

  showAll() {
    const { running } = this;
    const top = this.box.scrollTop;
    const hadFocus = this.box.contains(document.activeElement);
    this.box.replaceChildren();
    if (!this.messages.length) this.box.append(welcome());
    this.messages.forEach((message, i) => {
      const made = article(message, this.actions(message, i));
      if (running?.message === message) {
        running.article = made;
        show(made, message, true);
      }
      this.box.append(made);
    });
    this.box.scrollTop = top;
    if (hadFocus) this.box.focus({ preventScroll: true });
    byId("send").hidden = Boolean(running);
    byId("stop").hidden = !running;
    this.showChats();
  }

  actions(message, i) {
    if (this.running) return []; // an answer is being added to the messages
    const found = [];
    if (message.role === "assistant") found.push(["Retry", () => this.retry(i)]);
    found.push(["Edit", () => this.edit(message, i)]);
    found.push(["Delete", () => {
      this.messages.splice(i, 1);
      this.keep();
      this.showAll();
      this.input.focus();
    }]);
    return found;
  }

  retry(i) {
    this.messages.length = i;
    this.answer();
    this.input.focus();
  }

  edit(message, i) {
    const made = this.box.children[i];
    const area = element("textarea", { value: message.content, className: "edit" });
    area.setAttribute("aria-label", "Text of the message");
    const close = () => {
      this.showAll();
      this.box.children[i]?.querySelector(".actions button")?.focus();
    };
    const save = () => {
      message.content = area.value;
      this.keep();
      close();
    };
    const buttons = element("div", { className: "actions" });
    const button = (label, act, className = "small") => {
      const each = element("button", { type: "button", className }, label);
      each.addEventListener("click", act);
      buttons.append(each);
    };
    if (message.role === "user") {
      button("Send", () => {
        message.content = area.value;
        this.messages.length = i + 1;
        this.answer();
        this.input.focus();
      }, "small primary");
    }
    button("Save", save);
    button("Cancel", close);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
    });
    made.parts.body.replaceChildren(area, buttons);
    area.style.height = `${Math.min(area.scrollHeight + 4, innerHeight / 2)}px`;
    area.focus();
  }

  showChats() {
    const entries = this.store.chats.map((chat) => {
      const title = titleOf(chat);
      const open = element("button", { type: "button", className: "chat-title" }, title);
      if (chat === this.store.current) open.setAttribute("aria-current", "true");
      open.addEventListener("click", () => {
        this.store.current = chat;
        this.keep();
        this.showAll();
        this.scrollDown(true);
        document.body.classList.remove("shows-chats");
        this.box.focus({ preventScroll: true }); // the button is gone
      });
      const remove = element("button", { type: "button", className: "small" }, "×");
      remove.setAttribute("aria-label", `Delete chat ${title}`);
      remove.addEventListener("click", () => {
        if (this.running?.chat === chat) this.stop();
        this.store.remove(chat);
        this.showAll();
        byId("new-chat").focus();
      });
      return element("li", {}, open, remove);
    });
    byId("chat-list").replaceChildren(...entries);
  }
}

/** A message as requests have it. */
function asSent({ role, content, toolCalls }) {
  if (!toolCalls?.length) return { role, content };
  const calls = toolCalls.map(({ id, name, arguments: text }) =>
    ({ id, type: "function", function: { name, arguments: text } }));
  return { role, content: content || null, tool_calls: calls };
}

/** Add a chunk of an answer to its message. */
function take(message, data) {
  if (data.usage) message.usage = data.usage;
  if (data.timings) message.timings = data.timings;
  const choice = data.choices?.[0];
  if (!choice) return;
  const { delta = {} } = choice;
  message.content += delta.content ?? "";
  if (delta.reasoning_content) {
    message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
  }
  for (const each of delta.tool_calls ?? []) {
    message.toolCalls ??= [];
    const call = (message.toolCalls[each.index] ??= { id: each.id, name: "", arguments: "" });
    call.name += each.function?.name ?? "";
    call.arguments += each.function?.arguments ?? "";
  }
  if (choice.finish_reason === "length") message.state = "length";
}

function welcome() {
  return element("div", { className: "welcome" },
    element("p", {}, "Write a message to begin."),
    element("p", { className: "hint" },
      "Chats stay in this browser. The engine view shows how requests share the model."));
}

/** Tells a screen reader an answer sentence by sentence, not token by token. */
class Announcer {
  constructor() {
    this.box = byId("announcer");
    this.box.replaceChildren();
    this.n = 0;
  }

  add(text) {
    const end = text.slice(this.n).search(/[.!?:\n][^.!?:\n]*$/);
    if (end >= 0) this.say(text.slice(this.n, (this.n += end + 1)));
  }

  end({ content, error, state }) {
    this.say(content.slice(this.n));
    if (error) this.say(error);
    if (state === "stopped") this.say("Stopped.");
  }

  say(text) {
    if (text.trim()) this.box.append(element("p", {}, text.trim()));
  }
}
