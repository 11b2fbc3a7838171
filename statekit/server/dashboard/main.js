// The dashboard: the frame of all pages, and which page an address shows.

import { session } from "./api.js";
import { html, render, useEffect, useRef, useState } from "./html.js";
import { link, useLocation } from "./location.js";
import { JobsPage, useJobs } from "./jobs_page.js";
import { JobPage } from "./job_page.js";
import { OperatorPage } from "./operator_page.js";
import { StatePage } from "./state_page.js";
import { SqlPage } from "./sql_page.js";

const THEME = "statekit-theme";
const THEMES = ["auto", "light", "dark"];

function App() {
  const { parts, parameters } = useLocation();
  const [turn, setTurn] = useState(0);
  const found = useJobs(turn, parts.length === 0 || parts[0] === "sql");
  useEffect(() => {
    document.title = ["statekit", ...parts].join(" · ");
  }, [parts.join("/")]);
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${Header} parts=${parts} />
    <main id="main" tabindex="-1" key=${turn}><${Page} parts=${parts} parameters=${parameters} found=${found} /></main>
    <${TokenDialog} done=${() => setTurn((n) => n + 1)} />`;
}

const skip = (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
};

function Page({ parts, parameters, found }) {
  const [first, operator, state] = parts;
  if (first === undefined) return html`<${JobsPage} ...${found} />`;
  if (first === "sql") return html`<${SqlPage} jobs=${found.jobs} parameters=${parameters} />`;
  if (state !== undefined) return html`<${StatePage} key=${parts.join("/")} alias=${first} name=${operator} stateName=${state} parameters=${parameters} />`;
  if (operator !== undefined) return html`<${OperatorPage} key=${parts.join("/")} alias=${first} name=${operator} parameters=${parameters} />`;
  return html`<${JobPage} key=${first} alias=${first} />`;
}

function keptTheme() {
  const kept = localStorage.getItem(THEME);
  return THEMES.includes(kept) ? kept : "auto";
}

/** Show a theme, and keep it. */
function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem(THEME, theme);
  window.dispatchEvent(new Event("statekit-theme"));
}

function Header({ parts }) {
  const [theme, setTheme] = useState(keptTheme);
  const nextTheme = () => {
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    applyTheme(next);
    setTheme(next);
  };
  const isSql = parts[0] === "sql";
  return html`<header class="top">
    <a class="brand" href="#/"><img src="assets/logo.svg" alt="" width="26" height="26" />statekit</a>
    <nav aria-label="Pages">
      <a href="#/" aria-current=${isSql ? undefined : "true"}>Jobs</a>
      <a href=${link("sql", { job: isSql ? undefined : parts[0] })} aria-current=${isSql ? "true" : undefined}>SQL</a>
    </nav>
    <div class="choices">
      ${session.token && html`<button type="button" class="quiet" onClick=${() => { session.token = null; location.reload(); }}>Forget token</button>`}
      <button type="button" class="quiet" aria-label=${`Theme: ${theme}`} onClick=${nextTheme}>${{ auto: "◐ auto", light: "○ light", dark: "● dark" }[theme]}</button>
    </div>
  </header>`;
}

/** Asks for a token when the server needs one. It is kept for this tab alone. */
function TokenDialog({ done }) {
  const dialog = useRef(null);
  const [isWrong, setWrong] = useState(false);
  useEffect(() => {
    const ask = () => {
      setWrong(session.token !== null);
      if (!dialog.current.open) dialog.current.showModal();
    };
    window.addEventListener("statekit-token-needed", ask);
    return () => window.removeEventListener("statekit-token-needed", ask);
  }, []);
  const submit = (event) => {
    event.preventDefault();
    const token = new FormData(event.target).get("token").trim();
    if (!/^[\x21-\x7e]+$/.test(token)) {
      setWrong(true);
      return;
    }
    session.token = token;
    dialog.current.close();
    done();
  };
  return html`<dialog ref=${dialog} aria-labelledby="token-title"><form onSubmit=${submit}>
    <h2 id="token-title">This server needs a token</h2>
    ${isWrong && html`<p role="alert" class="problem">The server does not know this token.</p>`}
    <label><span>token</span><input name="token" type="password" required autocomplete="off" /></label>
    <p class="muted">It is kept in this tab until the tab is closed.</p>
    <button type="submit">Use it</button>
  </form></dialog>`;
}

applyTheme(keptTheme()); // before anything is drawn
render(html`<${App} />`, document.getElementById("app"));
