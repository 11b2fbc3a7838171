// The first page: all jobs that can be seen.

import { get, pause, whileVisible } from "./api.js";
import { html, useEffect, useState } from "./html.js";
import { link } from "./location.js";
import { sourceRecords, sumOf, useLag, useQuiet, withQuietTime } from "./job_store.js";
import { bytes, count, seconds } from "./format.js";
import { Sparkline } from "./charts.js";
import { Loading, Problem } from "./parts.js";

const REFRESH_MS = 3000;
const EPOCHS = 60;

/** Return the jobs, as long as a page shows them. */
export function useJobs(turn, isShown) {
  const [found, setFound] = useState({ jobs: null, error: null });
  useEffect(() => {
    if (!isShown) return undefined;
    const ends = new AbortController();
    whileVisible(ends.signal, (signal) => refresh(signal, setFound));
    return () => ends.abort();
  }, [turn, isShown]);
  return found;
}

async function refresh(signal, setFound) {
  while (!signal.aborted) {
    try {
      const jobs = await get(["jobs"], {}, signal);
      setFound({ jobs, error: null });
    } catch (error) {
      if (signal.aborted) return;
      setFound((before) => ({ ...before, error }));
    }
    await pause(REFRESH_MS);
  }
}

export function JobsPage({ jobs, error }) {
  const details = useDetails(jobs);
  return html`<h1>Jobs</h1>
    <${Problem} error=${error} />
    ${jobs === null && !error && html`<${Loading} what="jobs" />`}
    <ul class="cards">${(jobs ?? []).map((job) => html`<${JobCard} key=${job.job} summary=${job} found=${details[job.job]} />`)}</ul>`;
}

/** The last epochs of all jobs, read one job after the other when its epoch has changed. */
function useDetails(jobs) {
  const [details, setDetails] = useState({});
  const wanted = (jobs ?? []).map(({ job, epoch }) => `${job}:${epoch}`).join(",");
  useEffect(() => {
    const ends = new AbortController();
    (async () => {
      for (const { job: alias, epoch } of jobs ?? []) {
        if (ends.signal.aborted) return;
        if (epoch === null || details[alias]?.job.epoch === epoch) continue;
        try {
          const job = await get([alias], {}, ends.signal);
          const epochs = (await get([alias, "epochs"], { limit: EPOCHS }, ends.signal)).value;
          setDetails((before) => ({ ...before, [alias]: { job: withQuietTime(job, epochs), epochs, receivedMs: performance.now() } }));
        } catch {
          // the list of jobs says what is wrong with it
        }
      }
    })();
    return () => ends.abort();
  }, [wanted]);
  return details;
}

const NOTHING = { job: null, epochs: [], receivedMs: 0 };

function JobCard({ summary, found = NOTHING }) {
  const lag = useLag(found);
  const quiet = useQuiet(found);
  const { job, epochs } = found;
  const sum = (name) => sumOf(epochs.at(-1), name);
  return html`<li class="card"><a href=${link(summary.job)}>
    <h2>${summary.job}</h2>
    <${Status} summary=${summary} quiet=${quiet} />
    ${job && html`<${Sparkline} width=${220} height=${40} label="records of the last epochs" values=${epochs.map((each) => sourceRecords(each, job.operators))} />`}
    <dl>
      <div><dt>epoch</dt><dd>${count(summary.epoch)}</dd></div>
      <div><dt>began</dt><dd>${lag === null ? "–" : `${seconds(lag)} ago`}</dd></div>
      <div><dt>rows of state</dt><dd>${job ? count(sum("rows")) : "–"}</dd></div>
      <div><dt>bytes</dt><dd>${job ? bytes(sum("bytes")) : "–"}</dd></div>
    </dl>
  </a></li>`;
}

function Status({ summary, quiet }) {
  const behind = (summary.latest_epoch ?? 0) - (summary.epoch ?? 0);
  if (summary.has_error) return html`<p class="status bad">cannot be followed: see the server's log</p>`;
  if (summary.is_rebuilding) return html`<p class="status wait">copies are being restored</p>`;
  if (summary.epoch === null) return html`<p class="status wait">no epoch yet</p>`;
  if (behind > 2) return html`<p class="status wait">${behind} epochs behind</p>`;
  if (quiet !== null) return html`<p class="status wait">no epoch for ${seconds(quiet)}</p>`;
  return html`<p class="status good">up to date</p>`;
}
