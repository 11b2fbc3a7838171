// One state: its keys in order, its live changes, its growth, its skew, and where else to read it.

import { address, events, get, jsonText, pause, save, whileVisible } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { link, open, replace } from "./location.js";
import { useJob } from "./job_store.js";
import { bytes, count, millis } from "./format.js";
import { Chart } from "./charts.js";
import { Crumbs, KeyForm, KeyLink, Loading, Problem, Tabs, Tile, Value, keyText } from "./parts.js";
import { EpochPicker } from "./operator_page.js";
import { Skew } from "./skew.js";

const PAGE_ROWS = 50;
const CHANGES_SHOWN = 200;

export function StatePage({ alias, name, stateName, parameters }) {
  const { job, error } = useJob(alias);
  const operator = job?.operators.find((each) => each.operator === name);
  const state = operator?.states.find((each) => each.state === stateName);
  const view = parameters.view ?? (state?.is_local ? "growth" : "keys");
  const tab = (id, text) => [id, text, link(alias, name, stateName, { view: id === "keys" ? undefined : id })];
  return html`<${Crumbs} parts=${[["Jobs", "#/"], [alias, link(alias)], [name, link(alias, name)], [stateName]]} />
    <${Problem} error=${error} />
    ${!job && !error && html`<${Loading} what=${stateName} />`}
    ${job && !state && html`<p role="alert" class="problem">Job ${alias} has no state ${name}.${stateName} that can be read.</p>`}
    ${state && html`<dl class="tiles">
        <${Tile} name="type" value=${html`<code>${state.type}</code>`} />
        <${Tile} name="key" value=${html`<code>${operator.key.map((field) => `${field.name}: ${typeof field.type === "string" ? field.type : field.type.kind}`).join(", ")}</code>`} />
        <${Tile} name="rows" value=${count(state.rows)} />
        <${Tile} name="bytes" value=${bytes(state.bytes)} />
      </dl>
      <${Tabs} label="Views of the state" chosen=${view} tabs=${state.is_local ? [tab("growth", "Growth")] : [tab("keys", "Keys"), tab("live", "Live"), tab("growth", "Growth"), tab("skew", "Skew"), tab("read", "Read it")]} />
      ${state.is_local && html`<p class="muted line">This state belongs to shards, and not to keys. <code>statekit get</code> prints it.</p>`}
      ${view === "keys" && html`<${Keys} key=${parameters.start ?? ""} alias=${alias} operator=${operator} state=${state} parameters=${parameters} job=${job} />`}
      ${view === "live" && html`<${Live} alias=${alias} operator=${operator} state=${state} parameters=${parameters} />`}
      ${view === "growth" && html`<${Growth} alias=${alias} operator=${operator} state=${state} manifest=${job.manifest} />`}
      ${view === "skew" && html`<${Skew} alias=${alias} operator=${operator} state=${stateName} job=${job} by=${parameters.by} />`}
      ${view === "read" && html`<${Read} alias=${alias} operator=${operator} state=${state} />`}`}`;
}

const NO_PAGES = { items: [], cursor: null, answer: null, error: null };

function Keys({ alias, operator, state, parameters, job }) {
  const { start, epoch } = parameters;
  const path = [alias, operator.operator, state.state];
  const [pages, setPages] = useState(NO_PAGES);
  const [isReading, setReading] = useState(true);
  const reading = useRef(null);
  // A read that began for another start or epoch, or before another read, adds nothing.
  const read = async (before, cursor) => {
    reading.current?.abort();
    const own = new AbortController();
    reading.current = own;
    setReading(true);
    try {
      const answer = await get(path, { start, limit: PAGE_ROWS, cursor, epoch: cursor ? undefined : epoch }, own.signal);
      setPages({ items: [...before, ...answer.value.items], cursor: answer.value.cursor, answer, error: null });
    } catch (error) {
      if (own.signal.aborted) return;
      setPages((shown) => ({ ...shown, error }));
    }
    setReading(false);
  };
  useEffect(() => {
    read([]);
    return () => reading.current?.abort();
  }, [path.join("/"), start, epoch]);
  const { items, cursor, answer, error } = pages;
  return html`<div class="toolbar">
      <${KeyForm} operator=${operator} label="Start at key" find=${(key) => open(...path, { start: jsonText(key), epoch })} />
      ${answer && html`<${EpochPicker} answer=${answer} chosen=${epoch} job=${job} choose=${(chosen) => replace(...path, { start, epoch: chosen })} readAgain=${() => read([])} />`}
    </div>
    <${Problem} error=${error} />
    ${answer && html`<p class="muted line">after epoch ${count(answer.epoch)}${start ? html`, from ${start} on, <a href=${link(...path, { epoch })}>from the beginning</a>` : ""}</p>`}
    ${items.length === 0 && !isReading && !error && html`<p class="muted">no keys</p>`}
    ${items.length > 0 && html`<div class="scroll" tabindex="0" role="group" aria-label="Keys"><table class="keys">
      <thead><tr><th scope="col">${operator.key.map((field) => field.name).join(", ")}</th><th scope="col">${state.state}</th></tr></thead>
      <tbody>${items.map(([key, value]) => html`<tr key=${jsonText(key)}><th scope="row"><${KeyLink} alias=${alias} operator=${operator.operator} keyOf=${key} epoch=${epoch} /></th><td><${Value} value=${value} /></td></tr>`)}</tbody>
    </table></div>`}
    ${cursor && html`<p class="line"><button type="button" disabled=${isReading} onClick=${() => read(items, cursor)}>Show more</button></p>`}`;
}

/** Whether the keys of an operator begin with a text that the server can look for. */
const hasTextKeys = (operator) => operator.key.length === 1 && ["str", "dynamic"].includes(operator.key[0].type);

/** The changes of each epoch as the server sends them. */
function Live({ alias, operator, state, parameters }) {
  const path = [alias, operator.operator, state.state];
  const prefix = parameters.prefix ?? "";
  const [changes, setChanges] = useState([]);
  const [status, setStatus] = useState({ text: "connecting", kind: "wait" });
  const [isOn, setOn] = useState(true);
  const lastId = useRef(null);
  useEffect(() => {
    lastId.current = null;
    setChanges([]);
  }, [path.join("/"), prefix]);
  useEffect(() => {
    if (!isOn) return undefined;
    const ends = new AbortController();
    setStatus({ text: "connecting", kind: "wait" });
    whileVisible(ends.signal, (signal) => watch(path, prefix, lastId, signal, setChanges, setStatus));
    return () => ends.abort();
  }, [path.join("/"), isOn, prefix]);
  const filter = (event) => {
    event.preventDefault();
    open(...path, { view: "live", prefix: new FormData(event.target).get("prefix") });
  };
  return html`<div class="toolbar">
      ${hasTextKeys(operator) && html`<form class="key-form" key=${prefix} onSubmit=${filter}><label><span>keys that begin with</span><input name="prefix" defaultValue=${prefix} autocomplete="off" spellcheck=${false} /></label><button type="submit">Watch</button></form>`}
      <p><span role="status" class=${`status ${isOn ? status.kind : "wait"}`}>${isOn ? status.text : "paused"}</span>${" "}
        <button type="button" class="quiet" onClick=${() => setOn(!isOn)}>${isOn ? "Pause" : "Continue"}</button></p>
    </div>
    ${changes.length === 0 && html`<p class="muted">No change yet: each committed epoch adds its own.</p>`}
    ${changes.length > 0 && html`<div class="scroll tall" tabindex="0" role="group" aria-label="Changes"><table class="changes">
      <thead><tr><th scope="col" class="number">epoch</th><th scope="col">key</th><th scope="col">before</th><th scope="col">after</th></tr></thead>
      <tbody>${changes.map((each) => (each.isGap ? html`<tr key=${each.id}><td class="number">${count(each.epoch)}</td><td colspan="3">changes up to this epoch are not shown: the server no longer had them</td></tr>` : html`<${Change} key=${each.id} alias=${alias} operator=${operator.operator} change=${each} />`))}</tbody>
    </table></div>`}`;
}

function Change({ alias, operator, change }) {
  return html`<tr><td class="number">${count(change.epoch)}</td>
    <th scope="row"><${KeyLink} alias=${alias} operator=${operator} keyOf=${change.key} />${change.place !== undefined && html` <code>${keyText(change.place)}</code>`}</th>
    <td><${Value} value=${change.before} /></td><td>${change.op === "delete" ? html`<span class="deleted">deleted</span>` : html`<${Value} value=${change.value} />`}</td></tr>`;
}

async function watch(path, prefix, lastId, signal, setChanges, setStatus) {
  const add = (news) => setChanges((before) => [...news, ...before].slice(0, CHANGES_SHOWN));
  while (!signal.aborted) {
    try {
      let own = [];
      const isNew = lastId.current === null;
      for await (const { id, event, data } of events(path, { prefix: prefix ? jsonText(prefix) : undefined, rows: false }, lastId.current, signal)) {
        if (signal.aborted) return; // events that had been read: the list may be that of another filter
        if (id) lastId.current = id;
        if (event === "reset" && !isNew) add([{ id: `gap-${data.epoch}`, epoch: data.epoch, isGap: true }]);
        if (event === "change") own.push({ ...data, id, epoch: +id.split("-")[0] });
        if (event === "epoch") {
          add(own.slice(0, CHANGES_SHOWN));
          setStatus({ text: `live, epoch ${count(data.epoch)}: ${count(own.length)} ${own.length === 1 ? "change" : "changes"}`, kind: "good" });
          own = [];
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      setStatus({ text: error.message, kind: "bad" });
    }
    await pause(1000);
  }
}

function Growth({ alias, operator, state, manifest }) {
  const [found, setFound] = useState({});
  useEffect(() => {
    const ends = new AbortController();
    get([alias, "epochs"], { operator: operator.operator, limit: 200 }, ends.signal)
      .then((answer) => setFound({ items: answer.value }))
      .catch((error) => ends.signal.aborted || setFound({ error }));
    return () => ends.abort();
  }, [alias, operator.operator, manifest]);
  if (found.error) return html`<${Problem} error=${found.error} />`;
  if (!found.items) return html`<${Loading} what="epochs" />`;
  const x = found.items.map((each) => millis(each.processing_time) / 1000);
  const of = (field) => found.items.map((each) => each.operators[operator.operator]?.states?.[state.state]?.[field] ?? null);
  return html`<div class="charts">
    <${Chart} title="Rows" x=${x} series=${[{ label: "rows", values: of("rows") }]} />
    <${Chart} title="Bytes" unit="bytes" x=${x} series=${[{ label: "bytes", values: of("bytes") }]} />
  </div>`;
}

function Read({ alias, operator, state }) {
  const path = [alias, operator.operator, state.state];
  const url = address(path);
  const [error, setError] = useState(null);
  const get = (format) => save(new URL(`${url}.${format}`), `${path.join("-")}.${format}`).then(() => setError(null), setError);
  const sql = `select * from "${operator.operator}"."${state.state}" limit 100`;
  return html`<p class="choices">${["parquet", "arrow", "csv"].map((format) => html`<button type="button" onClick=${() => get(format)}>Save as ${format}</button> `)}
      <a href=${link("sql", { job: alias, sql })}>Open in SQL</a></p>
    <${Problem} error=${error} />
    <h2>HTTP</h2><pre tabindex="0" role="group" aria-label="HTTP">curl '${url.href}?key=…'
curl -N -H 'Accept: text/event-stream' '${url.href}'</pre>
    <h2>DuckDB</h2><pre tabindex="0" role="group" aria-label="DuckDB">select * from read_parquet('${url.href}.parquet') limit 10;</pre>
    <h2>Python</h2><pre tabindex="0" role="group" aria-label="Python">from statekit.query import Client

with Client("${new URL(".", document.baseURI).href}") as client:
    client.get("${alias}", "${operator.operator}", "${state.state}", key)</pre>`;
}
