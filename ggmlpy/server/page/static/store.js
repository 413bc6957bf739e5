// What this browser keeps: chats, and settings.

const CHATS = "ggmlpy.chats";
const SETTINGS = "ggmlpy.settings";
const DEFAULTS = { system: "", sampling: {}, effort: "", more: "", theme: "" };

function load(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise; // not readable: begin anew
  }
}

/** Whether it was kept: a browser may have no room, or be told to keep nothing. */
function save(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

const isMessage = (each) =>
  each && typeof each.role === "string" && typeof each.content === "string";
const isChat = (each) => each && Array.isArray(each.messages) && each.messages.every(isMessage);

export class Store {
  constructor() {
    this.settings = { ...DEFAULTS, ...load(SETTINGS, {}) };
    const kept = load(CHATS, {});
    this.chats = (Array.isArray(kept.chats) ? kept.chats : []).filter(isChat);
    this.current = this.chats.find((chat) => chat.id === kept.current) ?? this.chats[0];
    if (!this.current) this.add();
  }

  add() {
    const empty = this.chats.find((chat) => !chat.messages.length);
    this.current = empty ?? { id: crypto.randomUUID?.() ?? `${Date.now()}`, messages: [] };
    if (!empty) this.chats.unshift(this.current);
  }

  remove(chat) {
    this.chats = this.chats.filter((each) => each !== chat);
    if (this.current === chat) this.current = this.chats[0];
    if (!this.current) this.add();
    return this.keep();
  }

  clear() {
    this.chats = [];
    this.add();
    return this.keep();
  }

  keep() {
    return save(CHATS, { chats: this.chats, current: this.current.id });
  }

  keepSettings() {
    return save(SETTINGS, this.settings);
  }

  resetSettings() {
    this.settings = { ...DEFAULTS, sampling: {} };
    return this.keepSettings();
  }
}

export function titleOf(chat) {
  const first = chat.messages.find((message) => message.role === "user");
  return first?.content.trim().split("\n")[0].slice(0, 60) || "New chat";
}
