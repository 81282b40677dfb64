// The chat page: one conversation with the model of this server.

import { MessageView } from "./view.js";
import { ask, chat } from "./stream.js";
import * as store from "./store.js";

const by = (id) => document.getElementById(id);
const page = {
  conversation: by("conversation"),
  status: by("status"),
  composer: by("composer"),
  text: by("text"),
  send: by("send"),
  stop: by("stop"),
};

let messages = store.loadMessages();
let settings = store.loadSettings();
let key = store.loadKey();
let model = "";
let running = null; // the AbortController of the answer that is being written
let anew = false; // whether the conversation ends with it
let views = [];

const handlers = {
  copy: (text) => navigator.clipboard?.writeText(text).then(() => say("copied"), () => say("the browser did not let me copy")),
  regenerate: () => answer(),
  edit: () => editLast(),
  isLastUser: (message) => message === messages.findLast((m) => m.role === "user"),
  isBusy: () => running !== null,
};

const say = (text) => (page.status.textContent = text);

// What is shown

function showAll() {
  views = messages.map((message) => new MessageView(message, handlers));
  page.conversation.replaceChildren(...views.map((view) => view.root));
  refresh();
  toEnd(true);
}

function refresh() {
  const busy = running !== null;
  views.forEach((view, i) => view.update({ last: i === views.length - 1, busy }));
  const view = views.at(-1);
  if (!busy && view?.message.tool_calls?.length && !view.message.error) view.askResults(sendResults);
  page.stop.hidden = !busy;
  page.send.hidden = busy;
}

function add(message) {
  messages.push(message);
  const view = new MessageView(message, handlers);
  views.at(-1)?.endResults();
  views.push(view);
  page.conversation.append(view.root);
  return view;
}

const isAtEnd = () => {
  const box = page.conversation;
  return box.scrollHeight - box.scrollTop - box.clientHeight < 60;
};

function toEnd(always = false, wasAtEnd = isAtEnd()) {
  if (always || wasAtEnd) page.conversation.scrollTop = page.conversation.scrollHeight;
}

function save() {
  if (!store.saveMessages(messages)) say("the browser has no room to keep this conversation");
}

// Asking

function requestBody() {
  const failed = (m) => m.role === "assistant" && !m.content && !m.tool_calls?.length && (m.error || !m.reasoning_content);
  const history = messages.filter((m) => !failed(m)).map(({ role, content, reasoning_content, tool_calls, tool_call_id }) => {
    const message = { role, content };
    if (reasoning_content) message.reasoning_content = reasoning_content;
    if (tool_calls?.length) message.tool_calls = tool_calls;
    if (tool_call_id) message.tool_call_id = tool_call_id;
    return message;
  });
  const body = { messages: settings.system ? [{ role: "system", content: settings.system }, ...history] : history };
  if (model) body.model = model;
  if (settings.thinking) body.thinking = settings.thinking !== "off";
  if (settings.thinking === "max") body.reasoning_effort = "max";
  if (settings.temperature !== "") body.temperature = Number(settings.temperature);
  if (settings.maxTokens !== "") body.max_tokens = Number(settings.maxTokens);
  if (settings.tools.trim()) body.tools = JSON.parse(settings.tools);
  return body;
}

/** Lets the model answer; an answer that stands at the end is written anew. */
async function answer() {
  if (running) return;
  while (messages.at(-1)?.role === "assistant") {
    messages.pop();
    views.pop().root.remove();
  }
  if (!messages.length) return;
  const body = requestBody();
  const message = { role: "assistant", content: "" };
  const view = add(message);
  const mine = new AbortController();
  running = mine;
  refresh();
  toEnd(true);
  say("waiting …");
  const began = performance.now();
  let drawing = 0;
  const draw = () => {
    drawing = 0;
    const wasAtEnd = isAtEnd();
    view.update({ last: true, busy: running === mine });
    toEnd(false, wasAtEnd);
  };
  const seen = { tokens: 0, first: 0 };
  try {
    for await (const chunk of chat(body, key, mine.signal)) {
      take(message, chunk, seen, began);
      drawing ||= setTimeout(draw, 40);
    }
    say("");
  } catch (error) {
    if (error.name === "AbortError") {
      message.figures = { ...message.figures, end: "stopped" };
      say("stopped");
    } else {
      message.error = error.message;
      say("");
    }
    // A call that is not whole would only be refused.
    if (message.tool_calls) message.tool_calls = message.tool_calls.filter((call) => isJson(call.function.arguments));
    if (error.status === 401) askKey(error.message);
  } finally {
    clearTimeout(drawing);
    running = null;
    if (!message.content && !message.reasoning_content && !message.tool_calls?.length && !message.error) {
      message.error = message.figures?.end === "stopped" ? "" : "the answer is empty";
    }
    const wasAtEnd = isAtEnd();
    refresh();
    toEnd(false, wasAtEnd);
    save();
    page.text.focus();
    if (anew) startAnew();
  }
}

function take(message, chunk, seen, began) {
  const now = performance.now();
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  if (delta.reasoning_content) message.reasoning_content = (message.reasoning_content ?? "") + delta.reasoning_content;
  if (delta.content) {
    message.content += delta.content;
    if (message.reasoning_content) message.thoughtFor ??= (now - began) / 1000;
  }
  for (const piece of delta.tool_calls ?? []) {
    message.tool_calls ??= [];
    const call = (message.tool_calls[piece.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    call.id ||= piece.id ?? "";
    call.function.name ||= piece.function?.name ?? "";
    call.function.arguments += piece.function?.arguments ?? "";
  }
  if (delta.reasoning_content || delta.content || delta.tool_calls) {
    seen.first ||= now;
    seen.tokens++;
    const seconds = (now - seen.first) / 1000;
    say(seconds > 0.5 ? `about ${(seen.tokens / seconds).toFixed(1)} pieces/s` : "writing …");
  }
  if (choice?.finish_reason) message.figures = { ...message.figures, end: choice.finish_reason };
  if (chunk.usage) {
    message.figures = {
      ...message.figures,
      tokens: chunk.usage.completion_tokens,
      prompt: chunk.usage.prompt_tokens,
      cached: chunk.usage.prompt_tokens_details?.cached_tokens,
      speed: chunk.ds4?.decode_tps ?? undefined,
      first: chunk.ds4?.first_token_ms ?? undefined,
    };
  }
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

function send(text) {
  if (running || !text.trim()) return;
  add({ role: "user", content: text });
  page.text.value = "";
  grow();
  save();
  answer();
}

function sendResults(results) {
  if (running) return;
  results.forEach((result) => add(result));
  save();
  answer();
}

function editLast() {
  if (running) return;
  const last = messages.findLastIndex((m) => m.role === "user");
  if (last < 0) return;
  page.text.value = messages[last].content;
  messages.length = last;
  showAll();
  save();
  grow();
  page.text.focus();
}

function startAnew() {
  anew = running !== null;
  running?.abort();
  if (anew) return;
  messages = [];
  save();
  showAll();
  say("");
  page.text.focus();
}

// Settings, key, theme

const fields = { thinking: "thinking", temperature: "temperature", maxTokens: "max-tokens", system: "system", tools: "tools" };

function openSettings() {
  for (const [name, id] of Object.entries(fields)) by(id).value = settings[name];
  by("settings-error").textContent = "";
  by("settings").showModal();
}

by("settings").querySelector("form").addEventListener("submit", (event) => {
  const wanted = { ...settings };
  for (const [name, id] of Object.entries(fields)) wanted[name] = by(id).value;
  if (wanted.tools.trim()) {
    let tools = null;
    try {
      tools = JSON.parse(wanted.tools);
    } catch (error) {
      by("settings-error").textContent = `the tools are not JSON: ${error.message}`;
    }
    if (tools !== null && !Array.isArray(tools)) by("settings-error").textContent = "the tools must be a list";
    if (!Array.isArray(tools)) {
      event.preventDefault();
      return;
    }
  }
  settings = wanted;
  store.saveSettings(settings);
});

function askKey(reason) {
  by("key-reason").textContent = reason;
  by("key-text").value = "";
  by("key").showModal();
}

by("key").querySelector("form").addEventListener("submit", () => {
  key = by("key-text").value.trim();
  store.saveKey(key);
  greet();
  if (messages.at(-1)?.error) answer();
});

function showTheme() {
  document.documentElement.dataset.theme = settings.theme;
  by("theme").textContent = { light: "Light", dark: "Dark" }[settings.theme] ?? "Theme";
}

function nextTheme() {
  const order = ["", "light", "dark"];
  settings = { ...settings, theme: order[(order.indexOf(settings.theme) + 1) % order.length] };
  store.saveSettings(settings);
  showTheme();
}

async function greet() {
  try {
    const response = await ask("v1/models", key);
    model = (await response.json()).data[0].id;
    by("model").textContent = model;
    document.title = model;
  } catch (error) {
    if (error.status === 401) askKey(error.message);
    else say(error.message);
  }
}

// Keys and buttons

function grow() {
  page.text.style.height = "auto";
  page.text.style.height = `${page.text.scrollHeight + 2}px`;
}

page.composer.addEventListener("submit", (event) => {
  event.preventDefault();
  send(page.text.value);
});
page.text.addEventListener("input", grow);
page.text.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    send(page.text.value);
  } else if (event.key === "ArrowUp" && !page.text.value) {
    event.preventDefault();
    editLast();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !document.querySelector("dialog[open]")) running.abort();
  else if (event.ctrlKey && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    startAnew();
  } else if (event.ctrlKey && event.key === ",") {
    event.preventDefault();
    openSettings();
  }
});
document.addEventListener("click", (event) => {
  if (event.target.dataset?.copy === "code") {
    handlers.copy(event.target.closest(".code").querySelector("code").textContent);
  } else if (event.target.dataset?.close !== undefined) {
    event.target.closest("dialog").close();
  }
});
page.stop.addEventListener("click", () => running?.abort());
by("new").addEventListener("click", startAnew);
by("open-settings").addEventListener("click", openSettings);
by("theme").addEventListener("click", nextTheme);

showTheme();
showAll();
greet();
