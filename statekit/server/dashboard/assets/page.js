// The live parts of the pages. Without it, all pages but the live view work, and show one moment.
//
// When an epoch is committed, the server answers with the same page again. The nodes of the page
// are changed in place, so that focus, selection, scroll positions and typed text stay.
"use strict";
(() => {
  const THEMES = ["auto", "light", "dark"], RETRY_MS = 2000, CHANGES_SHOWN = 200;
  const byId = (id) => document.getElementById(id);
  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  let asking = new AbortController(); // ends the request for news
  let pointed = null; // the chart under the pointer, and how to show its values again

  const keptTheme = () => THEMES.find((each) => each === localStorage.getItem("statekit-theme")) ?? "auto";

  function showTheme() {
    const theme = keptTheme(), button = byId("theme");
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    if (!button) return;
    const text = { auto: "◐ auto", light: "○ light", dark: "● dark" }[theme];
    Object.assign(button, { hidden: false, ariaLabel: `Theme: ${theme}`, textContent: text });
  }

  /** Make a node like another one. Typed text, and parts that load themselves, stay. */
  function become(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    if (old.matches("[data-kept], noscript, textarea, select, input:not([type=range])")) return;
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes)
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    if (old.type === "range" && old !== document.activeElement) old.value = fresh.getAttribute("value");
    becomeInside(old, fresh);
  }

  /** Make the inside of a node like that of another one. Nodes with an id are found by it. */
  function becomeInside(old, fresh) {
    const isAlike = (a, b) => a.nodeName === b.nodeName && (a.id ?? "") === (b.id ?? "");
    let at = old.firstChild;
    const removeUntil = (end) => {
      while (at !== end) [at] = [at.nextSibling, at.remove()];
    };
    for (const child of [...fresh.childNodes]) {
      let same = at;
      while (same && !isAlike(same, child)) same = child.id ? same.nextSibling : null;
      if (!same) old.insertBefore(document.importNode(child, true), at);
      else {
        removeUntil(same);
        at = same.nextSibling;
        become(same, child);
      }
    }
    removeUntil(null);
  }

  /** Return a page and its address. Throws if the server has none now. */
  async function get(url, options) {
    const response = await fetch(url, options);
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    if (response.status === 401) location.reload();
    if ([401, 429].includes(response.status) || response.status >= 500)
      throw new Error(fresh.querySelector("main [role=alert]")?.textContent ?? "The server cannot answer now.");
    return { fresh, url: response.url };
  }

  function show({ fresh }) {
    become(byId("main"), fresh.getElementById("main"));
    started();
    report(null);
  }

  function report(error) {
    const text = error instanceof TypeError ? "The server cannot be reached." : error?.message ?? "";
    if (byId("lost").textContent !== text) Object.assign(byId("lost"), { textContent: text, hidden: !text });
  }

  /** Show another address on this page, in place of its own. */
  async function go(url) {
    asking.abort();
    const own = (asking = new AbortController());
    own.isMove = true;
    try {
      const found = await get(url, { signal: own.signal });
      history.replaceState(null, "", found.url);
      show(found);
    } catch (error) {
      if (!own.signal.aborted) report(error);
    }
    own.isMove = false;
  }

  /** Load a part of the page that takes its time. */
  async function loadPart(part, url) {
    part.ariaBusy = "true";
    try {
      becomeInside(part, (await get(url)).fresh.getElementById(part.id));
    } catch (error) {
      report(error);
    }
    part.ariaBusy = null;
  }

  /** Ask for the page again and again. The server answers once it has a new epoch, or after a while. */
  async function follow() {
    while (byId("main").dataset.known) {
      const { known, shown, pause: betweenMs } = byId("main").dataset;
      await pause(+betweenMs);
      if (document.hidden || asking.isMove) continue;
      const own = (asking = new AbortController()), isLost = !byId("lost").hidden;
      const headers = isLost ? {} : { "Statekit-Known": known }; // once it is back, it answers at once
      if (!isLost && shown) headers["Statekit-Shown"] = shown;
      try {
        const found = await get(location.href.split("#")[0], { headers, signal: own.signal });
        if (own === asking && !own.signal.aborted) show(found);
      } catch (error) {
        if (own.signal.aborted) continue;
        report(error);
        await pause(RETRY_MS);
      }
    }
  }

  /** Live changes: add those of each epoch to a table. A hidden page has no connection. */
  function watch(part) {
    const status = byId("watching"), button = byId("pause"), rows = part.querySelector("tbody");
    let source = null, last = "", isOn = true;
    const say = (text, kind) => Object.assign(status, { textContent: text, className: `status ${kind}` });
    const added = (event) => {
      const news = JSON.parse(event.data);
      last = event.lastEventId;
      say(news.status, "good");
      rows.insertAdjacentHTML("afterbegin", news.rows);
      while (rows.rows.length > CHANGES_SHOWN) rows.lastElementChild.remove();
      part.querySelector(".scroll").hidden = !rows.rows.length;
      byId("no-change").hidden = rows.rows.length > 0;
    };
    const open = () => {
      source?.close();
      say(isOn ? "connecting" : "paused", "wait");
      if (!isOn || document.hidden) return;
      const url = new URL(part.dataset.stream, location);
      if (last) url.searchParams.set("after", last);
      const own = (source = new EventSource(url));
      own.addEventListener("epoch", added);
      own.onerror = () => {
        say("connecting", "bad");
        if (own.readyState === EventSource.CLOSED) setTimeout(() => own === source && open(), RETRY_MS);
      };
    };
    button.hidden = false;
    button.onclick = () => {
      isOn = !isOn;
      button.textContent = isOn ? "Pause" : "Continue";
      open();
    };
    document.addEventListener("visibilitychange", open);
    open();
  }

  /** Show the values under the pointer, and the last ones in a chart that it has left. */
  function point(event) {
    const figure = event.target.closest?.("figure[data-x], figure[data-rows]");
    const showOf = (own) => (own.dataset.rows ? pointCell : pointLine);
    if (pointed && pointed.figure !== figure) showOf(pointed.figure)(pointed.figure, null);
    pointed = figure && { figure, again: () => showOf(figure)(figure, event.clientX, event.clientY) };
    pointed?.again();
  }

  function pointLine(figure, x) {
    const area = figure.querySelector(".area"), box = area.getBoundingClientRect(), isTime = "time" in figure.dataset;
    let sum = 0, step = 0; // an empty step is like the one before
    const at = figure.dataset.x.split("|").map((text) => (isTime ? (sum += step = text === "" ? step : +text) : +text));
    const places = at.map((own) => (own - at[0]) / (at.at(-1) - at[0] || 1));
    const distances = places.map((place) => Math.abs(place - (x === null ? 1 : (x - box.left) / box.width)));
    const near = distances.lastIndexOf(Math.min(...distances)), line = area.querySelector(".cursor");
    line.classList.toggle("shown", x !== null);
    for (const name of ["x1", "x2"]) line.setAttribute(name, `${100 * places[near]}%`);
    const time = isTime ? new Date(at[near]).toISOString().slice(0, 19).replace("T", " ") : at[near];
    const texts = [...figure.querySelectorAll("[data-texts]")].map((own) => own.dataset.texts.split("|")[near]);
    figure.querySelectorAll(".legend b").forEach((own, n) => { own.textContent = [time, ...texts][n]; });
  }

  function pointCell(figure, x, y) {
    const svg = figure.querySelector("svg"), box = svg.getBoundingClientRect(), { cell, per, mean, rows } = figure.dataset;
    const side = (cell * box.width) / svg.viewBox.baseVal.width, columns = Math.round(box.width / side);
    const [column, line] = [x - box.left, y - box.top].map((own) => Math.floor(own / side));
    const place = line * columns + column, own = rows.split(",")[place];
    const isInside = x !== null && column >= 0 && column < columns && own !== undefined;
    const name = per > 1 ? `Key groups ${place * per} to ${(place + 1) * per - 1}` : `Key group ${place}`;
    const text = ` ${name}: ${(+own).toLocaleString("en")} rows, ${(own / (mean * per)).toFixed(2)} times the mean.`;
    figure.querySelector("output").textContent = isInside ? text : "";
  }

  function clicked(event) {
    const link = event.target.closest?.("a[data-soft], a[data-part]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    if (!link.dataset.part) return void go(link.href);
    history.replaceState(null, "", link.href);
    loadPart(byId(link.dataset.part), `${link.href}&count=1`);
  }

  function moved({ type, target: slider }) {
    if (slider.type !== "range") return;
    slider.form.querySelector("output").textContent = (+slider.value).toLocaleString("en");
    const given = new URLSearchParams(new FormData(slider.form));
    if (slider.value === slider.max) given.delete("epoch");
    if (type === "change") go(`?${given}`);
  }

  function query(form) {
    const stop = byId("stop"), run = (isOn) => Object.assign(stop, { hidden: !isOn });
    form.onkeydown = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && form.requestSubmit();
    form.onsubmit = () => run(true);
    form.elements.job.onchange = ({ target }) => location.replace(`?${new URLSearchParams({ job: target.value })}`);
    stop.onclick = () => run(window.stop());
    window.onpageshow = () => run(false);
  }

  /** Start what a new part of the page has: parts that load themselves, and the address of the server. */
  function started() {
    for (const part of document.querySelectorAll("[data-load]")) {
      loadPart(part, part.dataset.load);
      part.removeAttribute("data-load");
    }
    const base = new URL("..", document.querySelector(".brand").href).href;
    for (const own of document.querySelectorAll("[data-base]")) own.textContent = base;
    if (pointed?.figure.isConnected) pointed.again();
  }

  showTheme(); // before anything is drawn
  document.addEventListener("DOMContentLoaded", () => {
    showTheme();
    byId("theme").onclick = () => {
      localStorage.setItem("statekit-theme", THEMES[(THEMES.indexOf(keptTheme()) + 1) % THEMES.length]);
      showTheme();
    };
    started();
    document.querySelectorAll("[data-stream]").forEach(watch);
    document.querySelectorAll("form[data-query]").forEach(query);
    document.onclick = clicked;
    document.onchange = document.oninput = moved;
    document.onpointermove = point;
    document.addEventListener("visibilitychange", () => document.hidden && !asking.isMove && asking.abort());
    follow();
  });
})();
