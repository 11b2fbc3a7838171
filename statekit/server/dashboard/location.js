// Permalinks: every view has an address after the #, so that no key reaches the server's log.

import { useEffect, useState } from "./html.js";

/** Return the address of a view: names, then parameters. */
export function link(...parts) {
  const parameters = typeof parts.at(-1) === "object" ? parts.pop() : {};
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(given).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${query ? `?${query}` : ""}`;
}

export function current() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = path ? path.split("/").map(decoded) : [];
  return { parts, parameters: Object.fromEntries(new URLSearchParams(query)) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function useLocation() {
  const [found, setFound] = useState(current);
  useEffect(() => {
    const changed = () => setFound(current());
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return found;
}

/** Show another view, as a step that Back takes back. */
export function open(...parts) {
  location.hash = link(...parts);
}

/** Change the address of the view that is shown, without a new entry in the history. */
export function replace(...parts) {
  history.replaceState(null, "", link(...parts));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}
