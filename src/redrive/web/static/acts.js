// Acting on tasks: first the number is counted and shown and a reason is asked, then exactly that is done.
// A dry run answers up to which instant it counted; the act is sent with the same instant, so that tasks which died or were
// added after the look are left alone.

import { ask, make, number, tasks, tell, tellLater } from "./common.js";
import { place } from "./place.js";

const ACT_WITHIN_MS = 600000;
const WORDS = {
  redrive: { title: "Redrive", done: "redriven", from: "dead", button: "main-act", sentence: (amount) => `${tasks(amount)} will go back to waiting, due at once, with a fresh budget.` },
  cancel: { title: "Cancel", done: "cancelled", from: "waiting", button: "", sentence: (amount) => `${tasks(amount)} will end as cancelled and will not be tried again.` },
  done: { title: "Resolve as done", done: "resolved as done", from: "dead", button: "", sentence: (amount) => `${tasks(amount)} will end as done, because you have dealt with it.` },
  cancelled: { title: "Resolve as cancelled", done: "resolved as cancelled", from: "dead", button: "", sentence: (amount) => `${tasks(amount)} will end as cancelled, because you have dealt with it.` },
  "cancel-running": { title: "Cancel while it runs", done: "told to end", from: "running", button: "", sentence: (amount) => `${tasks(amount)} will be told to end: an async handler at its next await, a thread when it looks. What ends first stays as it ended.` },
  happened: { title: "It happened", done: "answered and done", from: "in question", button: "main-act", sentence: (amount) => `${tasks(amount)} will end as done, because you know that the effect happened.` },
  "not-happened": { title: "It did not happen", done: "answered and retried", from: "in question", button: "", sentence: (amount) => `${tasks(amount)} will be tried again at once, because you know that the effect did not happen.` },
  close: { title: "Close it", done: "closed", from: "in question", button: "", sentence: (amount) => `${tasks(amount)} will end as cancelled. Whether the effect happened stays open.` },
};

/** Acts on tasks that are named, which are no dry run's business: the path, and what the body says beside. */
const NAMED = {
  done: ["/api/tasks/resolve", { state: "done" }],
  cancelled: ["/api/tasks/resolve", { state: "cancelled" }],
  "cancel-running": ["/api/tasks/cancel-running", {}],
  happened: ["/api/effects/answer", { answer: "happened" }],
  "not-happened": ["/api/effects/answer", { answer: "not-happened" }],
  close: ["/api/effects/answer", { answer: "close" }],
};

const dialog = document.getElementById("act");
const title = document.getElementById("act-title");
const count = document.getElementById("act-count");
const reason = document.getElementById("act-reason");
const problem = document.getElementById("act-problem");
const confirm = document.getElementById("act-confirm");
const extra = document.getElementById("act-extra");
const warning = document.getElementById("act-warning");
const facts = document.getElementById("act-facts");
const after = document.getElementById("act-after");
const choice = document.getElementById("act-choice");
const chosen = document.getElementById("act-chosen");

// What the open question is about; null after somebody has left.
let asked = null;

/**
 * Count, ask for a reason, do it. `question` says:
 * `title`, `confirm` (the words of the button, if they are others), `button` (its class), `warning`, `facts`, `after`; `choice` is something else that may
 * be chosen, with its `words` and what it changes of the question (`sets`); `look` answers how many it is about; `sentence` says what will happen to so many, and
 * `nothing` that there are none; `run(reason, seen, text, isLeft)` does it and answers with the sentence that tells of it. A long
 * one asks `isLeft` between two pages: whether this question was left, also where another one is asked meanwhile. `goes` is the page
 * that follows, if it is another one.
 */
export async function askBefore(question) {
  asked = question;
  title.textContent = question.title;
  confirm.textContent = question.confirm ?? question.title;
  confirm.className = question.button ?? "";
  confirm.disabled = true;
  problem.hidden = true;
  reason.value = "";
  count.replaceChildren("Counting…");
  extra.hidden = !question.extra;
  if (question.extra) [extra.querySelector("label").textContent, extra.querySelector("textarea").value] = [question.extra, ""];
  choice.hidden = !question.choice;
  chosen.checked = false;
  choice.querySelector("span").textContent = question.choice?.words ?? "";
  warn(question.warning);
  list(facts, question.facts);
  list(after, question.after);
  dialog.showModal();
  try {
    question.seen = await question.look();
  } catch (error) {
    if (asked !== question) return;
    count.replaceChildren();
    refuse(error);
    return;
  }
  if (asked !== question) return; // left, or asked for something else meanwhile
  sayHowMany(question);
  confirm.disabled = question.seen.matched === 0;
  reason.focus();
}

function sayHowMany(question) {
  const { matched } = question.seen;
  const said = question.isChosen ? question.choice.sets : question;
  count.replaceChildren(make("strong", { textContent: matched ? said.sentence(matched) : question.nothing }),
    ...(question.description ? [make("br"), make("span", { className: "quiet small", textContent: question.description })] : []));
}

function warn(sentence) {
  warning.hidden = !sentence;
  warning.querySelector("span").textContent = sentence ?? "";
}

/** Names and what they stand for. */
function list(element, named) {
  element.hidden = !named?.length;
  element.replaceChildren(...(named ?? []).map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value }))));
}

/**
 * Act on tasks. Each of `targets` has a `ledger` and either `ids` or a `filter`; `more` may say a warning, facts and what follows,
 * and other words for the title and the button.
 */
export function act(name, targets, description, more = {}) {
  const words = WORDS[name];
  const path = name in NAMED ? NAMED[name][0] : `/api/tasks/${name}`;
  const count = (what) => (name in NAMED ? { matched: what.ids.length } : post(path, { ...what, reason: "count before acting", dry_run: true }));
  return askBefore({
    ...words,
    description,
    nothing: `None of them is ${words.from} now, so there is nothing to do.`,
    look: async () => {
      const each = [];
      for (const what of targets) each.push({ what, seen: await count(what) });
      return { each, matched: each.reduce((sum, { seen }) => sum + seen.matched, 0) };
    },
    run: (why, { each, matched }, _text, isLeft) => change(name, path, each, matched, why, isLeft),
    ...more,
  });
}

/** What is said before one of those that match is tried; the others are counted, and stay as they are. */
export const TRY_ONE = {
  title: "Try one first",
  confirm: "Try one task",
  nothing: "None of them is dead now, so there is nothing to try.",
  sentence: (amount) => (amount === 1 ? "The only dead task of this cause runs again now." : `1 of ${tasks(amount).replace(" tasks", " dead tasks")} runs again now. The other ${number(amount - 1)} stay as they are.`),
};

/** The same where there are no operations. */
function tryOne(target) {
  return {
    ...TRY_ONE,
    run: async (why, { each: [{ seen }] }) => {
      const { changed } = await post("/api/tasks/redrive", { ...target, filter: { ...target.filter, until: seen.until }, at_most: 1, reason: why });
      return changed ? "One task runs again. Its history will say how it went." : "It had changed meanwhile, and nothing was done.";
    },
  };
}

/** Send an act, and wait for it as long as it may take: the server goes on with it, whoever waits. */
export const post = (path, body) => ask(path, { method: "POST", body, signal: AbortSignal.timeout(ACT_WITHIN_MS) });

async function change(name, path, each, matched, why, isLeft) {
  const { done } = WORDS[name];
  let changed = 0;
  let left = false;
  for (const { what, seen } of each) {
    if (left || !seen.matched) continue;
    const body = { ...what, reason: why };
    if (name in NAMED) Object.assign(body, NAMED[name][1]);
    else if (what.filter) [body.filter, body.at_most] = [{ ...what.filter, until: seen.until }, seen.matched];
    // A large act comes back between two pages; sent again with the same instant it goes on where it was.
    for (let complete = false; !complete && !left;) {
      const made = await post(path, body);
      changed += made.changed;
      complete = made.complete ?? true;
      if (what.filter) body.at_most = Math.max(0, body.at_most - made.matched);
      left = !complete && isLeft(); // what was done stays done
      if (!complete && !left) count.textContent = `${number(changed)} of ${number(matched)} ${done}…`;
    }
  }
  const rest = matched - changed;
  const others = left ? " The others were left alone, as you said." : rest > 0 ? ` ${number(rest)} had changed meanwhile and stayed as they are.` : "";
  return `${tasks(changed)} ${done}.${others}`;
}

async function send(question) {
  if (!reason.value.trim()) {
    refuse(new Error("Say why: the reason is kept with everything that changes."));
    reason.focus();
    return;
  }
  const isLeft = () => asked !== question;
  confirm.disabled = true;
  problem.hidden = true;
  let said;
  try {
    said = await question.run(reason.value.trim(), question.seen, extra.hidden ? undefined : extra.querySelector("textarea").value, isLeft);
  } catch (error) {
    if (isLeft()) return tell(error.message, { alarm: true });
    confirm.disabled = false;
    return refuse(error);
  }
  if (isLeft() && asked) return tell(said); // somebody reads another question: the page stays
  tellLater(said);
  if (question.goes) location.assign(place(question.goes));
  else location.reload();
}

function refuse(error) {
  problem.textContent = error.message;
  problem.hidden = false;
}

dialog?.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (asked?.seen && !confirm.disabled) send(asked);
});
chosen?.addEventListener("change", () => {
  if (!asked?.choice) return;
  asked.isChosen = chosen.checked;
  const said = asked.isChosen ? { ...asked, ...asked.choice.sets } : asked;
  confirm.textContent = said.confirm ?? said.title;
  confirm.className = said.button ?? "";
  list(after, said.after);
  if (asked.seen) sayHowMany(asked);
});
dialog?.addEventListener("close", () => {
  asked = null;
});
document.getElementById("act-leave")?.addEventListener("click", () => dialog.close());

/** Buttons that say in their data what they act on, also those that are drawn anew. */
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button[data-act]");
  if (!button) return;
  const { act: name, ledger, ids, filter, description, more, one } = button.dataset;
  const target = ids ? { ledger, ids: JSON.parse(ids) } : { ledger, filter: JSON.parse(filter) };
  act(name, [target], description, { ...(more ? JSON.parse(more) : {}), ...(one === undefined ? {} : tryOne(target)) });
});
