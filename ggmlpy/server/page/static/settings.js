// The dialog of settings: the system prompt, sampling, and other fields of requests.

import { element } from "./markdown.js";

// Name, label, step, least, most.
const FIELDS = [
  ["temperature", "Temperature", 0.05, 0, 5],
  ["max_tokens", "Most tokens", 1, 1, 1e6],
  ["top_p", "Top p", 0.01, 0, 1],
  ["top_k", "Top k", 1, 0, 1e6],
  ["min_p", "Min p", 0.01, 0, 1],
  ["typical_p", "Typical p", 0.01, 0, 1],
  ["repeat_penalty", "Repeat penalty", 0.01, 0, 5],
  ["presence_penalty", "Presence penalty", 0.05, -2, 2],
  ["frequency_penalty", "Frequency penalty", 0.05, -2, 2],
  ["seed", "Seed", 1, 0, 4294967295],
];
const FIXED = ["messages", "model", "stream", "stream_options", "n"]; // what the page itself sends

const byId = (id) => document.getElementById(id);

/** The fields that settings give to a request. */
export function fieldsOf(settings) {
  const fields = { ...parsed(settings.more).fields, ...settings.sampling };
  if (settings.effort) fields.reasoning_effort = settings.effort;
  return fields;
}

/** What a text of JSON has: { fields }, or { error }. */
function parsed(text) {
  if (!text.trim()) return { fields: {} };
  let fields;
  try {
    fields = JSON.parse(text);
  } catch (error) {
    return { error: `This is not JSON: ${error.message}` };
  }
  if (fields === null || typeof fields !== "object" || Array.isArray(fields)) {
    return { error: "This must be an object: {\"field\": value}" };
  }
  const own = FIXED.filter((name) => name in fields);
  if (own.length) return { error: `The page itself sets ${own.join(", ")}` };
  return { fields };
}

export function setUp(store, deleteAll) {
  const dialog = byId("settings");
  const inputs = new Map();
  for (const [name, label, step, min, max] of FIELDS) {
    const input = element("input", { type: "number", step: "any", min, max, placeholder: "default" });
    input.dataset.step = step;
    input.id = `set-${name}`;
    input.inputMode = step === 1 ? "numeric" : "decimal";
    input.addEventListener("input", () => {
      const value = input.valueAsNumber;
      const isGood = input.value !== "" && input.checkValidity() &&
        (step !== 1 || Number.isInteger(value));
      input.setAttribute("aria-invalid", String(!isGood && input.value !== ""));
      if (isGood) store.settings.sampling[name] = value;
      else delete store.settings.sampling[name];
      store.keepSettings();
    });
    inputs.set(name, input);
    byId("set-sampling").append(element("label", { className: "field" }, label, input));
  }
  const texts = { system: "set-system", effort: "set-effort", more: "set-more", theme: "set-theme" };
  for (const [name, id] of Object.entries(texts)) {
    byId(id).addEventListener("input", () => {
      const { value } = byId(id);
      if (name === "more") byId("more-error").textContent = parsed(value).error ?? "";
      store.settings[name] = name === "more" && parsed(value).error ? "" : value;
      store.keepSettings();
      applyTheme(store);
    });
  }
  const fill = () => {
    for (const [name, input] of inputs) {
      input.value = store.settings.sampling[name] ?? "";
      input.removeAttribute("aria-invalid");
    }
    for (const [name, id] of Object.entries(texts)) byId(id).value = store.settings[name];
    byId("more-error").textContent = "";
    applyTheme(store);
  };
  byId("settings-open").addEventListener("click", () => {
    fill();
    dialog.showModal();
  });
  byId("set-reset").addEventListener("click", () => {
    store.resetSettings();
    fill();
  });
  byId("delete-all").addEventListener("click", deleteAll);
  applyTheme(store);
}

function applyTheme(store) {
  const root = document.documentElement;
  if (store.settings.theme) root.dataset.theme = store.settings.theme;
  else delete root.dataset.theme;
  dispatchEvent(new Event("theme"));
}
