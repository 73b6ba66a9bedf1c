// A system's own table: choosing rows, and doing to them what the system offers. Each button says in its data where it posts to
// and what will happen; the answer says how many changed, and of the others why not.

import { askBefore, post } from "./acts.js";
import { number } from "./common.js";

/** Buttons inside `[data-picks]` act on its chosen rows; those with ids of their own on these, with a filter on all that match. */
for (const button of document.querySelectorAll("button[data-deed]")) {
  button.addEventListener("click", () => {
    const { deed, title, sentence, ids, body, extra, filter } = button.dataset;
    const looks = { title, button: button.classList.contains("main-act") ? "main-act" : "", sentence: (amount) => `${number(amount)}: ${sentence}` };
    if (filter) {
      askBefore({ ...looks, nothing: "Nothing matches now.", ...allThatMatch(title, deed, JSON.parse(filter)) });
      return;
    }
    const meant = ids ? JSON.parse(ids) : ticked(button.closest("[data-picks]")).map((tick) => JSON.parse(tick.value));
    askBefore({
      ...looks,
      extra,
      look: async () => ({ matched: meant.length }),
      nothing: "Nothing is chosen.",
      run: async (reason, _seen, text) => {
        const given = text?.trim() ? { [extra]: parsed(extra, text) } : {};
        return told(title, await post(deed, { ...(body ? JSON.parse(body) : {}), ...given, ids: meant, reason }));
      },
    });
  });
}

/** A dry run counts and says until when; the act takes what was there then, never more, again and again until it is complete. */
function allThatMatch(title, deed, filter) {
  return {
    look: () => post(deed, { filter, reason: "count before acting", dry_run: true }),
    run: async (reason, { matched, until }, _text, isLeft) => {
      let done = 0;
      let rest = matched;
      for (let complete = false; !complete;) {
        const made = await post(deed, { filter: { ...filter, until }, reason, at_most: rest });
        done += made.changed;
        rest = Math.max(0, rest - made.matched);
        complete = made.complete || isLeft(); // left: what was done stays done
        if (!complete) document.getElementById("act-count").textContent = `${number(done)} of ${number(matched)} done…`;
      }
      return `${title}: ${number(done)} of ${number(matched)} done.`;
    },
  };
}

function parsed(name, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The ${name} must be JSON: ${error.message}`, { cause: error });
  }
}

/** `changed` says how many; `refused` says by id why not. */
function told(title, { changed, refused = {} }) {
  const why = [...new Set(Object.values(refused))];
  return `${title}: ${number(changed)} done.${why.length ? ` Left alone: ${why.slice(0, 3).join("; ")}${why.length > 3 ? "; …" : ""}.` : ""}`;
}

const ticks = (picks) => [...picks.querySelectorAll("input[data-pick]")];
const ticked = (picks) => ticks(picks).filter((tick) => tick.checked);

for (const picks of document.querySelectorAll("[data-picks]")) {
  const all = picks.querySelector("[data-pick-all]");
  const said = picks.querySelector("[data-picked]");
  const buttons = [...picks.querySelectorAll("button[data-deed]:not([data-ids], [data-filter])")];
  const show = () => {
    const amount = ticked(picks).length;
    if (said) said.textContent = amount ? `${number(amount)} chosen` : "None chosen";
    for (const button of buttons) button.disabled = amount === 0;
    if (!all) return;
    all.checked = amount > 0 && amount === ticks(picks).length;
    all.indeterminate = amount > 0 && !all.checked;
  };
  all?.addEventListener("change", () => {
    for (const tick of ticks(picks)) tick.checked = all.checked;
    show();
  });
  picks.addEventListener("change", show);
  show();
}
