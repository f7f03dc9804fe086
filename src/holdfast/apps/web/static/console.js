// What the pages of the console do besides what HTML does: the one-time code of the login, the word of
// how long ago something was, keys, copying, and the note that the daemon is away. Pages can be read
// without any of it.
"use strict";

(() => {
  const byId = (id) => document.getElementById(id);

  // --- the login: a code stands behind the # of the address, where no server sees it --------------
  const login = byId("login");
  if (login && location.hash.startsWith("#code=")) {
    const code = location.hash.slice(6);
    history.replaceState(null, "", location.pathname + location.search);
    login.elements.code.value = code;
    login.submit();
    return;
  }

  // --- the tab of this page is in sight, also on a phone -------------------------------------------
  const here = document.querySelector(".tabs a[aria-current]");
  if (here) here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.offsetLeft - 48;

  // --- times --------------------------------------------------------------------------------------
  const steps = [[60, "s"], [60, "min"], [24, "h"], [Infinity, "d"]];
  const ago = (ms) => {
    const passed = Math.trunc((Date.now() - ms) / 1000);
    if (Math.abs(passed) < 5) return "just now";
    let left = Math.abs(passed);
    for (const [size, unit] of steps) {
      if (left < size) return passed > 0 ? `${left} ${unit} ago` : `in ${left} ${unit}`;
      left = Math.trunc(left / size);
    }
    return "";
  };
  const tellTimes = () => {
    for (const one of document.querySelectorAll("time[data-ms]")) {
      const said = ago(Number(one.dataset.ms));
      if (one.textContent !== said) one.textContent = said;
    }
  };
  setInterval(tellTimes, 10000);

  // --- the connection -----------------------------------------------------------------------------
  const away = (is) => {
    const note = byId("away");
    if (note) note.hidden = !is;
    byId("alive")?.classList.toggle("good", !is);
    byId("alive")?.classList.toggle("bad", is);
  };
  let connected = false;
  document.addEventListener("htmx:sse:after:connection", () => { connected = true; away(false); });
  document.addEventListener("htmx:sse:after:message", () => { away(false); tellTimes(); offerCopies(); });
  document.addEventListener("htmx:sse:error", (event) => {
    const status = event.detail?.status ?? event.detail?.connection?.status;
    if (status === 401 || status === 403) location.reload();
    else away(true);
  });
  document.addEventListener("htmx:sse:close", (event) => {
    if (event.detail?.reason === "ended") away(true);
  });
  // What is connected goes on by itself. A page whose daemon has gone before that begins anew, and
  // tries that again if it is still here a while later.
  const again = (wait = 2000) => setTimeout(async () => {
    try {
      if ((await fetch(location.href, { cache: "no-store" })).ok) { location.reload(); again(15000); return; }
    } catch { /* still away */ }
    again();
  }, wait);
  document.addEventListener("htmx:error", (event) => {
    if (event.target.id !== "live" || connected) return;
    away(true);
    again();
  });
  document.addEventListener("gone", () => location.reload());

  // --- copying a command --------------------------------------------------------------------------
  const offerCopies = () => {
    if (!navigator.clipboard) return;
    for (const one of document.querySelectorAll("button.copy[hidden]")) one.hidden = false;
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button.copy");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  // --- sliders say where they stand ---------------------------------------------------------------
  document.addEventListener("input", (event) => {
    const slider = event.target;
    if (slider.type !== "range" || !slider.dataset.by) return;
    const said = document.querySelector(`output[for="${slider.id}"]`);
    if (!said) return;
    const number = Number(slider.value);
    const when = () => new Date(number).toISOString().replace(/\.\d+Z$/, "Z");
    if (slider.value === slider.max) said.textContent = "now";
    else said.textContent = slider.dataset.by === "time" ? when() : `${slider.dataset.by} ${number}`;
  });

  // --- keys ---------------------------------------------------------------------------------------
  let waiting = 0;
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input:not([type=checkbox]), textarea, select");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "?") {
      byId("keys")?.showModal();
      event.preventDefault();
    } else if (event.key === "/") {
      const search = document.querySelector("main input[type=search]");
      if (search) { search.focus(); event.preventDefault(); }
    } else if (event.key === "g") {
      waiting = Date.now();
    } else if (Date.now() - waiting < 1500) {
      waiting = 0;
      const link = document.querySelector(`a[data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
    }
  });

  tellTimes();
  offerCopies();
})();
