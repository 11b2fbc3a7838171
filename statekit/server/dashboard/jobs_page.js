// The first page: all jobs that can be seen.

import { get, pause } from "./api.js";
import { html, useEffect, useState } from "./html.js";
import { link } from "./location.js";
import { sourceRecords, useJob, useLag } from "./job_store.js";
import { bytes, count, seconds } from "./format.js";
import { Sparkline } from "./charts.js";
import { Loading, Problem } from "./parts.js";

const REFRESH_MS = 3000;

export function useJobs(turn) {
  const [found, setFound] = useState({ jobs: null, error: null });
  useEffect(() => {
    const ends = new AbortController();
    (async () => {
      while (!ends.signal.aborted) {
        try {
          const jobs = await get(["jobs"], {}, ends.signal);
          setFound({ jobs, error: null });
        } catch (error) {
          if (ends.signal.aborted) return;
          setFound((before) => ({ ...before, error }));
        }
        await pause(REFRESH_MS);
      }
    })();
    return () => ends.abort();
  }, [turn]);
  return found;
}

export function JobsPage({ jobs, error }) {
  return html`<h1>Jobs</h1>
    <${Problem} error=${error} />
    ${jobs === null && !error && html`<${Loading} what="jobs" />`}
    <ul class="cards">${(jobs ?? []).map((job) => html`<${JobCard} key=${job.job} summary=${job} />`)}</ul>`;
}

function JobCard({ summary }) {
  const found = useJob(summary.job);
  const lag = useLag(found);
  const { job, epochs } = found;
  const states = job ? job.operators.flatMap((operator) => operator.states) : [];
  const sum = (name) => states.reduce((all, state) => all + state[name], 0);
  return html`<li class="card"><a href=${link(summary.job)}>
    <h2>${summary.job}</h2>
    <${Status} summary=${summary} />
    ${job && html`<${Sparkline} width=${220} height=${40} label="records of the last epochs" values=${epochs.map((each) => sourceRecords(each, job.operators))} />`}
    <dl>
      <div><dt>epoch</dt><dd>${count(summary.epoch)}</dd></div>
      <div><dt>began</dt><dd>${lag === null ? "–" : `${seconds(lag)} ago`}</dd></div>
      <div><dt>rows of state</dt><dd>${job ? count(sum("rows")) : "–"}</dd></div>
      <div><dt>bytes</dt><dd>${job ? bytes(sum("bytes")) : "–"}</dd></div>
    </dl>
  </a></li>`;
}

export function Status({ summary }) {
  const behind = (summary.latest_epoch ?? 0) - (summary.epoch ?? 0);
  if (summary.has_error) return html`<p class="status bad">cannot be followed: see the server's log</p>`;
  if (summary.is_rebuilding) return html`<p class="status wait">copies are being restored</p>`;
  if (summary.epoch === null) return html`<p class="status wait">no epoch yet</p>`;
  if (behind > 2) return html`<p class="status wait">${behind} epochs behind</p>`;
  return html`<p class="status good">up to date</p>`;
}
