// The list of tasks: choosing some, all on the page or all that match; and looking through all of them for a text.

import { act } from "./acts.js";
import { ask, make, number, tasks, tell, when } from "./common.js";
import { place } from "./place.js";

const list = document.getElementById("list");
const LOOK_MS = 700;

// On a phone the list comes first: the form is opened by whoever needs it, and stays open where it has been filled in.
const filtering = document.querySelector("[data-folds]");
if (filtering && matchMedia("(max-width: 44rem)").matches && !("asked" in filtering.dataset)) filtering.open = false;

// --- choosing -----------------------------------------------------------------------------------------------------------

if (list) {
  const all = document.getElementById("tick-all");
  const matching = document.getElementById("matching");
  const everything = document.getElementById("everything");
  const chosen = document.getElementById("chosen");
  const ticks = () => [...list.querySelectorAll("input[name=task]")];
  const ticked = () => ticks().filter((tick) => tick.checked);
  const buttons = [...document.querySelectorAll("button[data-bulk]")];

  const show = () => {
    const amount = ticked().length;
    const whole = everything?.checked ?? false;
    chosen.textContent = whole ? "All that match are chosen" : amount ? `${tasks(amount)} chosen` : "None chosen";
    for (const button of buttons) button.disabled = !whole && amount === 0;
    for (const tick of ticks()) tick.disabled = whole;
    all.checked = amount > 0 && amount === ticks().length;
    all.indeterminate = amount > 0 && amount < ticks().length;
    all.disabled = whole;
    if (matching) matching.hidden = !(amount > 0 && amount === ticks().length) && !whole;
  };

  all?.addEventListener("change", () => {
    for (const tick of ticks()) tick.checked = all.checked;
    show();
  });
  list.addEventListener("change", show);
  everything?.addEventListener("change", show);
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const { bulk: name } = button.dataset;
      const filter = JSON.parse(list.dataset.filter);
      if (everything?.checked) act(name, JSON.parse(list.dataset.ledgers)[name].map((ledger) => ({ ledger, filter })), list.dataset.words);
      else act(name, byLedger(ticked()));
    });
  }
  if (all) show();
}

/** An act is on tasks of one ledger: what was chosen in a list of several becomes some acts. */
function byLedger(ticks) {
  const ids = new Map();
  for (const tick of ticks) ids.set(tick.dataset.ledger, [...(ids.get(tick.dataset.ledger) ?? []), JSON.parse(tick.value)]);
  return [...ids].map(([ledger, some]) => ({ ledger, ids: some }));
}

// --- looking for a text ---------------------------------------------------------------------------------------------------

const search = document.getElementById("search");
let running = null;

async function begin() {
  const { ledger, text, state } = Object.fromEntries(new FormData(search));
  if (!text.trim()) return;
  try {
    await stop();
    const { id } = await ask("/api/searches", { method: "POST", body: { text, ...(ledger ? { ledger } : {}), ...(state ? { state } : {}) } });
    running = id;
    document.getElementById("search-answer").hidden = false;
    await follow(id);
  } catch (error) {
    tell(error.message, { alarm: true });
  }
}

document.getElementById("search-stop")?.addEventListener("click", () => stop().catch((error) => tell(error.message, { alarm: true })));

async function stop() {
  const id = running;
  running = null;
  if (id !== null) await ask(`/api/searches/${encodeURIComponent(id)}`, { method: "DELETE" });
}

async function follow(id) {
  const bar = document.getElementById("search-bar");
  const said = document.getElementById("search-said");
  const stopper = document.getElementById("search-stop");
  stopper.hidden = false;
  while (running === id) {
    const now = await ask(`/api/searches/${encodeURIComponent(id)}`);
    if (running !== id) break;
    if (now.total) {
      bar.max = now.total;
      bar.value = now.looked_at;
    } else bar.removeAttribute("value");
    said.textContent = `${tasks(now.found)} found in ${number(now.looked_at)} looked at${now.state === "running" ? "…" : now.state === "failed" ? `: ${now.problem ?? "it failed"}.` : "."}${now.found > now.tasks.length ? ` The first ${number(now.tasks.length)} are shown.` : ""}`;
    show(now.tasks);
    if (now.state !== "running") {
      running = null;
      bar.max = 1;
      bar.value = 1;
      break;
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
  if (running === null) stopper.hidden = true;
}

function show(found) {
  document.getElementById("search-rows").replaceChildren(...found.map((task) => make("tr", {},
    make("th", { scope: "row", className: "lead" }, make("a", { className: "id", href: place(`/tasks/${encodeURIComponent(task.ledger)}/${encodeURIComponent(task.id)}`), textContent: task.id }), " ",
      make("span", { className: "key", textContent: task.key === String(task.id) ? "" : task.key })),
    make("td", { className: "kind", "data-name": "Kind" }, make("code", { textContent: task.kind })),
    make("td", { className: "side", "data-name": "State" }, make("span", { className: `state ${task.state}` }, make("span", { className: "dot", "aria-hidden": "true" }), task.state)),
    make("td", { "data-name": "Changed", textContent: task.updated_at ? when(task.updated_at) : "–" }),
    make("td", { className: "error full", "data-name": "Last error" }, make("span", { className: "clip", textContent: task.last_error ?? "–" })))));
}

if (search?.dataset.now !== undefined) begin(); // the address says what to look for
if (location.hash === "#text") {
  document.getElementById("text-search").open = true;
  document.getElementById("text").focus();
}
