// How a message looks. A view is told of changes and touches only what changed.

import { MarkdownView, element } from "./markdown.js";

/** Makes a button that calls `act`. */
export function button(label, act, title = "") {
  const made = element("button", label);
  made.type = "button";
  made.title = title;
  made.addEventListener("click", act);
  return made;
}

/** Shows one message; `update` after every change of it. */
export class MessageView {
  constructor(message, handlers) {
    this.message = message;
    this.handlers = handlers;
    this.root = element("article");
    this.root.className = message.role;
    this.calls = [];
    this.content = element("div");
    this.content.className = "content";
    this.actions = element("div");
    this.actions.className = "actions";
    this.root.append(this.content, this.actions);
    if (message.role === "assistant") this.markdown = new MarkdownView(this.content);
    this.update();
  }

  update({ last = false, busy = false } = {}) {
    const { message } = this;
    if (message.role === "assistant") {
      this.#reasoning(busy && last);
      this.markdown.update(message.content);
      (message.tool_calls ?? []).forEach((call, i) => this.#call(call, i));
      this.#error();
    } else {
      this.content.textContent = message.content;
    }
    this.#actions(last && !busy);
  }

  #reasoning(growing) {
    const { reasoning_content: text, content, tool_calls: calls } = this.message;
    if (!text) return;
    if (!this.thought) {
      this.thought = element("details", element("summary"), element("div"));
      this.thought.className = "reasoning";
      this.thoughtView = new MarkdownView(this.thought.lastChild);
      this.root.prepend(this.thought);
    }
    const thinking = growing && !content && !calls?.length;
    const seconds = this.message.thoughtFor;
    this.thought.firstChild.textContent = thinking
      ? "Thinking …"
      : seconds
        ? `Thought for ${seconds.toFixed(1)} s`
        : "Thoughts";
    this.thoughtView.update(text);
  }

  #call(call, i) {
    if (!this.calls[i]) {
      const arguments_ = element("pre");
      const box = element("details", element("summary"), arguments_);
      box.className = "call";
      box.open = true;
      this.root.insertBefore(box, this.actions);
      this.calls[i] = { box, arguments_ };
    }
    const { box, arguments_ } = this.calls[i];
    box.firstChild.textContent = `Calls ${call.function.name}`;
    arguments_.textContent = pretty(call.function.arguments);
  }

  /** Offers a field for the result of every call; `send` gets the results by call id. */
  askResults(send) {
    if (this.results) return;
    const fields = this.message.tool_calls.map((call, i) => {
      const field = element("textarea");
      field.rows = 2;
      field.placeholder = `Result of ${call.function.name}`;
      field.setAttribute("aria-label", field.placeholder);
      this.calls[i].box.append(field);
      return field;
    });
    const act = button("Send results", () => {
      send(this.message.tool_calls.map((call, i) => ({ role: "tool", tool_call_id: call.id, content: fields[i].value })));
    });
    this.results = { fields, act };
    this.root.insertBefore(act, this.actions);
  }

  endResults() {
    this.results?.fields.forEach((field) => field.remove());
    this.results?.act.remove();
    this.results = null;
  }

  #error() {
    const text = this.message.error ?? "";
    if (text && !this.problem) {
      this.problem = element("div");
      this.problem.className = "error";
      this.problem.setAttribute("role", "alert");
      this.root.insertBefore(this.problem, this.actions);
    }
    if (this.problem) this.problem.textContent = text;
  }

  #actions(idle) {
    const { message, handlers } = this;
    const parts = [];
    if (message.figures) parts.push(figures(message.figures));
    if (message.role === "assistant" && message.content) parts.push(button("Copy", () => handlers.copy(message.content)));
    if (message.role === "assistant" && idle) {
      parts.push(button("Regenerate", handlers.regenerate, "Answer once more"));
    }
    if (message.role === "user" && handlers.isLastUser(message) && !handlers.isBusy()) {
      parts.push(button("Edit", handlers.edit, "Change this message and answer again (Up in the empty field)"));
    }
    const shown = parts.map((part) => part.textContent ?? part).join("|");
    if (shown === this.shown) return;
    this.shown = shown;
    this.actions.replaceChildren(...parts);
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not whole yet
  }
}

function figures(f) {
  const parts = [];
  if (f.speed) parts.push(`${f.speed.toFixed(1)} tokens/s`);
  if (f.tokens !== undefined) parts.push(`${f.tokens} tokens`);
  if (f.first !== undefined) parts.push(`first after ${Math.round(f.first)} ms`);
  if (f.prompt !== undefined) parts.push(`prompt ${f.prompt}${f.cached ? `, ${f.cached} kept` : ""}`);
  if (f.end && f.end !== "stop" && f.end !== "tool_calls") parts.push(f.end === "length" ? "cut off: no room left" : f.end);
  const made = element("span", parts.join(" · "));
  made.className = "figures";
  return made;
}
