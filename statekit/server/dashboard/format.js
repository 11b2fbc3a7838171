// Numbers, sizes and times as people read them.

const counts = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? "–" : counts.format(value));

export function shortCount(value) {
  if (Math.abs(value) >= 10_000) return short.format(value);
  return Math.abs(value) < 10 && !Number.isInteger(value) ? String(Number(value.toPrecision(3))) : counts.format(Math.round(value));
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let step = 0;
  while (Math.abs(value) >= 999.5 && step < units.length - 1) {
    value /= 1000;
    step += 1;
  }
  return `${value >= 100 || step === 0 ? Math.round(value) : value.toFixed(1)} ${units[step]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0) return `−${seconds(-value)}`;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  value = Math.round(value);
  if (value < 60) return `${value} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${value % 60} s`;
  if (value < 172_800) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  const days = value / 86_400;
  return days < 730 ? `${Math.round(days)} days` : `${(days / 365.25).toFixed(1)} years`;
}

/** An instant in UTC, with seconds. */
export function time(text) {
  if (!text) return "–";
  return text.slice(0, 19).replace("T", " ");
}

export const millis = (text) => Date.parse(text.replace(/(\.\d{3})\d+/, "$1"));
