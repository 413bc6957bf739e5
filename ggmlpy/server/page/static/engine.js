// The live view: follows the events of /engine while it is shown, and draws them.

import { events } from "./api.js";
import { CacheView } from "./cells.js";
import { colours, fitted } from "./colours.js";
import { element } from "./markdown.js";

const AGAIN_MS = 2000; // after a connection was lost
const SHOWN_S = 60; // of the history
const MOST_SQUARES = 600; // of a batch

const byId = (id) => document.getElementById(id);
const say = (id, text) => {
  if (byId(id).textContent !== text) byId(id).textContent = text;
};
const many = (n, one, more = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : more}`;
const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");

const LAYOUTS = {
  unified: "The layout here is unified: all sequences take the next free cells of one row, so that" +
    " cells of requests that run together lie mixed.",
  split: "The layout here is split: each sequence has a part of its own, which others cannot use.",
  paged: "The layout here is paged: a sequence takes a page of cells at a time (the small groups)," +
    " from a pool that all share. A page that several share is copied when one writes to it.",
};

export class EngineView {
  constructor(model) {
    this.model = model; // a function: the name that is chosen
    this.controller = null;
    this.caches = new CacheView(byId("caches"), (text) => say("cell-told", text));
    this.history = []; // [time, tokens/s]
    this.last = null;
    const redraw = () => this.last && this.draw(this.last);
    addEventListener("theme", redraw);
    addEventListener("resize", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  setVisible(isShown) {
    const isWanted = isShown && !document.hidden;
    if (isWanted === Boolean(this.controller)) return;
    if (isWanted) this.follow();
    else this.end();
  }

  restart() {
    this.last = null;
    this.history = [];
    if (!this.controller) return;
    this.end();
    this.follow();
  }

  end() {
    this.controller?.abort();
    this.controller = null;
  }

  async follow() {
    const controller = new AbortController();
    this.controller = controller;
    const { signal } = controller;
    while (!signal.aborted) {
      try {
        const model = this.model();
        const path = model ? `engine?model=${encodeURIComponent(model)}` : "engine";
        for await (const data of events(path, { signal })) this.take(data);
      } catch (error) {
        if (signal.aborted) return;
        say("engine-state", error.status === 401 ? "no key" : "not reached");
        if (error.status === 401) return;
      }
      await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
    }
  }

  take(data) {
    if (data.status !== "loaded" || !data.slots) {
      say("engine-state", data.status ?? "not reached");
      this.last = null;
      return;
    }
    const before = this.last;
    if (before && data.time_s > before.time_s) {
      const made = data.totals.n_generated;
      const known = before.totals.n_generated;
      const n = made < known ? made : made - known; // the counts begin anew after an idle time
      this.history.push([data.time_s, n / (data.time_s - before.time_s)]);
    }
    this.history = this.history.filter(([time]) => time > data.time_s - SHOWN_S);
    this.last = data;
    this.draw(data);
  }

  draw(data) {
    const { slots, queue, totals } = data;
    const running = slots.filter((slot) => slot.state !== "idle");
    const nWaiting = queue.n_waiting + queue.n_waiting_in_engine;
    // Over a second: single snapshots catch a step more or less.
    const recent = this.history.filter(([time]) => time > data.time_s - 1.1);
    const rate = recent.reduce((sum, [, each]) => sum + each, 0) / Math.max(1, recent.length);
    say("engine-state", running.length ? "running" : "idle");
    byId("engine-state").classList.toggle("active", running.length > 0);
    say("rate", rate.toFixed(0));
    say("running", `${running.length}/${slots.length}`);
    say("waiting", `${nWaiting}`);
    const fullest = data.caches.reduce((a, b) => (b.n_used / b.n_cells > a.n_used / a.n_cells ? b : a));
    say("used", percent(fullest.n_used, fullest.n_cells));
    say("reused", percent(totals.n_reused, totals.n_prompt + totals.n_reused));
    this.drawHistory(data.time_s);
    drawStep(data.step);
    this.caches.draw(data);
    say("cells-text", this.caches.summary(data));
    say("layout-text", LAYOUTS[data.sizes.layout] ?? "");
    drawSlots(data);
    say("queue-text", `${many(running.length, "request")} of at most ${slots.length} ` +
      `${running.length === 1 ? "runs" : "run"}, ${nWaiting || "none"} ` +
      `${nWaiting > 1 ? "wait" : "waits"}.`);
  }

  drawHistory(now) {
    const [context, width, height] = fitted(byId("history"), 48);
    const top = Math.max(1, ...this.history.map(([, rate]) => rate)) * 1.1;
    const { accent, muted } = colours();
    const x = (time) => width * (1 - (now - time) / SHOWN_S);
    const y = (rate) => height - 1 - (height - 4) * (rate / top);
    context.strokeStyle = muted;
    context.globalAlpha = 0.4;
    context.beginPath();
    context.moveTo(0, height - 0.5);
    context.lineTo(width, height - 0.5);
    context.stroke();
    context.globalAlpha = 1;
    if (!this.history.length) return;
    const line = new Path2D();
    this.history.forEach(([time, rate], i) => line[i ? "lineTo" : "moveTo"](x(time), y(rate)));
    context.strokeStyle = accent;
    context.lineWidth = 1.5;
    context.stroke(line);
    line.lineTo(x(now), height);
    line.lineTo(x(this.history[0][0]), height);
    context.globalAlpha = 0.15;
    context.fillStyle = accent;
    context.fill(line);
    context.globalAlpha = 1;
    byId("history").setAttribute("aria-label", "Tokens per second in the last minute: " +
      `at most ${Math.max(...this.history.map(([, rate]) => rate)).toFixed(0)}`);
  }
}

function drawStep(step) {
  const n = step.n_prompt + step.n_decoded + step.n_drafted;
  if (!n) return;
  const parts = [];
  if (step.n_decoded) parts.push(`${step.n_decoded} decoded`);
  if (step.n_prompt) parts.push(`${step.n_prompt} of prompts`);
  if (step.n_drafted) parts.push(`${step.n_drafted} of drafts`);
  const text = `Step ${step.number.toLocaleString("en")}: ${parts.join(" + ")}, ` +
    `${step.spent_ms.toFixed(1)}\u00a0ms`;
  say("step-text", text);
  byId("step-batch").setAttribute("aria-label",
    `${text}, ${many(step.parts.length, "sequence")}`);
  const { sequence } = colours();
  const squares = [];
  const decoding = step.parts.filter((part) => part.n_decoded || part.n_drafted);
  const reading = step.parts.filter((part) => part.n_prompt);
  const square = (part, kind, count) => {
    for (let i = 0; i < count && squares.length < MOST_SQUARES; i += 1) {
      const made = element("i", { className: kind, title: `slot ${part.seq}` });
      made.style.setProperty("--colour", sequence(part.seq));
      squares.push(made);
    }
  };
  for (const part of decoding) {
    square(part, "decode", part.n_decoded);
    square(part, "draft", part.n_drafted);
  }
  for (const part of reading) square(part, "prompt", part.n_prompt);
  if (n > squares.length) squares.push(element("span", {}, `+ ${n - squares.length}`));
  byId("step-batch").replaceChildren(...squares);
}

function drawSlots({ slots }) {
  const body = byId("slots").tBodies[0];
  const { sequence } = colours();
  while (body.rows.length > slots.length) body.deleteRow(-1);
  while (body.rows.length < slots.length) {
    const row = body.insertRow();
    row.append(element("th", { scope: "row" }));
    for (let i = 0; i < 5; i += 1) row.insertCell();
  }
  slots.forEach((slot, i) => {
    const row = body.rows[i];
    const isIdle = slot.state === "idle";
    row.className = slot.state;
    row.style.setProperty("--colour", sequence(slot.id));
    row.style.setProperty("--done", isIdle ? 0 : slot.n_prompt_done / slot.n_prompt);
    const cells = [slot.id, slot.state, slot.n_held, "", "", ""];
    if (!isIdle) {
      const isRead = slot.n_prompt_done === slot.n_prompt;
      cells[3] = isRead ? slot.n_prompt : `${slot.n_prompt_done} / ${slot.n_prompt}`;
      cells[4] = slot.n_reused;
      cells[5] = slot.n_decoded;
    }
    cells.forEach((text, j) => {
      if (row.cells[j].textContent !== String(text)) row.cells[j].textContent = text;
    });
  });
}
