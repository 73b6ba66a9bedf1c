// Instants: the service writes them in UTC, and here they are shown in the zone of whoever looks, with UTC when pointed at.
// The button in the head of the page switches to UTC and back; the choice is kept in this browser.

const KEPT = "redrive-zone";

/** 250ms, 12s, 2m 5s, 1h 30m, 3d 4h: the two largest units. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0s";
  if (Math.abs(seconds) < 1) return `${Math.max(1, Math.round(seconds * 1000))}ms`;
  if (seconds < 10) return `${Math.round(seconds * 10) / 10}s`;
  let left = Math.round(seconds);
  const parts = [];
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    const amount = Math.floor(left / size);
    left -= amount * size;
    if (amount) parts.push(`${amount}${unit}`);
    else if (parts.length) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

/** "5m 3s ago", "in 2h". */
export function when(instant, now = Date.now()) {
  const seconds = Math.round((Date.parse(instant) - now) / 1000);
  if (seconds === 0) return "now";
  return seconds > 0 ? `in ${span(seconds)}` : `${span(-seconds)} ago`;
}

const isUtc = () => localStorage.getItem(KEPT) === "UTC";
const zone = () => (isUtc() ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone);

function formats() {
  const named = { timeZone: zone(), hourCycle: "h23" };
  const format = (locale, options) => new Intl.DateTimeFormat(locale, { ...named, ...options });
  return {
    day: format("en-CA", { year: "numeric", month: "2-digit", day: "2-digit" }),
    brief: format("en-GB", { weekday: "short", day: "numeric", month: "short" }),
    clock: format("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" }),
    minute: format("en-GB", { hour: "2-digit", minute: "2-digit" }),
    name: format("en-GB", { timeZoneName: "short" }),
  };
}

/** Write every instant in an element in the chosen zone: `clock` and `minute` name the day if it is another one, `axis` never does. */
export function showTimes(within = document) {
  const { day, brief, clock, minute } = formats();
  const today = day.format(new Date());
  for (const one of within.querySelectorAll("[data-at]")) {
    const at = new Date(one.getAttribute("datetime"));
    if (Number.isNaN(at.getTime())) continue;
    const as = one.dataset.at;
    const time = (as === "minute" || as === "axis" ? minute : clock).format(at);
    const date = day.format(at);
    one.textContent = as === "stamp" ? `${date} ${time}` : date === today || as === "axis" ? time : `${brief.format(at)}, ${time}`;
  }
  for (const one of within.querySelectorAll("time[title]")) one.title = `${one.dateTime.replace("T", " ").replace(/(\.\d+)?Z$/, "")} UTC`;
  keepTimes(within);
}

/** Instants in words stay true while the page is open. */
export function keepTimes(within = document) {
  const root = within.querySelectorAll ? within : document;
  for (const time of root.querySelectorAll("time[data-live]")) time.textContent = when(time.dateTime);
}

/** The button that switches between the zone of this browser and UTC. */
export function setUpZone() {
  const button = document.getElementById("zone");
  const show = () => {
    const name = formats().name.formatToParts(new Date()).find(({ type }) => type === "timeZoneName").value;
    if (button) {
      button.textContent = name;
      button.title = isUtc() ? "Times are in UTC. Show them in your own zone." : `Times are in your zone, ${zone()}. Show them in UTC.`;
      button.setAttribute("aria-label", `${name}. ${button.title}`);
      button.hidden = false;
    }
    showTimes();
  };
  button?.addEventListener("click", () => {
    if (isUtc()) localStorage.removeItem(KEPT);
    else localStorage.setItem(KEPT, "UTC");
    show();
  });
  show();
}
