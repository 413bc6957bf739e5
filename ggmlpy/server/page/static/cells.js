// The KV cache as a picture: a square for each cell, in the colour of the sequence that holds it.

import { colours, fitted } from "./colours.js";
import { element } from "./markdown.js";

const TALLEST = 300; // CSS pixels of one cache
const LARGEST = 11; // of a square
const MOST_STRIPES = 3;
const GAP = 2; // between pages
const BETWEEN = 4; // streams

export class CacheView {
  constructor(box, tell) {
    this.box = box;
    this.tell = tell;
  }

  /** Words for what is drawn. */
  summary({ caches, sizes }) {
    return caches.map((cache) => {
      const window = cache.window ? `window of ${cache.window}: ` : "";
      const shared = nShared(cache);
      const each = cache.n_each > 1 ? ` A square is ${cache.n_each} cells.` : "";
      return `${window}${cache.n_used.toLocaleString("en")} of ${cache.n_cells.toLocaleString("en")}` +
        ` cells used, ${shared.toLocaleString("en")} shared, layout ${sizes.layout}.${each}`;
    }).join(" ");
  }

  draw(data) {
    const { caches, slots } = data;
    while (this.box.children.length > caches.length) this.box.lastChild.remove();
    while (this.box.children.length < caches.length) {
      const canvas = element("canvas");
      canvas.setAttribute("role", "img");
      canvas.addEventListener("pointermove", (event) => this.point(canvas, event));
      canvas.addEventListener("pointerleave", () => this.tell("Point at a cell to see who holds it."));
      this.box.append(canvas);
    }
    const isRunning = new Set(slots.filter((s) => s.state !== "idle").map((s) => s.id));
    caches.forEach((cache, i) => {
      const canvas = this.box.children[i];
      canvas.setAttribute("aria-label", this.summary({ ...data, caches: [cache] }));
      drawCache(canvas, cache, isRunning);
    });
  }

  point(canvas, event) {
    const { layout, cache } = canvas;
    if (!layout) return;
    const { stream, index } = layout.at(event.offsetX, event.offsetY);
    if (index === null) return;
    const seqs = holdersAt(cache, stream, index);
    const first = index * cache.n_each;
    const name = cache.n_each > 1 ? `Cells ${first} to ${first + cache.n_each - 1}` : `Cell ${first}`;
    const where = cache.streams.length > 1 ? ` of slot ${stream}` : "";
    const who = seqs.length ? `slot${seqs.length > 1 ? "s" : ""} ${seqs.join(", ")}` : "nobody";
    this.tell(`${name}${where}: held by ${who}.`);
  }
}

function nShared(cache) {
  let n = 0;
  for (const { holders, owners, lengths } of cache.streams) {
    owners.forEach((owner, i) => { if (holders[owner].length > 1) n += lengths[i] * cache.n_each; });
  }
  return n;
}

function holdersAt(cache, stream, index) {
  const { holders, owners, lengths } = cache.streams[stream];
  let end = 0;
  for (let i = 0; i < owners.length; i += 1) {
    end += lengths[i];
    if (index < end) return numbered(cache, stream, holders[owners[i]]);
  }
  return [];
}

/** Sequences of a stream, by the numbers that they have in all: a stream of its own has one. */
function numbered(cache, stream, seqs) {
  return cache.streams.length > 1 ? seqs.map(() => stream) : seqs;
}

/** Where squares are: as large as fit, whole pages in a line. */
class Layout {
  constructor(width, n, nStreams, pageSize) {
    this.n = n;
    this.page = pageSize;
    for (this.size = LARGEST; this.size > 1; this.size -= this.size > 4 ? 1 : 0.5) {
      this.fill(width);
      if (nStreams * (this.nRows * this.size + BETWEEN) <= TALLEST) break;
    }
    this.fill(width);
    this.streamHeight = this.nRows * this.size + BETWEEN;
    this.height = nStreams * this.streamHeight;
  }

  fill(width) {
    const { page, size } = this;
    if (page > 1 && width >= page * size + GAP) {
      this.gap = size > 2 ? GAP : 1;
      this.perRow = page * Math.max(1, Math.floor(width / (page * size + this.gap)));
    } else {
      this.gap = 0;
      this.perRow = Math.max(1, Math.floor(width / size));
    }
    this.nRows = Math.ceil(this.n / this.perRow);
  }

  x(i) {
    const column = i % this.perRow;
    return column * this.size + (this.gap ? Math.floor(column / this.page) * this.gap : 0);
  }

  y(stream, i) {
    return stream * this.streamHeight + Math.floor(i / this.perRow) * this.size;
  }

  at(x, y) {
    const stream = Math.floor(y / this.streamHeight);
    const row = Math.floor((y - stream * this.streamHeight) / this.size);
    const pageWidth = this.page * this.size + this.gap;
    const column = this.gap
      ? Math.floor(x / pageWidth) * this.page +
        Math.min(this.page - 1, Math.floor((x % pageWidth) / this.size))
      : Math.floor(x / this.size);
    const index = row * this.perRow + column;
    const isCell = column < this.perRow && index < this.n && row < this.nRows;
    return { stream, index: isCell ? index : null };
  }
}

function drawCache(canvas, cache, isRunning) {
  const nEach = Math.ceil(cache.n_cells / cache.streams.length / cache.n_each);
  const page = cache.n_each > 1 ? 1 : cache.page_size;
  const width = canvas.parentElement.clientWidth;
  const layout = new Layout(width, nEach, cache.streams.length, page);
  const [context] = fitted(canvas, layout.height);
  Object.assign(canvas, { layout, cache });
  const { sequence, empty, text } = colours();
  const { size } = layout;
  const side = size > 3 ? size - 1 : size;
  cache.streams.forEach(({ holders, owners, lengths }, stream) => {
    let i = 0;
    owners.forEach((owner, run) => {
      const seqs = numbered(cache, stream, holders[owner]);
      // Where some of them run, those are what is shown of a cell that many hold.
      const live = seqs.filter((seq) => isRunning.has(seq));
      const shown = (live.length > 1 ? live : seqs).slice(0, MOST_STRIPES);
      context.globalAlpha = seqs.length && !live.length ? 0.4 : 1;
      for (const end = i + lengths[run]; i < end; i += 1) {
        const [x, y] = [layout.x(i), layout.y(stream, i)];
        if (!shown.length) {
          context.fillStyle = empty;
          context.fillRect(x, y, side, side);
        }
        const cap = shown.length > 1 ? Math.max(1, side / 3) : 0; // of what is shared
        if (cap) {
          context.fillStyle = text;
          context.fillRect(x, y, side, cap);
        }
        shown.forEach((seq, j) => {
          context.fillStyle = sequence(seq);
          const stripe = side / shown.length;
          context.fillRect(x + j * stripe, y + cap, stripe, side - cap);
        });
      }
    });
  });
  context.globalAlpha = 1;
}
