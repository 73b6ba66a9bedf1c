// Acting on gates: a question with a reason before each act. The version that the page was drawn from is sent with it, so that of two
// who press at once the second is told who was quicker.

import { ask, make, tellLater } from "./common.js";

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

/** Ask for a reason before something is done to a gate, or to a kind or ledger that is named in the dialog. */
function open(act, data) {
  asked = { act, ...data };
  form.reset();
  part("title").textContent = `${TITLES[act]} ${data.title}`;
  part("says").textContent = data.gate ? SAYS[act] : SAYS.kinds;
  part("confirm").textContent = BUTTONS[act] ?? `${TITLES[act]}${data.gate ? ` ${data.title}` : ""}`;
  part("problem").hidden = true;
  part("confirm").disabled = false;
  part("what").hidden = Boolean(data.gate);
  part("until").hidden = act !== "pause";
  part("limits").hidden = act !== "set";
  part("facts").replaceChildren(...facts(act, data));
  if (!data.gate) form.elements.ledger.value = data.ledger;
  if (act === "set") show(JSON.parse(data.limits));
  dialog.showModal();
  (data.gate ? part("reason") : part("kind")).focus();
}

function facts(act, { held, parked }) {
  const known = [];
  if (held !== undefined && act !== "resume") known.push(["Runs now", held]);
  if (parked !== undefined) known.push(["Parked", parked]);
  known.push(["Takes effect", "in every process within a second"]);
  return known.map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value })));
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
    given.ledger = elements.ledger.value;
    given.gate = elements.what.value === "ledger" ? "kind:*" : `kind:${elements.kind.value.trim()}`;
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
document.getElementById("gate-leave")?.addEventListener("click", () => dialog.close());
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button[data-gate-act]");
  if (button && dialog) open(button.dataset.gateAct, { ...button.dataset });
});
