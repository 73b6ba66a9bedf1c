// Acting on gates: a question with a reason before each act. The version that the page was drawn from is sent with it, so that of two
// who press at once the second is told who was quicker. Before a kind is paused the dialog says how much runs, waits and arrives: what
// the pages have counted already.

import { ask, make, number, tasks, tellLater } from "./common.js";

const TITLES = { pause: "Pause", resume: "Resume", set: "Limits of", unset: "Remove the limits of" };
const BUTTONS = { set: "Set limits", unset: "Remove limits" };
const SAYS = {
  pause: "Its tasks will be parked: not charged, not lost. Those running now finish.",
  resume: "Parked tasks go on from the next look, as its limits and its breaker allow.",
  set: "What a person sets stays, whatever code says. Empty is no limit.",
  unset: "A wider pattern holds then, or none; what code says comes back when it next starts.",
  kinds: "Running tasks finish, waiting ones stay, new ones are still accepted. Deadlines still hold.",
};

const dialog = document.getElementById("gate-act");
const form = dialog?.querySelector("form");
const part = (name) => document.getElementById(`gate-${name}`);
let asked = null;
let figures = null;

/** Ask for a reason before something is done to a gate, or to a kind or ledger that is named in the dialog. */
function open(act, data) {
  asked = { act, ...data };
  figures = null;
  form.reset();
  part("title").textContent = `${TITLES[act]} ${data.title}`;
  part("says").textContent = data.gate ? SAYS[act] : SAYS.kinds;
  part("problem").hidden = true;
  part("confirm").disabled = false;
  part("what").hidden = Boolean(data.gate);
  part("until").hidden = act !== "pause";
  part("limits").hidden = act !== "set";
  if (!data.gate) form.elements.ledger.value = data.ledger;
  say();
  if (act === "set") show(JSON.parse(data.limits));
  dialog.showModal();
  (data.gate ? part("reason") : part("kind")).focus();
}

/** Which pause or gate the open dialog is about; of a kind that nobody has named yet, nothing. */
function chosen() {
  if (asked.gate) return { ledger: asked.ledger, gate: asked.gate, title: asked.title };
  const { elements } = form;
  const ledger = elements.ledger.value;
  if (elements.what.value === "ledger") return { ledger, gate: "kind:*", title: ledger };
  const kind = elements.kind.value.trim();
  return { ledger, gate: `kind:${kind}`, title: kind };
}

/** What the act does to what is chosen, as far as it is known at once; of kinds the figures follow. */
function say() {
  const question = asked;
  const { act } = question;
  const about = chosen();
  part("confirm").textContent = BUTTONS[act] ?? `${TITLES[act]} ${about.title}`.trim();
  const ofKinds = act === "pause" && about.gate.startsWith("kind:");
  list(ofKinds ? [] : factsOfGate(question));
  if (!ofKinds || about.gate === "kind:") return;
  figures ??= Promise.all([ask("/api/status"), ask("/api/workers")]);
  figures.then(([{ kinds }, workers]) => {
    if (asked === question && chosen().gate === about.gate && chosen().ledger === about.ledger) list(factsOfKinds(about, kinds, workers));
  }, () => {}); // without them it can be paused as well
}

function list(known) {
  const all = [...known, ["Takes effect", "in every process within a second"]];
  part("facts").replaceChildren(...all.map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value }))));
}

function factsOfGate({ act, held, parked, kinds, eachMinute }) {
  const known = [];
  const names = JSON.parse(kinds ?? "[]");
  if (held !== undefined && act !== "resume") known.push(["Runs now", held === "0" ? "nothing" : `${tasks(Number(held))}${names.length === 1 ? ` of ${names[0]}` : ""}`]);
  if (act === "pause" && eachMinute !== undefined) known.push(["Will park", eachMinute === "0" ? "what comes; nothing has gone through in the last minute" : `about ${number(Number(eachMinute))} a minute`]);
  if (parked !== undefined) known.push(["Parked", parked]);
  return known;
}

/** What runs, waits and arrives of the kinds that a pause names. */
function factsOfKinds({ ledger, gate }, kinds, workers) {
  const name = gate.slice("kind:".length);
  const pattern = new RegExp(`^${name.split("*").map((text) => text.replace(/[\\^$.+?()[\]{}|]/g, "\\$&")).join(".*")}$`, "s");
  const fits = (kind) => pattern.test(kind);
  const found = kinds.filter((one) => one.ledger === ledger && fits(one.kind));
  const sum = (amounts) => amounts.reduce((all, amount) => all + amount, 0);
  const held = workers.filter(({ state }) => state === "working").flatMap(({ holds }) => Object.entries(holds[ledger] ?? {}));
  const runs = sum(held.filter(([kind]) => fits(kind)).map(([, amount]) => amount));
  const waiting = sum(found.map((one) => one.waiting + one.parked));
  const arrive = sum(found.map((one) => one.begun_a_minute));
  return [
    ["Runs now", runs ? `${tasks(runs)}; ${runs === 1 ? "it finishes" : "they finish"}` : "nothing"],
    ["Waits", waiting ? `${number(waiting)}${found.some((one) => one.waiting_more) ? "+" : ""} ${waiting === 1 ? "task" : "tasks"}; not charged, not lost` : "nothing"],
    ["Arrives", arrive ? `about ${number(arrive)} a minute; accepted, and kept waiting` : found.length ? "less than one a minute; accepted, and kept waiting" : "not tried in the last hour"],
  ];
}

function show({ concurrency, rate, burst, breaker, budget }) {
  const values = { concurrency, rate, burst, failures: breaker?.failures, within: breaker?.within_seconds, probe: breaker?.probe_seconds, budget };
  for (const [name, value] of Object.entries(values)) form.elements[name].value = value ?? "";
}

function body() {
  const { elements } = form;
  const given = { ledger: asked.ledger, gate: asked.gate, reason: elements.reason.value.trim() };
  if (asked.version) given.version = Number(asked.version);
  if (!asked.gate) {
    ({ ledger: given.ledger, gate: given.gate } = chosen());
    if (given.gate === "kind:") throw new Error("Say which kind, or choose the whole ledger.");
  }
  if (!given.reason) throw new Error("Say why: the reason is shown beside the gate and kept.");
  if (asked.act === "pause" && elements.until.value === "span") given.span = elements.span.value;
  if (asked.act === "unset") return { ...given, unset: true };
  return asked.act === "set" ? { ...given, ...limits(elements) } : given;
}

function limits(elements) {
  const number = (name) => {
    const text = elements[name].value.trim();
    if (text && !Number.isFinite(Number(text))) throw new Error(`${text} is not a number.`);
    return text ? Number(text) : null;
  };
  const before = JSON.parse(asked.limits);
  const failures = number("failures");
  const breaker = failures === null ? null : { ...(before.breaker?.share ? { share: before.breaker.share } : {}), failures, within: number("within") ?? 60, probe: number("probe") ?? 30 };
  return { concurrency: number("concurrency"), rate: elements.rate.value.trim() || null, burst: number("burst"), breaker, budget: number("budget") };
}

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { act } = asked;
  try {
    const given = body();
    part("confirm").disabled = true;
    const { changed } = await ask(`/api/gates/${act === "unset" ? "set" : act}`, { method: "POST", body: given });
    const said = { pause: "is paused", resume: "is resumed", set: "has new limits", unset: "has no limits of its own any more" }[act];
    tellLater(changed ? `${given.gate} ${said}.` : "Nothing changed: it was so already.");
    location.reload();
  } catch (error) {
    part("confirm").disabled = false;
    part("problem").textContent = error.message;
    part("problem").hidden = false;
  }
});
part("what")?.addEventListener("input", say);
document.getElementById("gate-leave")?.addEventListener("click", () => dialog.close());
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button[data-gate-act]");
  if (button && dialog) open(button.dataset.gateAct, { ...button.dataset });
});
