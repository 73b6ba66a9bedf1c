// The keyboard: `/` searches, `g` and a letter goes to a page, `j` and `k` walk through rows, `?` lists all of this.

import { place } from "./place.js";

const PAGES = { o: "/", t: "/tasks", d: "/dead", w: "/workers" };
const CHORD_MS = 1500;
let chord = 0;

const isTyping = (target) => target.closest?.("input, textarea, select, [contenteditable]") !== null;

/** What `j` and `k` stop at: the first link of each row. */
const stops = () => [...document.querySelectorAll("main tbody tr, main .causes > li, main .trouble")]
  .map((row) => row.querySelector("th a, h3 a, .text a")).filter((link) => link?.checkVisibility());

function walk(step) {
  const all = stops();
  if (!all.length) return;
  const row = document.activeElement?.closest("tr, li");
  const at = row ? all.findIndex((link) => row.contains(link)) : -1;
  const next = all[Math.min(all.length - 1, Math.max(0, at + step))] ?? all[0];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

function search() {
  const field = document.getElementById("find");
  if (field?.checkVisibility()) field.focus();
  else location.assign(place("/tasks#text"));
}

const help = () => document.getElementById("keys")?.showModal();

export function setUpKeys() {
  const button = document.getElementById("help");
  if (button) {
    button.hidden = false;
    button.addEventListener("click", help);
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
    const chorded = Date.now() - chord < CHORD_MS;
    chord = 0;
    if (chorded && event.key in PAGES) location.assign(place(PAGES[event.key]));
    else if (event.key === "g") chord = Date.now();
    else if (event.key === "/") search();
    else if (event.key === "j") walk(1);
    else if (event.key === "k") walk(-1);
    else if (event.key === "?") help();
    else return;
    event.preventDefault();
  });
}
