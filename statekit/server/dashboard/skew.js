// Skew: rows of shards and key groups, the largest and the most written keys.

import { get } from "./api.js";
import { html, useEffect, useState } from "./html.js";
import { bytes, count } from "./format.js";
import { Bar, HeatMap } from "./charts.js";
import { current, replace } from "./location.js";
import { KeyLink, Loading, Problem } from "./parts.js";

const COUNTED_AT_ONCE = 200_000;
const MEASURES = [["size", "largest"], ["rows", "most rows"], ["writes", "most written"]];

export function Skew({ alias, operator, state, job, by: wanted }) {
  const { epoch, manifest, key_groups: keyGroups } = job;
  const rows = operator.states.filter((each) => !state || each.state === state).reduce((all, each) => all + each.rows, 0);
  const [asked, setAsked] = useState(rows <= COUNTED_AT_ONCE || wanted ? { epoch, manifest, by: wanted ?? "size" } : null);
  const by = asked?.by ?? "size";
  const choose = (id) => {
    setAsked({ epoch, manifest, by: id });
    const { parts, parameters } = current();
    replace(...parts, { ...parameters, by: id });
  };
  return html`<section aria-labelledby="skew-title"><h2 id="skew-title">Skew</h2>
    <${Shards} alias=${alias} operator=${operator} state=${state} manifest=${manifest} />
    ${asked
      ? html`<${Ranking} alias=${alias} operator=${operator} state=${state} asked=${asked} keyGroups=${keyGroups} />`
      : html`<p class="muted">Counting keys and key groups reads all ${count(rows)} rows.</p>`}
    <p class="choices">${MEASURES.map(([id, name]) => html`<button type="button" class=${asked && by === id ? "chosen" : "quiet"} aria-pressed=${asked !== null && by === id}
        onClick=${() => choose(id)}>${asked ? name : `Count: ${name}`}</button>`)}
      ${asked && asked.manifest !== manifest && html`<span class="muted">counted after epoch ${count(asked.epoch)}; click to count again</span>`}</p>
  </section>`;
}

function Shards({ alias, operator, state, manifest }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    const ends = new AbortController();
    get([alias, "shards"], { operator: operator.operator, state }, ends.signal).then(setFound, () => {});
    return () => ends.abort();
  }, [alias, operator.operator, state, manifest]);
  if (!found) return null;
  const { shards } = found.value;
  const most = Math.max(1, ...shards.map((shard) => shard.rows ?? 0));
  const shown = [...shards].sort((a, b) => (b.rows ?? 0) - (a.rows ?? 0)).slice(0, 16);
  return html`<h3>Shards${shards.length > shown.length ? `: the fullest ${shown.length} of ${count(shards.length)}` : ""}</h3>
    <div class="scroll" tabindex="0" role="group" aria-label="Shards"><table>
      <thead><tr><th scope="col" class="number">shard</th><th scope="col">key groups</th><th scope="col" class="number">rows</th><th scope="col" class="number">bytes</th><th scope="col" class="number">last changed</th><th scope="col"><span class="hidden">share</span></th></tr></thead>
      <tbody>${shown.map((shard) => html`<tr><td class="number">${shard.shard}</td><td>${shard.key_groups.join(" to ")}</td>
        <td class="number">${count(shard.rows)}</td><td class="number">${bytes(shard.bytes)}</td><td class="number">${shard.changed === null ? "–" : `epoch ${count(shard.changed)}`}</td>
        <td class="share"><${Bar} share=${(shard.rows ?? 0) / most} /></td></tr>`)}</tbody>
    </table></div>
    ${shards.some((shard) => shard.rows === null) && html`<p class="muted line">– is a shard that was divided from another one, and was not counted since.</p>`}`;
}

function Ranking({ alias, operator, state, asked, keyGroups }) {
  const [found, setFound] = useState({});
  useEffect(() => {
    const ends = new AbortController();
    setFound({});
    get([alias, "top"], { operator: operator.operator, state, by: asked.by, epoch: asked.epoch, manifest: asked.manifest, limit: 20 }, ends.signal)
      .then((answer) => setFound({ answer, shards: answer.value }))
      .catch((error) => ends.signal.aborted || setFound({ error }));
    return () => ends.abort();
  }, [alias, operator.operator, state, asked]);
  const { answer, error } = found;
  if (error) return html`<${Problem} error=${error} />`;
  if (!answer) return html`<div class="line"><${Loading} what="all rows" /></div>`;
  const { keys, key_groups: groups, epochs } = answer.value;
  const isByWrites = asked.by === "writes";
  const measure = isByWrites ? "writes" : asked.by === "rows" ? "rows" : "bytes";
  const most = Math.max(1, ...keys.map((key) => key[measure]));
  return html`${groups.length > 0 && html`<h3>Key groups</h3><${HeatMap} groups=${groups} total=${keyGroups} />`}
    <h3>Keys${epochs ? `: writes in epochs ${count(epochs[0])} to ${count(epochs[1])}` : ""}</h3>
    <div class="scroll" tabindex="0" role="group" aria-label="Keys"><table>
      <thead><tr><th scope="col">key</th><th scope="col">state</th>${isByWrites ? html`<th scope="col" class="number">writes</th>` : html`<th scope="col" class="number">rows</th><th scope="col" class="number">bytes</th>`}<th scope="col"><span class="hidden">share</span></th></tr></thead>
      <tbody>${keys.map((key) => html`<tr><th scope="row"><${KeyLink} alias=${alias} operator=${operator.operator} keyOf=${key.key} /></th><td>${key.state}</td>
        ${isByWrites ? html`<td class="number">${count(key.writes)}</td>` : html`<td class="number">${count(key.rows)}</td><td class="number">${bytes(key.bytes)}</td>`}
        <td class="share"><${Bar} share=${key[measure] / most} /></td></tr>`)}</tbody>
    </table></div>`;
}
