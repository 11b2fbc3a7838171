// Requests to the server: JSON, downloads and streams of events, with the token of this session.
// Integers beyond 2^53 become BigInt, so that no digit is lost.

const TOKEN = "statekit-token";
const BASE = new URL(".", document.baseURI);

export const session = {
  get token() {
    return sessionStorage.getItem(TOKEN);
  },
  set token(value) {
    if (value) sessionStorage.setItem(TOKEN, value);
    else sessionStorage.removeItem(TOKEN);
  },
};

/** An answer that is none: `kind` is stable, the message is for people. */
export class Refused extends Error {
  constructor(status, kind, detail) {
    super(detail);
    this.status = status;
    this.kind = kind;
  }
}

const exact = (_, value, context) =>
  typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "")
    ? BigInt(context.source)
    : value;

export const parse = (text) => JSON.parse(text, exact);

/** Return a value as JSON text, BigInt included. */
export function jsonText(value, space = 0, depth = 0) {
  if (typeof value === "bigint") return String(value);
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value);
  const parts = isList
    ? value.map((each) => jsonText(each, space, depth + 1))
    : Object.entries(value).map(
        ([name, each]) => `${JSON.stringify(name)}: ${jsonText(each, space, depth + 1)}`,
      );
  const [open, close] = isList ? "[]" : "{}";
  const line = parts.join(", ");
  if (!space || line.length + depth * space < 44) return open + line + close;
  const pad = "\n" + " ".repeat(space * (depth + 1));
  return open + pad + parts.join("," + pad) + "\n" + " ".repeat(space * depth) + close;
}

/** Return the address of a path of names, with the parameters that are not undefined. */
export function address(path, parameters = {}) {
  const url = new URL(path.map(encodeURIComponent).join("/"), BASE);
  for (const [name, value] of Object.entries(parameters))
    if (value !== undefined && value !== null) url.searchParams.set(name, value);
  return url;
}

async function request(url, options = {}) {
  const headers = { ...options.headers };
  if (session.token) headers.Authorization = `Bearer ${session.token}`;
  let response;
  try {
    response = await fetch(url, { ...options, headers, credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "unreachable", "The server cannot be reached.");
  }
  if (response.ok) return response;
  if (response.status === 401) window.dispatchEvent(new Event("statekit-token-needed"));
  const text = await response.text();
  let problem = {};
  try {
    problem = JSON.parse(text);
  } catch {
    problem = { detail: text.slice(0, 300) || response.statusText };
  }
  throw new Refused(response.status, problem.kind ?? "http", problem.detail ?? "");
}

export async function get(path, parameters, signal) {
  return parse(await (await request(address(path, parameters), { signal })).text());
}

export async function post(path, parameters, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const options = { method: "POST", headers, body: jsonText(body), signal };
  return await request(address(path, parameters), options);
}

/** Save what an address, or a response, has as a file. */
export async function save(source, name) {
  const response = source instanceof Response ? source : await request(source);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Yield server-sent events as {id, event, data}. */
export async function* events(path, parameters, lastId, signal) {
  const headers = { Accept: "text/event-stream" };
  if (lastId) headers["Last-Event-ID"] = lastId;
  const response = await request(address(path, parameters), { headers, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const found = {};
      for (const line of block.split("\n")) {
        const colon = line.indexOf(": ");
        if (colon > 0) found[line.slice(0, colon)] = line.slice(colon + 2);
      }
      if (found.event) yield { ...found, data: parse(found.data) };
    }
  }
}

/** Run work as long as the page is visible: a hidden page keeps no connection. It gets a signal that
 * ends when the page is hidden, or with the signal of the caller. */
export async function whileVisible(signal, work) {
  while (!signal.aborted) {
    await visible(signal);
    const own = new AbortController();
    const end = () => (document.hidden || signal.aborted) && own.abort();
    document.addEventListener("visibilitychange", end);
    signal.addEventListener("abort", end);
    try {
      end();
      if (!own.signal.aborted) await work(own.signal);
    } finally {
      document.removeEventListener("visibilitychange", end);
      signal.removeEventListener("abort", end);
    }
  }
}

function visible(signal) {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
    look();
  });
}

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
