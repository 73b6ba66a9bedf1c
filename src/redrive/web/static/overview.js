// The overview: asks the API every five seconds while somebody looks, and draws what it says.

import { address, ask, make, number, span, when } from "./common.js";
import * as charts from "./charts.js";

const EVERY_MS = 5000;
const LATE_MS = 60000;
const ALERTS_MAX = 200;
const WIDGETS = ["states", "flow", "success", "tries", "took", "dead", "depth", "oldest"];

const controls = document.getElementById("controls");
const live = document.getElementById("live");
let drawn = null;
let timer = null;
let asked = 0;

const chosen = () => Object.fromEntries(new FormData(controls));

async function refresh() {
  clearTimeout(timer);
  const mine = ++asked;
  const { ledger, range } = chosen();
  try {
    const [overview, series, day, groups, alerts] = await Promise.all([
      ask(address("/api/overview", { ledger, range })),
      ask(address("/api/series", { ledger, range })),
      range === "24h" ? null : ask(address("/api/series", { ledger, range: "24h" })),
      ask(address("/api/groups", { ledger })),
      ask("/api/alerts"),
    ]);
    if (mine !== asked) return; // the reader has chosen something else meanwhile
    drawn = { overview, series, day: day ?? series, groups, alerts };
    await show();
    say(`live, every ${EVERY_MS / 1000} s; times are UTC`, "");
    document.body.dataset.refreshed = String(Number(document.body.dataset.refreshed ?? 0) + 1);
  } catch (error) {
    if (mine !== asked) return;
    if (error.status === 401) location.reload();
    say(`${error.message}; trying again`, "late");
  }
  timer = setTimeout(next, EVERY_MS);
}

function next() {
  if (document.hidden) timer = setTimeout(next, EVERY_MS);
  else refresh();
}

function say(sentence, mood) {
  if (live.textContent !== sentence) live.textContent = sentence;
  live.className = `live ${mood}`;
}

async function show() {
  tiles(drawn.overview);
  held(drawn.overview.gates);
  wrong(drawn.alerts);
  causes(drawn.groups);
  lanes(drawn.overview);
  for (const name of WIDGETS) await charts.draw(document.getElementById(`chart-${name}`), charts[name](drawn));
}

/** Where a tile leads: to the tasks of the chosen ledger; of all, to the groups or to where most of them are. */
function place(state, all) {
  const { ledger } = chosen();
  if (!ledger && state === "dead") return "/dead";
  const most = all.reduce((one, other) => (other.states[state] > one.states[state] ? other : one), all[0]);
  return address("/tasks", { ledger: ledger || most?.ledger, state });
}

function tiles({ states, words, counted_at: counted, by_ledger: all }) {
  for (const [state, amount] of Object.entries(states)) {
    const tile = document.getElementById(`tile-${state}`);
    tile.hidden = !(state in words);
    tile.querySelector("a").textContent = words[state] ?? state;
    tile.classList.toggle("none", !amount);
    tile.querySelector("[data-amount]").textContent = number(amount);
    tile.querySelector("a").href = place(state, all);
  }
  const age = counted ? (Date.now() - Date.parse(counted)) : null;
  const note = document.getElementById("counted");
  note.textContent = age !== null && age > LATE_MS ? `counted ${when(counted)}, and what has changed since` : "";
}

function held(gates) {
  document.getElementById("held").hidden = !gates.length;
  document.getElementById("held-gates").replaceChildren(...gates.map((gate) => make("li", {},
    make("span", { className: "amount", textContent: gate.parked === null ? "–" : number(gate.parked) + (gate.parked_more ? "+" : "") }),
    make("a", { className: "text", href: address("/gates", { ledger: gate.ledger, prefix: gate.name }), textContent: `${gate.title} is ${gate.does}` }),
    make("span", { className: "quiet small why", textContent: gate.why }))));
}

function wrong(alerts) {
  document.getElementById("wrong").hidden = !alerts.length;
  document.getElementById("alerts").replaceChildren(...alerts.slice(0, ALERTS_MAX).map((alert) => make("li", {},
    make("span", { className: "dot dead", "aria-hidden": "true" }),
    make("span", { className: "text", textContent: alert.text }),
    make("span", { className: "quiet small", textContent: `began ${when(alert.started_at)}` }))));
}

function causes(groups) {
  const section = document.getElementById("broken");
  section.hidden = !groups.length;
  document.getElementById("causes").replaceChildren(...groups.slice(0, 5).map((group) => make("li", {},
    make("span", { className: "amount", textContent: number(group.amount) }),
    make("a", { className: "text", href: address("/tasks", { ledger: group.ledger, state: "dead", cause: group.cause }), textContent: group.text }),
    make("span", { className: "quiet small", textContent: `first ${when(group.first_seen)}, last ${when(group.last_seen)}` }))));
}

function lanes({ by_ledger: all }) {
  const body = document.querySelector("#lanes tbody");
  body.replaceChildren(...all.map((one) => make("tr", {},
    make("th", { scope: "row", "data-name": "Ledger" }, make("a", { className: "mono", href: address("/tasks", { ledger: one.ledger }), textContent: one.ledger })),
    make("td", { "data-name": "System", textContent: (one.system ?? "–") + (one.of === "tasks" ? "" : `, in ${one.of}`) }),
    ...["dead", "waiting", "claimed", "done", "cancelled"].map((state) => make("td", { className: "number", "data-name": state, textContent: number(one.states[state] ?? 0) })),
    make("td", { className: "number", "data-name": "oldest due", textContent: one.oldest_due_seconds ? span(one.oldest_due_seconds) : "–" }))));
  const missing = all.flatMap((one) => one.without_handler.map((kind) => `${kind}`));
  const note = document.getElementById("missing");
  note.hidden = !missing.length || note.dataset.handlers === "none";
  document.getElementById("missing-kinds").textContent = missing.slice(0, 20).join(", ") + (missing.length > 20 ? " and more" : "");
}

controls.addEventListener("change", () => {
  history.replaceState(null, "", address("/", chosen()));
  refresh();
});
controls.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("themechange", () => drawn && show());
document.addEventListener("visibilitychange", () => document.hidden || refresh());
for (const details of document.querySelectorAll(".chart details")) details.addEventListener("toggle", () => details.open && charts.fill(details));
refresh();
