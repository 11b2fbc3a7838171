// Numbers, sizes and times as people read them.

const counts = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? "–" : counts.format(value));

export function shortCount(value) {
  return Math.abs(value) < 10_000 ? counts.format(+value.toFixed(value < 10 ? 1 : 0)) : short.format(value);
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
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  if (value < 172_800) return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
  const days = value / 86_400;
  return days < 730 ? `${Math.round(days)} days` : `${(days / 365.25).toFixed(1)} years`;
}

/** An instant in UTC, with seconds. */
export function time(text) {
  if (!text) return "–";
  return text.slice(0, 19).replace("T", " ");
}

export const millis = (text) => Date.parse(text.replace(/(\.\d{3})\d+/, "$1"));
