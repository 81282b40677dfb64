// Markdown for text that a model writes, piece by piece.
//
// Nothing here makes HTML of text: elements are created one by one and text is only ever set as text, so whatever a model
// writes stays text. Links lead to http, https and mailto only, and pictures are shown as links. Every scan is linear.

const MAX_DEPTH = 12;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)(?=\S)|[ \t]*$)/;
const QUOTE = /^ {0,3}> ?/;

/**
 * Shows a growing text in an element; blocks that are complete are not touched again. The last two are not complete: a
 * line that has only begun (`5` of `5. item`) may yet belong to the block before it.
 */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    element.classList.add("md");
    this.text = "";
    this.stable = 0; // where the last two blocks begin
    this.nodes = 0; // how many elements stand for what is before
  }

  update(text) {
    if (text === this.text) return;
    if (!text.startsWith(this.text.slice(0, this.stable))) {
      this.stable = 0;
      this.nodes = 0;
    }
    while (this.element.childNodes.length > this.nodes) this.element.lastChild.remove();
    const blocks = split(text.slice(this.stable));
    for (const block of blocks) this.element.append(show(block, 0));
    const complete = Math.max(0, blocks.length - 2);
    this.nodes += complete;
    if (complete) this.stable += blocks[complete].start;
    this.text = text;
  }
}

/** Cuts a text into blocks: [{type, start, lines, ...}], `start` in characters. */
export function split(text) {
  const lines = text.split("\n");
  const blocks = [];
  let at = 0; // characters before line i
  let i = 0;
  const take = (type, n, more = {}) => {
    blocks.push({ type, start: at, lines: lines.slice(i, i + n), ...more });
    for (let end = i + n; i < end; i++) at += lines[i].length + 1;
  };
  while (i < lines.length) {
    const line = lines[i];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (!line.trim()) {
      at += line.length + 1;
      i++;
    } else if (fence) {
      const closing = (other) => {
        const bare = other.trim();
        return bare.length >= fence[1].length && bare === fence[1][0].repeat(bare.length);
      };
      let end = i + 1;
      while (end < lines.length && !closing(lines[end])) end++;
      take("code", Math.min(end + 1, lines.length) - i, {
        language: fence[2].trim().split(/\s/)[0].slice(0, 40),
        closed: end < lines.length,
      });
    } else if (heading) {
      take("heading", 1, { level: heading[1].length, text: (heading[2] ?? "").replace(/[ \t]+#+[ \t]*$/, "") });
    } else if (RULE.test(line)) {
      take("rule", 1);
    } else if (QUOTE.test(line)) {
      let end = i + 1;
      while (end < lines.length && lines[end].trim() && (QUOTE.test(lines[end]) || !begins(lines, end))) end++;
      take("quote", end - i);
    } else if (ITEM.test(line)) {
      take("list", listLength(lines, i));
    } else if (isTable(lines, i)) {
      let end = i + 2;
      while (end < lines.length && lines[end].includes("|")) end++;
      take("table", end - i);
    } else {
      let end = i + 1;
      while (end < lines.length && lines[end].trim() && !begins(lines, end)) end++;
      take("paragraph", end - i);
    }
  }
  return blocks;
}

/** Whether a line begins a block that ends the paragraph before it. */
function begins(lines, i) {
  const line = lines[i];
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line) || isTable(lines, i);
}

function listLength(lines, first) {
  const ordered = isOrdered(lines[first]);
  let end = first + 1;
  let fence = null;
  for (let i = end; i < lines.length; i++) {
    const line = lines[i];
    const blank = !line.trim();
    const inner = /^(?: {2,}|\t)/.test(line);
    if (fence && inner) {
      if (line.trim().startsWith(fence)) fence = null;
    } else if (blank) {
      continue;
    } else if (inner) {
      fence = /^\s*(`{3,}|~{3,})/.exec(line)?.[1] ?? null;
    } else if (ITEM.test(line) && !RULE.test(line)) {
      if (isOrdered(line) !== ordered) break;
    } else if (!lines[i - 1].trim() || begins(lines, i)) {
      break; // behind a blank line, or another block: not a lazy continuation
    }
    end = i + 1;
  }
  return end - first;
}

const isOrdered = (line) => /^ *\d/.test(line);

function isTable(lines, i) {
  if (!lines[i].includes("|") || i + 1 >= lines.length || !lines[i + 1].includes("-")) return false;
  const marks = cells(lines[i + 1]);
  return marks.every((cell) => /^:?-+:?$/.test(cell)) && marks.length === cells(lines[i]).length;
}

function cells(line) {
  const found = [];
  let cell = "";
  for (let i = 0; i < line.length; i++) {
    if (line[i] === "\\" && line[i + 1] === "|") cell += line[++i];
    else if (line[i] === "|") {
      found.push(cell.trim());
      cell = "";
    } else cell += line[i];
  }
  found.push(cell.trim());
  if (found.length > 1 && !found[0]) found.shift();
  if (found.length > 1 && !found[found.length - 1]) found.pop();
  return found;
}

// Blocks

function show(block, depth) {
  switch (block.type) {
    case "code":
      return showCode(block);
    case "heading":
      return element(`h${block.level}`, inline(block.text.trim()));
    case "rule":
      return element("hr");
    case "quote":
      return nested("blockquote", block.lines.map((line) => line.replace(QUOTE, "")).join("\n"), depth);
    case "list":
      return showList(block.lines, depth);
    case "table":
      return showTable(block.lines);
    default:
      return element("p", inline(block.lines.map((line) => line.trim()).join("\n")));
  }
}

function nested(name, text, depth) {
  if (depth >= MAX_DEPTH) return element(name, text);
  return element(name, split(text).map((block) => show(block, depth + 1)));
}

function showCode(block) {
  const lines = block.lines.slice(1, block.closed ? -1 : undefined);
  const indent = /^ */.exec(block.lines[0])[0].length;
  const text = lines.map((line) => line.replace(new RegExp(`^ {0,${indent}}`), "")).join("\n");
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.dataset.copy = "code";
  const head = element("div", element("span", block.language || "text"), copy);
  const box = element("div", head, element("pre", element("code", text)));
  box.className = "code";
  return box;
}

function showList(lines, depth) {
  const ordered = isOrdered(lines[0]);
  const list = element(ordered ? "ol" : "ul");
  if (ordered) list.start = parseInt(lines[0], 10);
  const items = [];
  let offset = 0;
  let loose = false;
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && !RULE.test(line) && (found[1].length < 2 || !items.length)) {
      if (items.length && !items[items.length - 1].at(-1)?.trim()) loose = true;
      offset = found[0].length;
      items.push([line.slice(offset)]);
    } else {
      const indent = /^[ \t]*/.exec(line)[0].length;
      items[items.length - 1].push(line.slice(Math.min(indent, offset)));
    }
  }
  for (const item of items) {
    const entry = nested("li", item.join("\n"), depth);
    const first = entry.firstChild;
    if (!loose && first?.nodeName === "P") {
      while (first.firstChild) entry.insertBefore(first.firstChild, first);
      first.remove();
    }
    list.append(entry);
  }
  return list;
}

function showTable(lines) {
  const sides = cells(lines[1]).map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : ""));
  const row = (line, name) =>
    element(
      "tr",
      cells(line)
        .slice(0, sides.length)
        .map((text, i) => {
          const cell = element(name, inline(text));
          if (sides[i]) cell.className = sides[i];
          return cell;
        }),
    );
  return element(
    "table",
    element("thead", row(lines[0], "th")),
    element("tbody", lines.slice(2).map((line) => row(line, "td"))),
  );
}

// Text inside a block

const LINK = /!?\[([^[\]\n]{1,1000})\]\(\s*<?((?:[^()\s<>]|\([^()\s<>]{0,500}\)){1,2000})>?(?:\s+"[^"\n]{0,300}")?\s*\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`*]{1,2000}/y;
const SPECIAL = /[\\`*_~[!h<\n]/g;
const NAMES = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };

/** Returns the nodes of a text with emphasis, code and links. */
export function inline(text, links = true) {
  const out = [];
  const openers = { "**": [], __: [], "*": [], _: [], "~~": [] };
  const missing = new Set(); // lengths of runs of backticks that have no partner
  let plain = "";
  const flush = () => {
    if (plain) out.push(document.createTextNode(plain));
    plain = "";
  };
  let i = 0;
  while (i < text.length) {
    SPECIAL.lastIndex = i;
    const next = SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(i, next);
    i = next;
    if (i >= text.length) break;
    const char = text[i];
    if (char === "\\" && /[!-/:-@[-`{-~]/.test(text[i + 1] ?? "")) {
      plain += text[i + 1];
      i += 2;
    } else if (char === "\n") {
      flush();
      out.push(element("br"));
      i++;
    } else if (char === "`") {
      const run = /`+/y;
      run.lastIndex = i;
      const marks = run.exec(text)[0];
      const end = missing.has(marks.length) ? -1 : closingRun(text, i + marks.length, marks);
      if (end < 0) {
        missing.add(marks.length);
        plain += marks;
        i += marks.length;
      } else {
        flush();
        const code = text.slice(i + marks.length, end).replace(/\n/g, " ");
        out.push(element("code", /^ .*[^ ].* $/.test(code) ? code.slice(1, -1) : code));
        i = end + marks.length;
      }
    } else if ((char === "[" || (char === "!" && text[i + 1] === "[")) && links) {
      const found = at(LINK, text, i);
      const link = found && anchor(found[2], inline(found[1], false));
      if (link) {
        flush();
        out.push(link);
        i += found[0].length;
      } else plain += text[i++];
    } else if (char === "h" && links && !/\w/.test(text[i - 1] ?? "")) {
      const found = at(ADDRESS, text, i)?.[0].replace(/[.,:;!?)\]}]+$/, "");
      const link = found && anchor(found, [found]);
      if (link) {
        flush();
        out.push(link);
        i += found.length;
      } else plain += text[i++];
    } else if (char === "*" || char === "_" || (char === "~" && text[i + 1] === "~")) {
      const double = text[i + 1] === char;
      // Of three marks the one that was opened last closes first.
      const single = char !== "~" && text[i + 2] === char && (openers[char].at(-1) ?? -1) > (openers[char + char].at(-1) ?? -1);
      const mark = double && !single ? char + char : char;
      flush();
      emphasis(text, i, mark, out, openers);
      i += mark.length;
    } else {
      plain += text[i++];
    }
  }
  flush();
  return out;
}

/** Opens or closes an emphasis at a mark; one that is never closed stays text. */
function emphasis(text, i, mark, out, openers) {
  const before = text[i - 1] ?? " ";
  const after = text[i + mark.length] ?? " ";
  const within = mark[0] === "_" && /\w/.test(before) && /\w/.test(after);
  const stack = openers[mark];
  if (!/\s/.test(before) && stack.length && !within) {
    const start = stack.pop();
    const inner = out.splice(start).slice(1);
    for (const other of Object.values(openers)) while (other.at(-1) >= start) other.pop();
    if (inner.length) {
      out.push(element(NAMES[mark], inner));
      return;
    }
    out.push(document.createTextNode(mark));
  }
  if (!/\s/.test(after) && !within) stack.push(out.length);
  out.push(document.createTextNode(mark));
}

function closingRun(text, from, marks) {
  for (let i = text.indexOf(marks, from); i >= 0; ) {
    let end = i;
    while (text[end] === "`") end++;
    if (end - i === marks.length) return i;
    i = text.indexOf(marks, end);
  }
  return -1;
}

function at(pattern, text, i) {
  pattern.lastIndex = i;
  return pattern.exec(text);
}

function anchor(address, children) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  const link = element("a", children);
  link.href = url.href;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  return link;
}

/** Makes an element of nodes, strings, which become text, and lists of these. */
export function element(name, ...children) {
  const made = document.createElement(name);
  for (const child of children.flat()) made.append(child);
  return made;
}
