// Puts the page together.

import { ask } from "./api.js";
import { Chat } from "./chat.js";
import { EngineView } from "./engine.js";
import { element } from "./markdown.js";
import { setUp } from "./settings.js";
import { Store } from "./store.js";

const byId = (id) => document.getElementById(id);
const store = new Store();
const chat = new Chat(store, () => byId("model").value);
const view = new EngineView(() => byId("model").value);

setUp(store, () => {
  if (!confirm("Delete all chats of this browser?")) return;
  chat.stop();
  store.clear();
  chat.showAll();
});

async function showModels() {
  const { data } = await (await ask("v1/models")).json();
  byId("model").replaceChildren(...data.map(({ id }) => element("option", { value: id }, id)));
  byId("model").disabled = data.length < 2;
  document.title = `${data[0].id} – ggmlpy`;
}

byId("model").addEventListener("change", () => view.restart());

function toggles(id, panel, name, onChange = () => {}) {
  const button = byId(id);
  const update = () => {
    const isShown = getComputedStyle(byId(panel)).display !== "none";
    button.setAttribute("aria-expanded", String(isShown));
    onChange(isShown);
  };
  button.addEventListener("click", () => {
    const isShown = button.getAttribute("aria-expanded") === "true";
    const { classList } = document.body;
    // On a phone one panel is shown at a time.
    if (!isShown) classList.remove("shows-chats", "shows-engine");
    classList.toggle(`hides-${name}`, isShown);
    classList.toggle(`shows-${name}`, !isShown);
    updates.forEach((each) => each());
  });
  return update;
}

const updates = [];
updates.push(toggles("chats-toggle", "chats", "chats"));
updates.push(toggles("engine-toggle", "engine", "engine", (isShown) => view.setVisible(isShown)));
addEventListener("resize", () => updates.forEach((each) => each()));
byId("chat-list").addEventListener("click", () => updates.forEach((each) => each()));
document.addEventListener("visibilitychange", () => updates.forEach((each) => each()));
updates.forEach((each) => each());

// Where the list of chats lies over the page, Escape closes it, and stops nothing.
document.addEventListener("keydown", (event) => {
  const { display, position } = getComputedStyle(byId("chats"));
  const isOver = display !== "none" && position === "absolute";
  if (event.key !== "Escape" || !isOver || document.querySelector("dialog[open]")) return;
  event.stopPropagation();
  byId("chats-toggle").click();
  byId("chats-toggle").focus();
}, true);

showModels().catch((error) => { byId("notice").textContent = error.message; });
byId("input").focus();
