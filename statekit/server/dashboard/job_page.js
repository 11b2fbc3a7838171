// One job: numbers, plan, epochs over time, operators with their states.

import { html, useMemo } from "./html.js";
import { link } from "./location.js";
import { ENDS, RATE_EPOCHS, committed, intervalOf, sourceRecords, sumOf, useJob, useLag, useQuiet } from "./job_store.js";
import { bytes, count, millis, seconds, shortCount, time } from "./format.js";
import { Chart, Sparkline } from "./charts.js";
import { Crumbs, Loading, Problem, Tile } from "./parts.js";
import { Plan } from "./plan.js";

const LAG_MAX_S = 90 * 86_400;
const SERIES_MAX = 6;

export function JobPage({ alias }) {
  const found = useJob(alias);
  const { job, epochs, error } = found;
  return html`<${Crumbs} parts=${[["Jobs", "#/"], [alias]]} />
    <${Problem} error=${error} />
    ${!job && !error && html`<${Loading} what=${alias} />`}
    ${job && html`<${Numbers} found=${found} />
      <section aria-labelledby="plan-title"><h2 id="plan-title">Plan</h2>
        <${Plan} alias=${alias} operators=${job.operators} last=${epochs.at(-1)?.operators} />
      </section>
      <${Epochs} epochs=${epochs} operators=${job.operators} />
      <section aria-labelledby="operators-title"><h2 id="operators-title">Operators and states</h2>
        ${job.operators.map((operator) => html`<${Operator} alias=${alias} operator=${operator} epochs=${epochs} />`)}
      </section>`}`;
}

const began = (epoch) => millis(epoch.processing_time) / 1000;

function Numbers({ found }) {
  const { job, epochs } = found;
  const lag = useLag(found);
  const recent = epochs.slice(-RATE_EPOCHS);
  const records = recent.slice(1).reduce((all, epoch) => all + sourceRecords(epoch, job.operators), 0);
  const span = recent.length > 1 ? committed(recent.at(-1)) - committed(recent[0]) : 0;
  const interval = intervalOf(epochs);
  const late = recent.reduce((all, epoch) => all + sumOf(epoch, "late"), 0);
  const last = epochs.at(-1);
  const quiet = useQuiet(found);
  return html`${quiet !== null && html`<p class="status wait line" role="status">no epoch for ${seconds(quiet)}</p>`}
  <dl class="tiles">
    <${Tile} name="epoch" value=${count(job.epoch)} />
    <${Tile} name="began" value=${`${seconds(lag)} ago`} warns=${quiet !== null} />
    <${Tile} name="records per second" value=${span ? shortCount(records / span) : "–"} />
    <${Tile} name="interval of epochs" value=${seconds(interval)} />
    <${Tile} name="duration" value=${last ? seconds(committed(last) - began(last)) : "–"} />
    <${Tile} name="rows of state and timers" value=${last ? count(sumOf(last, "rows")) : "–"} />
    <${Tile} name="bytes of state and timers" value=${last ? bytes(sumOf(last, "bytes")) : "–"} />
    <${Tile} name=${`late, last ${recent.length} epochs`} value=${count(late)} />
  </dl>`;
}

function Epochs({ epochs, operators }) {
  const x = useMemo(() => epochs.map(began), [epochs]);
  const names = operators.map((each) => each.operator);
  const ofOperator = (read) => names.map((name) => ({ label: name, values: epochs.map((epoch) => (epoch.operators[name] ? read(epoch.operators[name], epoch) : null)) }));
  const some = (series) => largest(series.filter((each) => each.values.some((value) => value !== null)));
  const by = names.length > SERIES_MAX ? `, the ${SERIES_MAX} largest of ${names.length} operators` : ", by operator";
  const lag = some(ofOperator((own, epoch) => lagOf(own, epoch)));
  const isLag = lag.every((each) => each.values.every((value) => value === null || Math.abs(value) < LAG_MAX_S));
  const marks = some(ofOperator((own) => markOf(own)));
  if (!epochs.length) return null;
  return html`<section aria-labelledby="epochs-title"><h2 id="epochs-title">Epochs</h2><div class="charts">
    <${Chart} title=${`Records in${by}`} x=${x} series=${some(ofOperator((own) => own.records_in))} />
    <${Chart} title="Time of epochs" unit="seconds" x=${x} series=${[
      { label: "interval", values: x.map((at, place) => (place ? at - x[place - 1] : null)) },
      { label: "duration", values: epochs.map((epoch) => committed(epoch) - began(epoch)) },
    ]} />
    ${lag.length > 0 && (isLag
      ? html`<${Chart} title="Watermark lag" unit="seconds" x=${x} series=${lag} />`
      : html`<${Chart} title="Watermark" unit="instant" x=${x} series=${marks} />`)}
    <${Chart} title=${`Bytes written${by}`} unit="bytes" x=${x} series=${some(ofOperator((own) => own.bytes_written))} />
    <${Chart} title="Late records" x=${x} series=${[{ label: "late", values: epochs.map((epoch) => sumOf(epoch, "late")) }]} />
    <${Chart} title=${`Bytes of state${by}`} unit="bytes" x=${x} series=${some(ofOperator((own) => own.bytes))} />
  </div></section>`;
}

/** The series with the largest values, in their order. */
function largest(series) {
  const most = (each) => Math.max(...each.values.map((value) => value ?? -Infinity));
  const kept = new Set([...series].sort((a, b) => most(b) - most(a)).slice(0, SERIES_MAX));
  return series.filter((each) => kept.has(each));
}

const markOf = (own) => (own.watermark && !own.watermark.startsWith(ENDS) ? millis(own.watermark) / 1000 : null);
const lagOf = (own, epoch) => (markOf(own) === null ? null : began(epoch) - markOf(own));

function Operator({ alias, operator, epochs }) {
  const name = operator.operator;
  const key = operator.key.map((field) => field.name).join(", ");
  const of = (field) => epochs.map((epoch) => epoch.operators[name]?.[field] ?? null);
  return html`<article class="operator-states" aria-labelledby=${`op-${name}`}>
    <header>
      <h3 id=${`op-${name}`}><a href=${link(alias, name)}>${name}</a></h3>
      <p class="muted">${key ? `by ${key}` : "no key"} ← ${[...operator.inputs, ...operator.broadcasts.map((each) => `${each} (broadcast)`)].join(", ")}
        ${operator.watermark && html` · watermark ${operator.watermark.startsWith(ENDS) ? "at the end" : time(operator.watermark)}`}
        ${operator.waits_for && html` · <strong>waits for ${operator.waits_for.source}</strong>, which ${operator.waits_for.at ? `is at ${time(operator.waits_for.at)}` : "has had no record"}, since ${time(operator.waits_for.since)}`}</p>
      <${Sparkline} values=${of("bytes")} label=${`bytes of ${name} over the last epochs`} />
    </header>
    ${operator.states.length > 0 && html`<div class="scroll" tabindex="0" role="group" aria-label=${`States of ${name}`}><table>
      <thead><tr><th scope="col">state</th><th scope="col">type</th><th scope="col" class="number">rows</th><th scope="col" class="number">bytes</th></tr></thead>
      <tbody>${operator.states.map((state) => html`<tr>
        <th scope="row">${state.is_local ? state.state : html`<a href=${link(alias, name, state.state)}>${state.state}</a>`}</th>
        <td><code>${state.type}</code></td><td class="number">${count(state.rows)}</td><td class="number">${bytes(state.bytes)}</td>
      </tr>`)}</tbody>
    </table></div>`}
  </article>`;
}
