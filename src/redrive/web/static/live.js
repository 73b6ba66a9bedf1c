// Staying fresh: the same page again every five seconds, drawn and escaped by the service as this one was; its parts take the
// place of those that are shown. Nothing is asked while nobody looks or a question is open.
// A stream of events would cost a connection and a timer for everyone who looks; this costs one answer, which the service makes
// once a second however many ask.

import { tell } from "./common.js";
import { showTimes } from "./times.js";

const EVERY_MS = 3000;
const parts = () => [...document.querySelectorAll("[data-fresh]")];
let timer = null;

async function refresh() {
  clearTimeout(timer);
  if (!document.hidden && !document.querySelector("dialog[open]")) {
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin", signal: AbortSignal.timeout(3 * EVERY_MS) });
      if (answer.redirected) location.reload();
      if (!answer.ok) throw new Error("the service does not answer");
      show(new DOMParser().parseFromString(await answer.text(), "text/html"));
      document.body.dataset.refreshed = String(Number(document.body.dataset.refreshed ?? 0) + 1);
    } catch {
      late();
    }
  }
  timer = setTimeout(refresh, EVERY_MS);
}

function show(fresh) {
  if (document.querySelector("dialog[open]")) return; // it was opened meanwhile, and is about what is shown
  const focused = pathOf(document.activeElement);
  for (const part of parts()) {
    const next = fresh.getElementById(part.id);
    if (!next) continue;
    const opened = [...part.querySelectorAll("details")].map((one) => one.open);
    part.replaceWith(document.adoptNode(next));
    [...next.querySelectorAll("details")].forEach((one, at) => { one.open = opened[at] ?? one.open; });
    showTimes(next);
  }
  if (fresh.title) document.title = fresh.title;
  focused?.()?.focus();
}

/** How to find again what had the focus, if it stands in a part that is drawn anew. */
function pathOf(element) {
  const part = element?.closest?.("[data-fresh]");
  if (!part) return null;
  const alike = (root) => [...root.querySelectorAll(element.tagName)];
  const same = (one) => one.textContent === element.textContent && one.getAttribute("href") === element.getAttribute("href");
  const at = alike(part).filter(same).indexOf(element);
  return () => alike(document.getElementById(part.id) ?? document).filter(same)[at];
}

/** The last numbers stay, and a word says that they are old. */
function late() {
  const live = document.querySelector(".live");
  if (!live || live.classList.contains("late")) return;
  live.className = "live late";
  live.textContent = "The service cannot be reached; trying again";
  tell("The service cannot be reached; trying again.", { alarm: true });
}

document.addEventListener("visibilitychange", () => document.hidden || refresh());
timer = setTimeout(refresh, EVERY_MS);
