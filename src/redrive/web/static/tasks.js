// The list of tasks: choosing some, all on the page or all that match; and looking through all of them for a text.

import { act } from "./acts.js";
import { address, ask, make, number, tasks, tell, when } from "./common.js";

const list = document.getElementById("list");
const LOOK_MS = 700;

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
      const { ledger } = list.dataset;
      const filter = JSON.parse(list.dataset.filter);
      const ids = ticked().map((tick) => JSON.parse(tick.value));
      if (everything?.checked) act(button.dataset.bulk, { ledger, filter }, list.dataset.words);
      else act(button.dataset.bulk, { ledger, ids });
    });
  }
  if (all) show();
}

// --- looking for a text ---------------------------------------------------------------------------------------------------

const search = document.getElementById("search");
let running = null;

search?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { ledger, text, state } = Object.fromEntries(new FormData(search));
  if (!text.trim()) return;
  try {
    await stop();
    const { id } = await ask("/api/searches", { method: "POST", body: { ledger, text, ...(state ? { state } : {}) } });
    running = id;
    document.getElementById("search-answer").hidden = false;
    await follow(id, ledger);
  } catch (error) {
    tell(error.message, { alarm: true });
  }
});
document.getElementById("search-stop")?.addEventListener("click", () => stop().catch((error) => tell(error.message, { alarm: true })));

async function stop() {
  const id = running;
  running = null;
  if (id !== null) await ask(`/api/searches/${encodeURIComponent(id)}`, { method: "DELETE" });
}

async function follow(id, ledger) {
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
    show(now.tasks, ledger);
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

function show(found, ledger) {
  document.getElementById("search-rows").replaceChildren(...found.map((task) => make("tr", {},
    make("th", { scope: "row", "data-name": "Task" }, make("a", { className: "id", href: address(`/tasks/${encodeURIComponent(ledger)}/${encodeURIComponent(task.id)}`, {}), textContent: task.id }),
      make("span", { className: "key", textContent: task.key === String(task.id) ? "" : task.key })),
    make("td", { className: "kind", "data-name": "Kind" }, make("code", { textContent: task.kind })),
    make("td", { "data-name": "State" }, make("span", { className: `state ${task.state}` }, make("span", { className: "dot", "aria-hidden": "true" }), task.state)),
    make("td", { "data-name": "Changed", textContent: task.updated_at ? when(task.updated_at) : "–" }),
    make("td", { className: "error", "data-name": "Last error" }, make("span", { className: "clip", textContent: task.last_error ?? "–" })))));
}
