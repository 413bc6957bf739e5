// One message as nodes: its text, reasoning and tool calls, its figures, and what can be done.

import { copyButton, element, render } from "./markdown.js";

const NAMES = { user: "You", assistant: "Answer", system: "System", tool: "Tool" };

const unfolded = new WeakSet(); // messages whose reasoning is shown

/** The article of a message. `actions`: [label, function], shown as buttons. */
export function article(message, actions) {
  const made = element("article", { className: `message ${message.role}` });
  const parts = {
    reasoning: element("details", { className: "reasoning", hidden: true },
      element("summary", {}, "Reasoning"), element("div")),
    body: element("div", { className: "body" }),
    calls: element("div", { className: "calls" }),
    error: element("p", { className: "error", hidden: true }),
    figures: element("span", { className: "figures-line" }),
  };
  const buttons = element("span", { className: "buttons-line" },
    copyButton(() => message.content, "Copy message"));
  for (const [label, act] of actions) {
    const button = element("button", { type: "button", className: "small" }, label);
    button.setAttribute("aria-label", `${label} message`);
    button.addEventListener("click", act);
    buttons.append(button);
  }
  parts.reasoning.open = unfolded.has(message);
  parts.reasoning.addEventListener("toggle", () => {
    unfolded[parts.reasoning.open ? "add" : "delete"](message);
  });
  made.append(element("h2", { className: "who" }, NAMES[message.role] ?? message.role),
    parts.reasoning, parts.body, parts.calls, parts.error,
    element("div", { className: "actions" }, parts.figures, buttons));
  made.parts = parts;
  show(made, message);
  return made;
}

/** Show what a message has by now. */
export function show(made, message, isStreaming = false) {
  const { reasoning, body, calls, error, figures } = made.parts;
  reasoning.hidden = !message.reasoning;
  if (message.reasoning) {
    const thinks = isStreaming && !message.content;
    reasoning.firstChild.textContent = thinks ? "Reasoning …" : "Reasoning";
    replace(reasoning.lastChild, render(message.reasoning));
  }
  replace(body, render(message.content ?? ""));
  made.classList.toggle("streaming", isStreaming);
  calls.replaceChildren(...(message.toolCalls ?? []).map(toolCall));
  error.hidden = !message.error;
  error.textContent = message.error ?? "";
  const isWaiting = isStreaming && !message.content && !message.reasoning;
  figures.textContent = isWaiting ? "waits for its first token" : figuresOf(message);
}

/** Put new nodes into a box. Those that are the same stay, with what is selected in them. */
function replace(box, fragment) {
  const made = [...fragment.childNodes];
  let i = 0;
  while (i < made.length && box.childNodes[i]?.isEqualNode(made[i])) i += 1;
  while (box.childNodes.length > i) box.lastChild.remove();
  box.append(...made.slice(i));
}

function toolCall(call) {
  let text = call.arguments;
  try {
    text = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // not complete yet
  }
  return element("div", { className: "code call" },
    element("div", { className: "code-bar" }, `Calls ${call.name}`),
    element("pre", { tabIndex: 0 }, element("code", {}, text)));
}

function figuresOf({ timings, usage, state }) {
  const found = [];
  if (state === "stopped") found.push("stopped");
  if (state === "length") found.push("cut at the limit of tokens");
  if (timings) {
    found.push(`${timings.predicted_n} tokens, ${timings.predicted_per_second.toFixed(0)}/s`);
    found.push(`prompt ${timings.prompt_n + timings.cache_n}, ${timings.cache_n} of it cached`);
  } else if (usage) {
    found.push(`${usage.completion_tokens} tokens, prompt ${usage.prompt_tokens}`);
  }
  return found.join(" · ");
}
