// Steering one operation, and starting one: each through the dialog that asks why. What is done is said by the page that follows.

import { TRY_ONE, askBefore, post } from "./acts.js";
import { number, tasks } from "./common.js";

const DONE = { pause: "It is paused.", resume: "It goes on.", halt: "It is halted.", "give-back": "The rest was given back.", approve: "It is approved.", change: "The rate was changed." };
const RATE = "New rate: how many a second, minute or hour, such as 5/s or 100/m";

/** Ask why, then do one thing to one operation. */
function steer({ operation, steer: act, title, means }) {
  return askBefore({
    title,
    confirm: title,
    button: "",
    extra: act === "change" ? RATE : undefined,
    look: async () => ({ matched: 1 }),
    sentence: () => means,
    nothing: "",
    run: async (reason, _seen, text) => {
      const body = act === "change" ? { reason, rate: (text ?? "").trim() } : { reason };
      if (act === "change" && !body.rate) throw new Error("Say which rate, such as 5/s.");
      await post(`/api/operations/${operation}/${act}`, body);
      return DONE[act];
    },
  });
}

/** Everything at once, as one choice of an operation. */
const ALL_NOW = {
  words: "All now: no steps, no rate, no brake",
  sets: {
    confirm: "Bring all back now",
    button: "",
    after: [["What happens", "All of them run again at once. If the cause is not mended, all of them fail again."]],
    sentence: (amount) => `${tasks(amount).replace(/ task/, " dead task")} will go back to waiting at once, with a fresh budget.`,
  },
};

/** One task first, then the others in steps; or one alone; or all now. Count what would be taken, ask why, start it, and go to its page. */
function start({ ledger, filter, more, one }) {
  const what = { ledger, filter: JSON.parse(filter) };
  const question = {
    choice: one === undefined ? ALL_NOW : undefined,
    title: "Bring them back step by step",
    sentence: (amount) => (amount === 1 ? "The only dead task of this cause runs again." : `1 of ${tasks(amount).replace(" tasks", " dead tasks")} runs again first. The other ${number(amount - 1)} follow only if that works.`),
    nothing: "None of them is dead now, so there is nothing to bring back.",
    confirm: "Start with one task",
    button: "main-act",
    after: [["If it works", "5, 25 and 100 follow, each when the ones before have ended; then the rest, 20 a second."], ["If it fails", "It stops by itself, and nothing else is touched."]],
    ...(one === undefined ? {} : TRY_ONE),
    ...(more ? JSON.parse(more) : {}),
    look: () => post("/api/operations", { ...what, reason: "count before acting", dry_run: true }),
    run: async (reason) => {
      const how = one !== undefined ? { at_most: 1 } : question.isChosen ? { all_now: true } : {};
      const { id } = await post("/api/operations", { ...what, ...how, reason });
      question.goes = `/operations/${id}`;
      return "It has begun.";
    },
  };
  return askBefore(question);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button[data-steer], button[data-start]");
  if (!button) return;
  if (button.dataset.steer) steer(button.dataset);
  else start(button.dataset);
});
