// What all pages share: asking the API, telling the reader, and the theme; times are in `times.js`, keys in `keys.js`.
// Data from tasks is only ever set as text: `make` and `textContent`, never as markup.

import { setUpKeys } from "./keys.js";
import { place } from "./place.js";
import { keepTimes, setUpZone } from "./times.js";

export { span, when } from "./times.js";

const CSRF = document.querySelector('meta[name="csrf-token"]')?.content ?? "";
const ANSWER_WITHIN_MS = 15000;

/** The JSON answer of the API, or an Error with its sentence. */
export async function ask(path, { method = "GET", body, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-CSRF-Token"] = CSRF;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const given = signal ?? AbortSignal.timeout(ANSWER_WITHIN_MS);
  let answer;
  try {
    answer = await fetch(place(path), { method, headers, signal: given, credentials: "same-origin", body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    throw new Error(error.name === "TimeoutError" ? "the service does not answer" : "the service cannot be reached", { cause: error });
  }
  const text = await answer.text();
  let said = null;
  try {
    said = text ? JSON.parse(text) : null;
  } catch { /* not ours: a proxy, perhaps */ }
  if (answer.ok) return said;
  const refused = new Error(said?.error?.message ?? `the service answered ${answer.status}`);
  refused.status = answer.status;
  throw refused;
}

/** `/api/x?…` without the parameters that are empty. */
export function address(path, parameters) {
  const kept = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return kept.length ? `${path}?${new URLSearchParams(kept)}` : path;
}

/** An element with properties and children; text stays text. */
export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

const WHOLE = new Intl.NumberFormat("en");
/** 12,345 */
export const number = (amount) => WHOLE.format(amount);

/** One or many. */
export const tasks = (amount) => `${number(amount)} ${amount === 1 ? "task" : "tasks"}`;

/** A short note at the edge of the page, read out by screen readers. */
export function tell(sentence, { alarm = false } = {}) {
  const notes = document.getElementById("told");
  const note = make("p", { className: alarm ? "alarm" : "", textContent: sentence });
  notes.append(note);
  setTimeout(() => note.remove(), alarm ? 12000 : 6000);
}

/** A note that is shown on the page that is loaded next. */
export function tellLater(sentence) {
  sessionStorage.setItem("redrive-told", sentence);
}

// --- on every page ----------------------------------------------------------------------------------------------------

const THEMES = ["system", "light", "dark"];

function setUpTheme() {
  const button = document.getElementById("theme");
  if (!button) return;
  const current = () => document.documentElement.dataset.theme ?? "system";
  const show = () => {
    button.setAttribute("aria-label", `Theme: ${current()}. Change it`);
    button.title = `Theme: ${current()}`;
  };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(current()) + 1) % THEMES.length];
    if (next === "system") {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem("redrive-theme");
    } else {
      document.documentElement.dataset.theme = next;
      localStorage.setItem("redrive-theme", next);
    }
    show();
  });
  button.hidden = false;
  show();
}

/** What the page before had to say. */
function tellNow() {
  const told = sessionStorage.getItem("redrive-told");
  if (!told) return;
  sessionStorage.removeItem("redrive-told");
  tell(told);
}

// A choice that leads elsewhere needs no button.
document.addEventListener("change", (event) => {
  if (event.target.matches?.("select[data-goes]")) event.target.form.requestSubmit();
});

setUpTheme();
setUpZone();
setUpKeys();
setInterval(keepTimes, 5000);
// When all scripts of this page have run: who reads it may press the next button, and that one must work.
document.addEventListener("DOMContentLoaded", tellNow);
