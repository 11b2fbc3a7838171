// Parts that pages share: crumbs, tiles, tabs, values, keys and messages.

import { jsonText, parse } from "./api.js";
import { html, useState } from "./html.js";
import { link } from "./location.js";

export function Crumbs({ parts }) {
  return html`<nav aria-label="Breadcrumb" class="crumbs"><ol>
    ${parts.map(([name, href], place) =>
      place === parts.length - 1
        ? html`<li><h1 aria-current="page">${name}</h1></li>`
        : html`<li><a href=${href}>${name}</a></li>`,
    )}
  </ol></nav>`;
}

export function Tile({ name, value, warns }) {
  return html`<div class=${`tile${warns ? " warns" : ""}`}><dt>${name}</dt><dd>${value}</dd></div>`;
}

export function Problem({ error }) {
  if (!error) return null;
  return html`<p role="alert" class="problem"><strong>${error.kind ?? "error"}</strong> ${error.message}</p>`;
}

export function Loading({ what }) {
  return html`<p class="muted" role="status">Reading ${what} …</p>`;
}

/** Links that look like tabs: each is a view with its own address. */
export function Tabs({ label, tabs, chosen }) {
  return html`<nav class="tabs" aria-label=${label}>
    ${tabs.map(([id, name, href]) => html`<a href=${href} aria-current=${id === chosen ? "true" : undefined}>${name}</a>`)}
  </nav>`;
}

/** A value on one line, cut. */
export function Value({ value }) {
  if (value === null || value === undefined) return html`<span class="muted">none</span>`;
  const text = visible(jsonText(value));
  return html`<code title=${text.length > 140 ? text.slice(0, 2000) : undefined}>${text.length > 140 ? `${text.slice(0, 139)}…` : text}</code>`;
}

/** A value on several lines, of which the first are shown. */
export function FullValue({ value, isAbsent }) {
  const [all, setAll] = useState(false);
  if (isAbsent) return html`<p class="muted">nothing</p>`;
  const lines = visible(jsonText(value, 2)).split("\n");
  const shown = all ? lines : lines.slice(0, 24);
  return html`<pre tabindex="0" role="group" aria-label="Value">${shown.join("\n")}</pre>
    ${lines.length > shown.length && html`<button type="button" class="quiet" onClick=${() => setAll(true)}>Show all ${lines.length} lines</button>`}`;
}

const KEY_SHOWN = 80;
const INVISIBLE = /[\u007f-\u00a0\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const NEEDS_QUOTES = /^$|^\s|\s$|[\u0000-\u001f\u007f-\u00a0\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/;

/** Return JSON with escapes for characters that would not be seen. */
const visible = (text) => text.replace(INVISIBLE, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** Return a key as text. Text that would not be seen as it is gets quotes and escapes. */
export function keyText(key) {
  if (typeof key !== "string") return visible(jsonText(key));
  return NEEDS_QUOTES.test(key) ? visible(JSON.stringify(key)) : key;
}

/** A key, cut if it is long. Its direction does not change that of the text around it. */
export function Key({ value }) {
  const text = keyText(value);
  const isLong = text.length > KEY_SHOWN;
  return html`<bdi title=${isLong ? text.slice(0, 2000) : undefined}>${isLong ? `${text.slice(0, KEY_SHOWN - 1)}…` : text}</bdi>`;
}

export function KeyLink({ alias, operator, keyOf, epoch }) {
  return html`<a class="key" href=${link(alias, operator, { key: jsonText(keyOf), epoch })}><${Key} value=${keyOf} /></a>`;
}

const nameOfType = (type) => (typeof type === "string" ? type : type.kind);
const innerType = (type) => (nameOfType(type) === "optional" ? nameOfType(type.items[0]) : nameOfType(type));

/** The types whose keys are typed as JSON; all others are text, which the server reads. */
const AS_JSON = new Set(["int", "float", "bool", "dynamic"]);

/** Return a key as JSON from the text of each of its fields, as their types have it. */
export function keyOfTexts(fields, texts) {
  const parts = fields.map(({ type }, place) => {
    const text = texts[place];
    const kind = innerType(type);
    if (nameOfType(type) === "optional" && text === "null") return null;
    if (!AS_JSON.has(kind)) return text;
    try {
      const value = parse(text);
      return typeof value === "number" || typeof value === "bigint" ? numberOf(kind, value, text) : value;
    } catch {
      return text;
    }
  });
  return fields.length === 1 ? parts[0] : parts;
}

// The server takes an integer as text, too, which no client rounds.
const numberOf = (kind, value, text) => (kind === "int" ? text.trim() : value);

/** Return the texts of the fields of a key: what `keyOfTexts` makes the key of. */
export function textsOfKey(fields, key) {
  const parts = fields.length === 1 ? [key] : Array.isArray(key) ? key : [key];
  return parts.map((part, place) => (typeof part === "string" && innerType(fields[place]?.type ?? "str") !== "dynamic" ? part : jsonText(part)));
}

const FAMILIAR = { str: "text", int: "number", date: "2026-01-31", datetime: "2026-01-31T12:00:00Z", bool: "true", bytes: "hex, as in 00ff", dynamic: 'JSON, as in "text" or 5' };

/** Fields for a key; `find` gets the key. */
export function KeyForm({ operator, first, find, label = "Find key" }) {
  const [texts, setTexts] = useState(() => operator.key.map((_, place) => first?.[place] ?? ""));
  const submit = (event) => {
    event.preventDefault();
    find(keyOfTexts(operator.key, texts));
  };
  return html`<form class="key-form" onSubmit=${submit}>
    ${operator.key.map(
      (field, place) => html`<label><span>${field.name}</span><input
        name=${field.name} value=${texts[place]} placeholder=${FAMILIAR[innerType(field.type)] ?? innerType(field.type)}
        autocomplete="off" spellcheck=${false}
        onInput=${(event) => setTexts(texts.map((text, own) => (own === place ? event.target.value : text)))} /></label>`,
    )}
    <button type="submit">${label}</button>
  </form>`;
}
