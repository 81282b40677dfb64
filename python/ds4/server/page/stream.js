// Asking the server: requests with a key, and the events of a streamed answer.

/** What the server said when it refused, or what went wrong on the way. */
export class Refusal extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** Asks for a path; throws `Refusal` unless the answer is good. */
export async function ask(path, key, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("the server cannot be reached");
  }
  if (!response.ok) throw new Refusal(await reasonOf(response), response.status);
  return response;
}

async function reasonOf(response) {
  const text = await response.text().catch(() => "");
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `the server answered ${response.status} ${response.statusText}`.trim();
  }
}

/** Yields the objects of a streamed chat completion. */
export async function* chat(body, key, signal) {
  const response = await ask("v1/chat/completions", key, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refusal(chunk.error.message ?? "the server failed");
    yield chunk;
  }
  throw new Refusal("the connection broke before the end of the answer");
}

/** Yields the data of server-sent events; comments, which keep the connection alive, are passed over. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
