// One operator: its states, a key in all of them with history and timers, and its skew.

import { get, jsonText, parse } from "./api.js";
import { html, useEffect, useState } from "./html.js";
import { link, replace } from "./location.js";
import { useJob } from "./job_store.js";
import { bytes, count, millis, seconds, time } from "./format.js";
import { Chart, Sparkline } from "./charts.js";
import { Crumbs, FullValue, Key, KeyForm, Loading, Problem, Value, textsOfKey } from "./parts.js";
import { Skew } from "./skew.js";

export function OperatorPage({ alias, name, parameters }) {
  const { job, error, epochs } = useJob(alias);
  const operator = job?.operators.find((each) => each.operator === name);
  const key = parsed(parameters.key);
  const parts = [["Jobs", "#/"], [alias, link(alias)], [name, link(alias, name)]];
  if (key !== undefined) parts.push([html`<${Key} value=${key} />`]);
  return html`<${Crumbs} parts=${parts} />
    <${Problem} error=${error} />
    ${!job && !error && html`<${Loading} what=${name} />`}
    ${job && !operator && html`<p role="alert" class="problem">Job ${alias} has no operator ${name}.</p>`}
    ${operator && html`
      ${operator.key.length > 0 && html`<${KeyForm} operator=${operator} key=${parameters.key ?? ""} first=${key === undefined ? undefined : textsOfKey(operator.key, key)}
        find=${(found) => { location.hash = link(alias, name, { key: jsonText(found) }); }} />`}
      ${key === undefined
        ? html`<${States} alias=${alias} operator=${operator} epochs=${epochs} />
            ${operator.key.length > 0 && html`<${Skew} alias=${alias} operator=${operator} job=${job} by=${parameters.by} />`}`
        : html`<${KeyView} alias=${alias} operator=${operator} keyOf=${key} epoch=${parameters.epoch} job=${job} />`}`}`;
}

function parsed(text) {
  if (text === undefined) return undefined;
  try {
    return parse(text);
  } catch {
    return text;
  }
}

function States({ alias, operator, epochs }) {
  const name = operator.operator;
  return html`<section aria-labelledby="states-title"><h2 id="states-title">States</h2>
    <div class="scroll" tabindex="0" role="group" aria-label="States"><table>
      <thead><tr><th scope="col">state</th><th scope="col">type</th><th scope="col" class="number">rows</th><th scope="col" class="number">bytes</th><th scope="col" class="number">bytes per row</th></tr></thead>
      <tbody>${operator.states.map((state) => html`<tr>
        <th scope="row">${state.is_local ? state.state : html`<a href=${link(alias, name, state.state)}>${state.state}</a>`}</th>
        <td><code>${state.type}</code></td><td class="number">${count(state.rows)}</td><td class="number">${bytes(state.bytes)}</td>
        <td class="number">${state.rows ? bytes(state.bytes / state.rows) : "–"}</td>
      </tr>`)}</tbody>
    </table></div>
    <${Chart} title="Records in and out" x=${epochs.map((each) => millis(each.processing_time) / 1000)} series=${["records_in", "records_out", "late"].map((field) => ({ label: field.replace("records_", ""), values: epochs.map((each) => each.operators[name]?.[field] ?? null) }))} />
  </section>`;
}

/** Everything about a key, at the last epoch or at one that is chosen. */
function KeyView({ alias, operator, keyOf, epoch, job }) {
  const name = operator.operator;
  const [found, setFound] = useState({});
  const text = jsonText(keyOf);
  const shownEpoch = epoch ?? job.epoch;
  useEffect(() => {
    const ends = new AbortController();
    get([alias, "key"], { operator: name, key: text, epoch }, ends.signal)
      .then((answer) => setFound({ answer }))
      .catch((error) => ends.signal.aborted || setFound({ error }));
    return () => ends.abort();
  }, [alias, name, text, shownEpoch]);
  const { answer, error } = found;
  if (error) return html`<${Problem} error=${error} />${epoch && html`<p><a href=${link(alias, name, { key: text })}>Show the last epoch</a></p>`}`;
  if (!answer) return html`<${Loading} what="the key" />`;
  const { value } = answer;
  return html`
    <${EpochPicker} answer=${answer} chosen=${epoch} job=${job} choose=${(chosen) => replace(alias, name, { key: text, epoch: chosen })} />
    <p class="muted">key group ${count(value.key_group)} · shard ${count(value.shard)} · after epoch ${count(answer.epoch)}, which began at ${time(answer.processing_time)} UTC</p>
    <div class="state-cards">${Object.entries(value.states).map(([state, own]) => html`
      <${StateCard} key=${state} alias=${alias} operator=${operator} state=${state} own=${own} keyText=${text} />`)}</div>
    ${value.timers_cut && html`<p class="muted line">The first ${count(value.timers.length)} timers.</p>`}
    ${value.timers && html`<section aria-labelledby="timers-title"><h2 id="timers-title">Timers</h2>
      ${value.timers.length === 0 ? html`<p class="muted">none is pending</p>` : html`<table>
        <thead><tr><th scope="col">fires at (UTC)</th><th scope="col">clock</th><th scope="col">name</th></tr></thead>
        <tbody>${value.timers.map((timer) => html`<tr><td>${time(timer.at)}</td><td>${timer.clock} time</td><td>${timer.name}</td></tr>`)}</tbody>
      </table>`}</section>`}`;
}

/** A slider over the epochs that can be read. It says which one is shown, and whether that is the last. */
export function EpochPicker({ answer, chosen, job, choose, readAgain }) {
  const epochs = job.readable_epochs ?? [answer.epoch];
  const isQuiet = job.lag_ms / 1000 > job.quietAfterS;
  const newer = epochs.filter((epoch) => epoch > answer.epoch).length;
  const at = Math.max(0, epochs.findLastIndex((epoch) => epoch <= (chosen === undefined ? answer.epoch : +chosen)));
  const pick = (place) => choose(place >= epochs.length - 1 ? undefined : epochs[place]);
  return html`<div class="epochs">
    <label>epoch <output>${count(chosen === undefined ? answer.epoch : +chosen)}</output>
      <input type="range" min="0" max=${epochs.length - 1} value=${at} disabled=${epochs.length < 2} aria-valuetext=${`epoch ${epochs[at]}`}
        onChange=${(event) => pick(+event.target.value)} /></label>
    ${chosen !== undefined && html`<button type="button" class="quiet" onClick=${() => choose(undefined)}>Back to live</button>`}
    ${chosen === undefined && newer === 0 && (isQuiet ? html`<span class="status wait">the last one, ${seconds(job.lag_ms / 1000)} ago</span>` : html`<span class="status good">live</span>`)}
    ${chosen === undefined && newer > 0 && html`<span class="status wait">${count(newer)} newer</span>`}
    ${chosen === undefined && readAgain && html`<button type="button" class="quiet" onClick=${readAgain}>Read again</button>`}
  </div>`;
}

function StateCard({ alias, operator, state, own, keyText: text }) {
  const type = operator.states.find((each) => each.state === state);
  return html`<article class="state-card" aria-labelledby=${`state-${state}`}>
    <header><h2 id=${`state-${state}`}><a href=${link(alias, operator.operator, state)}>${state}</a></h2><code>${type?.type}</code></header>
    <${FullValue} value=${own.value} isAbsent=${own.value === null || (["map", "list"].includes(type?.kind) && Object.keys(own.value).length === 0)} />
    ${own.is_cut && html`<p class="muted">The first ${count(Object.keys(own.value).length)} rows. <a href=${link(alias, operator.operator, state, { view: "read" })}>Read the others</a></p>`}
    ${own.expires && html`<p class="muted">${["map", "list"].includes(type?.kind) ? "the next row expires" : "expires"} at ${time(own.expires)} UTC</p>`}
    <${History} alias=${alias} operator=${operator.operator} state=${state} text=${text} value=${jsonText(own.value)} />
  </article>`;
}

function History({ alias, operator, state, text, value }) {
  const [found, setFound] = useState({});
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    if (!isOpen) return undefined;
    const ends = new AbortController();
    get([alias, "history"], { operator, state, key: text }, ends.signal)
      .then((answer) => setFound({ items: answer.value, isCut: answer.is_cut }))
      .catch((error) => ends.signal.aborted || setFound({ error }));
    return () => ends.abort();
  }, [alias, operator, state, text, value, isOpen]);
  const changes = found.items ?? [];
  const numbers = changes.map((each) => each.value);
  const isNumeric = numbers.some((own) => typeof own === "number") && numbers.every((own) => own === null || typeof own === "number");
  return html`<details open=${isOpen} onToggle=${(event) => setOpen(event.target.open)}><summary>History</summary>
    <${Problem} error=${found.error} />
    ${isNumeric && html`<${Sparkline} width=${280} height=${48} values=${numbers} label=${`${state} from change to change`} />`}
    ${changes.length > 0 && html`<div class="scroll" tabindex="0" role="group" aria-label=${`History of ${state}`}><table>
      <thead><tr><th scope="col" class="number">since epoch</th><th scope="col">value</th></tr></thead>
      <tbody>${[...changes].reverse().map((each) => html`<tr><td class="number"><a href=${link(alias, operator, { key: text, epoch: each.epoch })}>${count(each.epoch)}</a></td><td><${Value} value=${each.value} /></td></tr>`)}</tbody>
    </table></div>`}
    ${found.isCut && html`<p class="muted">Earlier values are too large to be shown.</p>`}
  </details>`;
}
