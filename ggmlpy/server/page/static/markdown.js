// Markdown to nodes: headings, lists, tables, quotes, code, emphasis, links. Text of a model becomes
// text nodes and elements that are made here; no HTML in it is read.

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const DELIMITER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 12; // lists and quotes in each other; deeper ones are text

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** The nodes of a text. */
export function render(text) {
  const made = document.createDocumentFragment();
  blocks(text.replace(/\r\n?/g, "\n").split("\n"), made, 0);
  return made;
}

function blocks(lines, parent, depth) {
  let i = 0;
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) parent.append(inParagraph(paragraph));
    paragraph = [];
  };
  while (i < lines.length) {
    const line = lines[i];
    const fence = FENCE.exec(line);
    if (fence) {
      flush();
      const end = closing(lines, i + 1, fence[1]);
      parent.append(codeBlock(lines.slice(i + 1, end).join("\n"), fence[2].trim()));
      i = end + 1;
      continue;
    }
    const heading = HEADING.exec(line);
    if (heading) {
      flush();
      // The page's own headings are of the levels before.
      parent.append(element(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2])));
    } else if (RULE.test(line)) {
      flush();
      parent.append(element("hr"));
    } else if (line.includes("|") && DELIMITER.test(lines[i + 1] ?? "") &&
               lines[i + 1].includes("-") && cellsOf(line).length === cellsOf(lines[i + 1]).length) {
      flush();
      i = table(lines, i, parent);
      continue;
    } else if (QUOTE.test(line) && depth < DEEPEST) {
      flush();
      const inner = [];
      while (i < lines.length && QUOTE.test(lines[i])) inner.push(QUOTE.exec(lines[i++])[1]);
      const quote = element("blockquote");
      blocks(inner, quote, depth + 1);
      parent.append(quote);
      continue;
    } else if (ITEM.test(line) && depth < DEEPEST) {
      flush();
      i = list(lines, i, parent, depth);
      continue;
    } else if (!line.trim()) {
      flush();
    } else {
      paragraph.push(line);
    }
    i += 1;
  }
  flush();
}

/** The line that closes a fence, or the end where the text is not complete yet. */
function closing(lines, from, mark) {
  for (let i = from; i < lines.length; i += 1) {
    const found = lines[i].trim();
    if (found.length >= mark.length && found === mark[0].repeat(found.length)) return i;
  }
  return lines.length;
}

function inParagraph(lines) {
  const made = element("p");
  lines.forEach((line, i) => {
    if (i) made.append(element("br"));
    made.append(inline(line.trim()));
  });
  return made;
}

function list(lines, from, parent, depth) {
  const [, indent, bullet, number] = ITEM.exec(lines[from]);
  const made = element(bullet ? "ul" : "ol");
  if (number && Number(number) !== 1) made.start = Number(number);
  let i = from;
  while (i < lines.length) {
    const item = ITEM.exec(lines[i]);
    if (!item || item[1].length > indent.length + 1 || item[1].length < indent.length ||
        Boolean(item[2]) !== Boolean(bullet)) break;
    const inner = [item[4]];
    for (i += 1; i < lines.length; i += 1) {
      const isBlank = !lines[i].trim();
      const isInside = lines[i].search(/\S/) > indent.length;
      const goesOn = isBlank && (lines[i + 1] ?? "").search(/\S/) > indent.length;
      if (!isInside && !goesOn) break;
      inner.push(lines[i].slice(Math.min(indent.length + 2, Math.max(0, lines[i].search(/\S/)))));
    }
    const entry = element("li");
    blocks(inner, entry, depth + 1);
    // One paragraph needs no space around it.
    if (entry.firstChild?.nodeName === "P") entry.firstChild.replaceWith(...entry.firstChild.childNodes);
    made.append(entry);
    if (!lines[i]?.trim() && ITEM.test(lines[i + 1] ?? "")) i += 1;
  }
  parent.append(made);
  return i;
}

function cellsOf(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(lines, from, parent) {
  const aligns = cellsOf(lines[from + 1]).map((cell) =>
    cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "");
  const row = (line, tag) => {
    const made = element("tr");
    const cells = cellsOf(line);
    aligns.forEach((align, i) => {
      const cell = element(tag, {}, inline(cells[i] ?? ""));
      if (align) cell.className = align;
      made.append(cell);
    });
    return made;
  };
  const body = element("tbody");
  let i = from + 2;
  while (i < lines.length && lines[i].includes("|")) body.append(row(lines[i++], "td"));
  const head = element("thead", {}, row(lines[from], "th"));
  parent.append(element("div", { className: "scrolls" }, element("table", {}, head, body)));
  return i;
}

function codeBlock(text, language) {
  const copy = copyButton(() => text, "Copy code");
  const bar = element("div", { className: "code-bar" }, element("span", {}, language || "text"), copy);
  const code = element("pre", { tabIndex: 0 }, element("code", {}, text));
  return element("div", { className: "code" }, bar, code);
}

/** A button that copies a text, and says so. */
export function copyButton(text, label) {
  const button = element("button", { type: "button", className: "small" }, "Copy");
  button.setAttribute("aria-label", label);
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text())) ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages that come without HTTPS from another machine have no clipboard.
    const area = element("textarea", { value: text, className: "hidden" });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// Emphasis, from the longest mark to the shortest.
const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const SPECIAL = /[\\`*_~[<!]|https?:\/\//g;
const AUTOLINK = /^https?:\/\/[^\s<>"'`*|]+[^\s<>"'`*|.,;:!?)\]]/;
const LINK = /^!?\[([^[\]]{0,500})\]\(\s*<?([^\s()<>]{1,2000}(?:\([^\s()]*\))?)>?(?:\s+"[^"]*")?\s*\)/;
const isWord = (character) => character !== undefined && /[\p{L}\p{N}]/u.test(character);

/** The nodes of a line. */
function inline(text, depth = 0) {
  const made = document.createDocumentFragment();
  let from = 0; // of the plain text that was not added yet
  const unclosed = new Set(); // marks that were looked for in vain: not again
  SPECIAL.lastIndex = 0;
  let i = 0;
  const add = (node, end) => {
    if (i > from) made.append(text.slice(from, i));
    made.append(node);
    from = i = end;
  };
  while (i < text.length) {
    SPECIAL.lastIndex = i;
    const next = SPECIAL.exec(text);
    if (!next) break;
    i = next.index;
    const character = text[i];
    if (character === "\\" && /[!-/:-@[-`{-~]/.test(text[i + 1] ?? "")) {
      add(text[i + 1], i + 2);
      continue;
    }
    if (character === "`") {
      const mark = /^`+/.exec(text.slice(i, i + 20))[0];
      const end = unclosed.has(mark) ? -1 : text.indexOf(mark, i + mark.length);
      if (end > 0) {
        add(element("code", {}, text.slice(i + mark.length, end).trim()), end + mark.length);
      } else {
        unclosed.add(mark);
        i += mark.length;
      }
      continue;
    }
    if (character === "h") {
      const found = isWord(text[i - 1]) ? null : AUTOLINK.exec(text.slice(i, i + 2000));
      const linked = found && link(found[0], found[0]);
      if (linked) add(linked, i + found[0].length);
      else i += 4;
      continue;
    }
    if (character === "[" || (character === "!" && text[i + 1] === "[")) {
      const found = LINK.exec(text.slice(i, i + 3000));
      const linked = found && depth < 4 ? link(found[2], inline(found[1], depth + 1)) : null;
      if (linked) add(linked, i + found[0].length);
      else i += 1;
      continue;
    }
    const mark = MARKS.find(([each]) => text.startsWith(each, i));
    if (!mark) {
      i += 1;
      continue;
    }
    const end = depth < 8 && !unclosed.has(mark[0]) ? closingMark(text, i, mark[0]) : 0;
    if (end > 0) {
      const inner = inline(text.slice(i + mark[0].length, end), depth + 1);
      add(element(mark[1], {}, inner), end + mark[0].length);
    } else {
      if (end < 0) unclosed.add(mark[0]);
      i += mark[0].length;
    }
  }
  if (from < text.length) made.append(text.slice(from));
  return made;
}

/** Where emphasis ends: 0 if none begins here, -1 if nothing ends it. */
function closingMark(text, at, mark) {
  const start = at + mark.length;
  if (/\s/.test(text[start] ?? " ")) return 0;
  if (mark[0] === "_" && isWord(text[at - 1])) return 0;
  for (let end = text.indexOf(mark, start + 1); end > 0; end = text.indexOf(mark, end + 1)) {
    while (mark.length > 1 && text[end + mark.length] === mark[0]) end += 1; // what is inside ends first
    const isInWord = mark[0] === "_" && isWord(text[end + mark.length]);
    const isLonger = mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark);
    if (!/\s/.test(text[end - 1]) && !isInWord && !isLonger) return end;
    if (isLonger) end += 1;
  }
  return -1;
}

/** A link, where its address may be opened; nothing is ever loaded from it. */
function link(address, ...children) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  return element("a", { href: url.href, target: "_blank", rel: "noopener noreferrer" }, ...children);
}
