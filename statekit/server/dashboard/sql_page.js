// SQL: a query over the states of one epoch, its result as a table, a plot and files.

import { get, jsonText, parse, post, save } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { link, replace } from "./location.js";
import { count, seconds } from "./format.js";
import { Chart } from "./charts.js";
import { Loading, Problem, Value, keyText } from "./parts.js";

const ROWS_SHOWN = 500;

export function SqlPage({ jobs, parameters }) {
  const alias = parameters.job ?? jobs?.[0]?.job;
  const isExplained = parameters.explain === "1";
  const [sql, setSql] = useState(parameters.sql ?? "");
  const [state, setState] = useState({});
  const running = useRef(null);
  const wanted = parameters.sql && alias ? jsonText([alias, parameters.sql, isExplained]) : "";
  useEffect(() => {
    setSql(parameters.sql ?? "");
    if (wanted) run();
    else setState({});
    return () => running.current?.abort();
  }, [wanted]);

  async function run() {
    running.current?.abort();
    const ends = new AbortController();
    running.current = ends;
    const beganMs = performance.now();
    const text = isExplained ? `explain ${parameters.sql}` : parameters.sql;
    setState({ isRunning: true });
    try {
      const response = await post(["sql"], {}, { job: alias, sql: text, rows: ROWS_SHOWN }, ends.signal);
      setState({ answer: parse(await response.text()), alias, sql: text, seconds: (performance.now() - beganMs) / 1000 });
    } catch (error) {
      if (!ends.signal.aborted) setState({ error });
    }
  }

  // The address has the query: to show another one is a step that Back takes back.
  const show = (explain) => {
    const next = link("sql", { job: alias, sql, explain });
    if (next === location.hash) run();
    else location.hash = next;
  };
  const submit = (event) => {
    event.preventDefault();
    show(undefined);
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  };
  const choose = (event) => replace("sql", { job: event.target.value });
  return html`<h1>SQL</h1>
    <form class="sql" onSubmit=${submit}>
      <label><span>job</span><select value=${alias} onChange=${choose}>
        ${(jobs ?? []).map(({ job }) => html`<option value=${job} selected=${job === alias}>${job}</option>`)}</select></label>
      <label class="wide"><span>query</span><textarea rows="6" spellcheck=${false} value=${sql} onInput=${(event) => setSql(event.target.value)} onKeyDown=${onKeyDown} placeholder="select * from states"></textarea></label>
      <p class="choices"><button type="submit" disabled=${!sql.trim() || !alias}>Run</button>
        ${state.isRunning && html`<button type="button" class="quiet" onClick=${() => { running.current.abort(); setState({}); }}>Stop</button>`}
        <button type="button" class="quiet" disabled=${!sql.trim() || !alias} onClick=${() => show("1")}>Explain</button>
        <span class="muted">Ctrl + Enter runs. The address of this page has the query.</span></p>
    </form>
    <div class="sql-result" aria-live="polite">
      ${state.isRunning && html`<${Loading} what="the result" />`}
      <${Problem} error=${state.error} />
      ${state.answer && html`<${Result} answer=${state.answer} sql=${state.sql} alias=${state.alias} seconds=${state.seconds} />`}
    </div>
    ${alias && html`<${Tables} alias=${alias} use=${(text) => setSql(text)} />`}`;
}

function Result({ answer, sql, alias, seconds: took }) {
  const { columns, rows, is_cut: isCut } = answer.value;
  const [error, setError] = useState(null);
  const file = async (format) => {
    try {
      const body = { job: alias, sql, epoch: answer.epoch, rows: 100_000 };
      await save(await post(["sql"], { format }, body), `result.${format}`);
      setError(null);
    } catch (problem) {
      setError(problem);
    }
  };
  const isPlan = columns.length === 2 && columns[0].name === "explain_key";
  return html`<p class="muted">${isCut ? `the first ${count(rows.length)} rows` : `${count(rows.length)} ${rows.length === 1 ? "row" : "rows"}`}, after epoch ${count(answer.epoch)}, in ${seconds(took)}${" · "}<button type="button" class="quiet" onClick=${() => file("csv")}>CSV</button>${" "}<button type="button" class="quiet" onClick=${() => file("arrow")}>Arrow</button></p>
    <${Problem} error=${error} />
    ${isPlan
      ? html`<pre tabindex="0" role="group" aria-label="Explained">${rows.map((row) => row[1]).join("\n")}</pre>`
      : html`<${Plot} columns=${columns} rows=${rows} />
        <div class="scroll tall" tabindex="0" role="group" aria-label="Result"><table>
          <thead><tr>${columns.map((column) => html`<th scope="col" class=${isNumber(column) ? "number" : ""} title=${column.type}>${column.name}</th>`)}</tr></thead>
          <tbody>${rows.map((row) => html`<tr>${row.map((cell, place) => html`<td class=${isNumber(columns[place]) ? "number" : ""}>${cellOf(cell)}</td>`)}</tr>`)}</tbody>
        </table></div>`}`;
}

const isNumber = (column) => /^(u?int|float|double|decimal|halffloat)/.test(column.type);
const isTime = (column) => /^(timestamp|date)/.test(column.type);

function cellOf(cell) {
  if (typeof cell === "string") return html`<span class="text">${keyText(cell)}</span>`;
  if (typeof cell === "number" || typeof cell === "bigint") return String(cell);
  return html`<${Value} value=${cell} />`;
}

/** Numbers by the first column: over time or numbers as lines, over texts as bars. */
function Plot({ columns, rows }) {
  const numeric = columns.map((column, place) => [column, place]).filter(([column, place]) => isNumber(column) && (place > 0 || columns.length === 1));
  const [first] = columns;
  if (rows.length < 2 || columns.length < 2 || numeric.length === 0) return null;
  const isLine = isTime(first) || isNumber(first);
  const placed = rows.filter((row) => row[0] !== null);
  const order = isLine ? [...placed].sort((a, b) => position(first, a[0]) - position(first, b[0])) : rows.slice(0, 60);
  const x = isLine ? order.map((row) => position(first, row[0])) : null;
  const series = numeric.slice(0, 6).map(([column, place]) => ({ label: column.name, values: order.map((row) => (row[place] === null ? null : Number(row[place]))) }));
  if (isLine && x.every(Number.isFinite))
    return html`<${Chart} title=${`${series.map((each) => each.label).join(", ")} by ${first.name}`} x=${x} series=${series} isTime=${isTime(first)} xLabel=${first.name} height=${220} />`;
  return html`<${Bars} names=${order.slice(0, 30).map((row) => (row[0] === null ? "none" : String(row[0])))} series=${series[0]} by=${first.name} />`;
}

/** Times without a zone are UTC, as all times of the server. */
function position(column, value) {
  if (!isTime(column)) return Number(value);
  return Date.parse(/T.*(Z|[+-]\d\d:\d\d)$/.test(value) || !value.includes("T") ? value : `${value}Z`) / 1000;
}

function Bars({ names, series, by }) {
  const values = series.values.slice(0, names.length);
  const most = Math.max(...values.map(Math.abs), 0) || 1;
  const line = 22;
  return html`<figure class="bars"><figcaption>${series.label} by ${by}</figcaption>
    <svg role="img" aria-label=${names.map((name, place) => `${name} ${values[place]}`).join(", ").slice(0, 500)} viewBox=${`0 0 640 ${names.length * line}`}>
      ${names.map((name, place) => html`<g transform=${`translate(0 ${place * line})`}>
        <text x="150" y="15" text-anchor="end">${name.length > 20 ? `${name.slice(0, 19)}…` : name}</text>
        <rect x="158" y="3" height="15" rx="3" width=${Math.max(1, (Math.abs(values[place] ?? 0) / most) * 380)} />
        <text x=${166 + (Math.abs(values[place] ?? 0) / most) * 380} y="15">${count(values[place])}</text></g>`)}
    </svg></figure>`;
}

function Tables({ alias, use }) {
  const [job, setJob] = useState(null);
  useEffect(() => {
    const ends = new AbortController();
    get([alias], {}, ends.signal).then(setJob, () => {});
    return () => ends.abort();
  }, [alias]);
  if (!job) return null;
  const quoted = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name}"`);
  const tables = job.operators.flatMap((operator) => operator.states.map((state) => [`${quoted(operator.operator)}.${quoted(state.state)}`, operator, state]));
  return html`<section aria-labelledby="tables-title"><h2 id="tables-title">Tables of ${alias}</h2>
    <div class="scroll" tabindex="0" role="group" aria-label="Tables"><table>
      <thead><tr><th scope="col">table</th><th scope="col">key</th><th scope="col">type</th><th scope="col" class="number">rows</th></tr></thead>
      <tbody>${tables.map(([name, operator, state]) => html`<tr><th scope="row"><button type="button" class="quiet" onClick=${() => use(`select * from ${name} limit 100`)}>${name}</button></th>
        <td>${operator.key.map((field) => field.name).join(", ")}</td><td><code>${state.type}</code></td><td class="number">${count(state.rows)}</td></tr>`)}</tbody>
    </table></div></section>`;
}
