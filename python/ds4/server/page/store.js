// What the page remembers: the conversation and the settings in this browser, the key for this tab only.

const CONVERSATION = "ds4.conversation";
const SETTINGS = "ds4.settings";
const KEY = "ds4.key";

export const DEFAULTS = { thinking: "", temperature: "", maxTokens: "", system: "", tools: "", theme: "" };

function read(storage, name, otherwise) {
  try {
    return JSON.parse(storage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise; // no storage, or something else wrote to it
  }
}

function write(storage, name, value) {
  try {
    storage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false; // full, or not allowed
  }
}

const isMessage = (m) => typeof m === "object" && m !== null && ["user", "assistant", "tool"].includes(m.role);

/** Returns the messages of the last conversation. */
export function loadMessages() {
  const found = read(localStorage, CONVERSATION, []);
  return Array.isArray(found) ? found.filter(isMessage).map((m) => ({ ...m, content: String(m.content ?? "") })) : [];
}

/** Keeps the messages; false if the browser has no room. */
export function saveMessages(messages) {
  return write(localStorage, CONVERSATION, messages);
}

export function loadSettings() {
  const found = read(localStorage, SETTINGS, {});
  const known = Object.keys(DEFAULTS).filter((name) => typeof found[name] === "string");
  return { ...DEFAULTS, ...Object.fromEntries(known.map((name) => [name, found[name]])) };
}

export function saveSettings(settings) {
  return write(localStorage, SETTINGS, settings);
}

export function loadKey() {
  const found = read(sessionStorage, KEY, "");
  return typeof found === "string" ? found : "";
}

export function saveKey(key) {
  return write(sessionStorage, KEY, key);
}
