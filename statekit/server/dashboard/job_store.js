// What a job is doing, followed while it is shown: its description and its last epochs.

import { get, pause, whileVisible } from "./api.js";
import { millis } from "./format.js";
import { useEffect, useState } from "./html.js";

const EPOCHS = 120;
const WAIT_S = 15;
const RETRY_MS = 2000;
const BETWEEN_MS = 400;

const EMPTY = { job: null, epochs: [], error: null, receivedMs: 0 };

/** Return the description, the last epochs and the last error of a job. */
export function useJob(alias) {
  const [found, setFound] = useState(EMPTY);
  useEffect(() => {
    const ends = new AbortController();
    setFound(EMPTY);
    const known = { epochs: [], last: undefined };
    whileVisible(ends.signal, (signal) => follow(alias, known, signal, setFound));
    return () => ends.abort();
  }, [alias]);
  return found;
}

async function follow(alias, known, signal, setFound) {
  let isLost = true; // the first answer comes at once
  while (!signal.aborted) {
    try {
      const wait = known.last === undefined ? {} : { after: known.last, manifest: known.manifest, wait: isLost ? 0 : WAIT_S };
      const news = await get([alias, "epochs"], { limit: EPOCHS, ...wait }, signal);
      known.epochs = [...(news.is_continued ? known.epochs : []), ...news.value].slice(-EPOCHS);
      known.last = news.epoch;
      known.manifest = news.manifest;
      isLost = false;
      const job = await get([alias], {}, signal);
      if (!signal.aborted) setFound({ job: withQuietTime(job, known.epochs), epochs: known.epochs, error: null, receivedMs: performance.now() });
      await pause(BETWEEN_MS);
    } catch (error) {
      if (signal.aborted) return;
      isLost = true;
      setFound((before) => ({ ...before, error }));
      await pause(RETRY_MS);
    }
  }
}

const QUIET_MIN_S = 120;
const QUIET_UNKNOWN_S = 300;
const QUIET_INTERVALS = 10;
export const RATE_EPOCHS = 10;
export const ENDS = "9999";

export const committed = (epoch) => millis(epoch.committed_at) / 1000;

/** Return the mean time between the last epochs in seconds; null if there is one alone. */
export function intervalOf(epochs) {
  const recent = epochs.slice(-RATE_EPOCHS);
  return recent.length > 1 ? (committed(recent.at(-1)) - committed(recent[0])) / (recent.length - 1) : null;
}

/** Return a job with `quietAfterS`: for how long it may have no epoch before pages say so. After the
 * end of event time no epoch follows. */
export function withQuietTime(job, epochs) {
  const marks = job.operators.map((each) => each.watermark).filter(Boolean);
  const hasEnded = marks.length > 0 && marks.every((mark) => mark.startsWith(ENDS));
  const interval = intervalOf(epochs);
  const usual = interval === null ? QUIET_UNKNOWN_S : Math.max(QUIET_MIN_S, QUIET_INTERVALS * interval);
  return { ...job, quietAfterS: hasEnded ? Infinity : usual };
}

/** Return for how many seconds a job has had no epoch; null if that is not unusual. */
export function useQuiet(found) {
  const lag = useLag(found);
  return found.job && lag > found.job.quietAfterS ? lag : null;
}

/** Return the seconds since the last epoch began, counted on while nothing new arrives. */
export function useLag(found) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 500);
    return () => clearInterval(timer);
  }, []);
  return found.job ? found.job.lag_ms / 1000 + (performance.now() - found.receivedMs) / 1000 : null;
}

/** Return the sum of a number over all operators of an epoch; null without an epoch. Rows and bytes
 * are those of states, timers and buffered records. */
export const sumOf = (epoch, name) => (epoch ? Object.values(epoch.operators).reduce((all, own) => all + own[name], 0) : null);

/** Return the records that each epoch read from sources. */
export function sourceRecords(epoch, operators) {
  const names = new Set(operators.map((each) => each.operator));
  const bySource = {};
  for (const own of Object.values(epoch.operators))
    for (const [stream, records] of Object.entries(own.records_by_input))
      if (!names.has(stream) && !stream.endsWith(".late"))
        bySource[stream] = Math.max(bySource[stream] ?? 0, records);
  return Object.values(bySource).reduce((all, own) => all + own, 0);
}
