// The eight charts of the overview. Each function takes the data of the API and returns what plotly draws, a sentence for
// those who do not see it, and the rows of the table behind it. Without data it returns null.
/* global Plotly */

import { make, number, span } from "./common.js";

const STATES = ["waiting", "claimed", "done", "dead", "cancelled"];
const probe = make("span", { hidden: true });
document.body.append(probe);

/** A colour of the style sheet as the theme has it now. */
function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

const share = (rate) => `${(rate * 100).toFixed(rate > 0.999 && rate < 1 ? 2 : 1)} %`;
const moment = (instant) => `${instant.slice(0, 10)} ${instant.slice(11, 16)}`;
/** The amounts of each step per minute; the last step is still under way, and counts for as long as it has lasted. */
function perMinute(name, series, { generated_at: now }) {
  const lasted = (start) => Math.min(series.step_seconds, Math.max(series.step_seconds / 10, (Date.parse(now) - Date.parse(start)) / 1000));
  return series.points.map((one) => Math.round((one[name] * 60 / lasted(one.start)) * 100) / 100);
}
const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);

function line(name, x, y, mark, more = {}) {
  return { type: "scatter", mode: "lines", name, x, y, line: { color: colour(mark), width: 2, shape: "linear" }, ...more };
}

/** Time from the first step to the end of the last one, however few of them have something to show. */
function axes({ points, step_seconds: step }, y = {}) {
  const end = new Date(Date.parse(points.at(-1).start) + step * 1000).toISOString();
  return { xaxis: { type: "date", nticks: innerWidth < 700 ? 4 : 6, tickangle: 0, range: [points[0].start, end] }, yaxis: { rangemode: "tozero", ...y } };
}

/** What is counted is called what its ledger calls it: an event is received, queued, delivered or failed. */
const called = ({ words }) => (state) => words[state] ?? state;
const capital = (text) => text[0].toUpperCase() + text.slice(1);

export function states({ overview }) {
  const shown = STATES.filter((state) => state in overview.words);
  const amounts = shown.map((state) => overview.states[state] ?? 0);
  const names = shown.map(called(overview));
  if (!sum(amounts)) return null;
  return {
    data: [{
      type: "pie", hole: 0.62, sort: false, direction: "clockwise", labels: names, values: amounts,
      marker: { colors: shown.map(colour), line: { color: colour("card"), width: 2 } },
      textinfo: "none", hovertemplate: "%{label}: %{value:,} (%{percent})<extra></extra>",
    }],
    layout: { showlegend: true, legend: { orientation: "v", x: 1.02, y: 0.5, xanchor: "left" }, margin: { l: 8, r: 8, t: 8, b: 8 },
      annotations: [{ text: number(sum(amounts)), showarrow: false, font: { size: 20 }, x: 0.5, y: 0.5 }] },
    sentence: names.map((name, at) => `${number(amounts[at])} ${name}`).join(", "),
    columns: ["State", capital(overview.of)], rows: names.map((name, at) => [name, number(amounts[at])]),
  };
}

export function flow({ overview, series }) {
  const { points } = series;
  if (!points.some((one) => one.added || one.done || one.dead)) return null;
  const x = points.map((one) => one.start);
  const flows = ["added", "done", "dead"];
  const names = flows.map(called(overview));
  const rates = flows.map((name) => perMinute(name, series, overview));
  return {
    data: flows.map((flow, at) => line(names[at], x, rates[at], flow, { hovertemplate: `%{y:,} ${names[at]} per minute<extra></extra>` })),
    layout: { ...axes(series), hovermode: "x unified", showlegend: true },
    sentence: `In this range ${flows.map((flow, at) => `${number(sum(points.map((one) => one[flow])))} ${names[at]}`).join(", ")}.`,
    columns: ["From (UTC)", ...names.map((name) => `${capital(name)} per minute`)],
    rows: points.map((one, at) => [moment(one.start), ...rates.map((rate) => number(rate[at]))]),
  };
}

export function success({ overview }) {
  const rate = overview.success_rate;
  if (rate === null || rate === undefined) return null;
  const mark = rate >= 0.95 ? "done" : rate >= 0.8 ? "waiting" : "dead";
  return {
    data: [{
      type: "indicator", mode: "gauge", value: rate * 100,
      gauge: {
        axis: { range: [0, 100], tickvals: [0, 50, 100], tickcolor: colour("quiet"), tickfont: { size: 11 } }, bar: { color: colour(mark), thickness: 0.75 },
        bgcolor: colour("raised"), borderwidth: 0, threshold: { line: { color: colour("quiet"), width: 2 }, thickness: 0.9, value: 95 },
      },
    }],
    layout: { margin: { l: 28, r: 28, t: 24, b: 8 }, annotations: [{ text: share(rate), showarrow: false, x: 0.5, y: 0.12, xref: "paper", yref: "paper", font: { size: 28, color: colour(mark) } }] },
    sentence: `${share(rate)} of the ${overview.of} that ended in this range were ${called(overview)("done")}; the mark is at 95 %.`,
    columns: ["Figure", "Value"], rows: [["Success rate", share(rate)]],
  };
}

export function tries({ overview }) {
  const amounts = overview.tries.map((one) => one.amount);
  if (!sum(amounts)) return null;
  const names = overview.tries.map((one, at) => (one.tries === "more" ? `${at}+` : String(at)));
  return {
    data: [{ type: "bar", x: names, y: amounts, marker: { color: names.map((_, at) => colour(at === 0 ? "done" : at < 3 ? "waiting" : "dead")) },
      hovertemplate: `%{x} failures: %{y:,} ${overview.of}<extra></extra>` }],
    layout: { xaxis: { type: "category", title: { text: "failures before the last try", font: { size: 12 } } }, yaxis: { rangemode: "tozero" }, bargap: 0.25 },
    sentence: names.map((name, at) => `${number(amounts[at])} with ${name} failures`).join(", "),
    columns: ["Failures before the last try", capital(overview.of)], rows: names.map((name, at) => [name, number(amounts[at])]),
  };
}

/** Where an instant lies between the bars of a histogram whose bounds grow as powers. */
function place(seconds, bounds) {
  const at = bounds.findIndex((bound) => seconds < bound);
  if (at === -1) return bounds.length;
  const low = at ? bounds[at - 1] : bounds[0] / 3;
  return at - 0.5 + Math.min(1, Math.max(0, Math.log(Math.max(seconds, low) / low) / Math.log(bounds[at] / low)));
}

export function took({ overview }) {
  const { bounds_seconds: bounds, amounts, ...rest } = overview.took;
  if (!sum(amounts)) return null;
  const names = [...bounds.map((bound) => `≤ ${span(bound)}`), `> ${span(bounds.at(-1))}`];
  const from = Math.max(0, amounts.findIndex((amount) => amount) - 1);
  const to = Math.min(amounts.length - 1, amounts.findLastIndex((amount) => amount) + 1);
  const shown = names.slice(from, to + 1);
  const every = Math.ceil(shown.length / 4);
  const marks = ["p50", "p95", "p99"].filter((name) => rest[name] !== null && rest[name] !== undefined);
  return {
    data: [{ type: "bar", x: shown.map((_, at) => from + at), y: amounts.slice(from, to + 1), marker: { color: colour("claimed") },
      customdata: shown, hovertemplate: `%{customdata}: %{y:,} ${overview.of}<extra></extra>` }],
    layout: {
      bargap: 0.08, yaxis: { rangemode: "tozero" },
      xaxis: { tickangle: 0, range: [from - 0.6, to + 0.6], tickvals: shown.map((_, at) => from + at).filter((_, at) => at % every === 0), ticktext: shown.filter((_, at) => at % every === 0) },
      shapes: marks.map((name) => ({ type: "line", x0: place(rest[name], bounds), x1: place(rest[name], bounds), yref: "paper", y0: 0, y1: 1, line: { color: colour(name === "p50" ? "quiet" : name === "p95" ? "waiting" : "dead"), width: 1.5, dash: "dot" } })),
    },
    figures: marks.map((name) => [name, span(rest[name])]),
    sentence: marks.map((name) => `${name} ${span(rest[name])}`).join(", "),
    columns: [`From stored to ${called(overview)("done")}`, capital(overview.of)],
    rows: [...names.slice(from, to + 1).map((name, at) => [name, number(amounts[from + at])]), ...marks.map((name) => [name, span(rest[name])])],
  };
}

export function dead({ overview, day }) {
  const { points } = day;
  const total = sum(points.map((one) => one.dead));
  if (!points.some((one) => one.added || one.done || one.dead || one.retried)) return null; // none dead is a fact, nothing is not
  const y = perMinute("dead", day, overview);
  const word = called(overview)("dead");
  return {
    data: [{ type: "bar", x: points.map((one) => one.start), y, marker: { color: colour("dead") }, hovertemplate: `%{x|%H:%M}: %{y} ${word} per minute<extra></extra>` }],
    layout: { ...axes(day, total ? {} : { range: [0, 1] }), bargap: 0.1 },
    figures: [["in 24 h", number(total)], ["at most per minute", number(Math.round(Math.max(0, ...y) * 10) / 10)]],
    sentence: `${number(total)} ${overview.of} ${word === "dead" ? "died" : word} in the last 24 hours.`,
    columns: ["From (UTC)", `${capital(word)} per minute`], rows: points.map((one, at) => [moment(one.start), number(y[at])]),
  };
}

/** Steps in which somebody counted. */
const counted = (series) => series.depth.filter((one) => one.waiting !== null);

export function depth({ overview, series }) {
  const points = counted(series);
  if (!points.length) return null;
  const x = points.map((one) => one.start);
  const last = points.at(-1);
  const drawn = ["waiting", "claimed", "dead"];
  const names = drawn.map(called(overview));
  return {
    data: drawn.map((state, at) => line(names[at], x, points.map((one) => one[state]), state,
      { mode: points.length < 3 ? "lines+markers" : "lines", hovertemplate: `%{y:,} ${names[at]}<extra></extra>` })),
    layout: { ...axes(series), hovermode: "x unified", showlegend: true },
    sentence: `At last ${drawn.map((state, at) => `${number(last[state])} ${names[at]}`).join(", ")}.`,
    columns: ["From (UTC)", ...names.map(capital)],
    rows: points.map((one) => [moment(one.start), number(one.waiting), number(one.claimed), number(one.dead)]),
  };
}

export function oldest({ overview, series }) {
  const points = counted(series);
  const now = overview.oldest_due_seconds;
  if (!points.length && !now) return null;
  const x = points.map((one) => one.start);
  const y = points.map((one) => one.oldest_due_seconds ?? 0);
  const most = Math.max(0, now ?? 0, ...y);
  const [unit, size] = most >= 172800 ? ["days", 86400] : most >= 7200 ? ["hours", 3600] : most >= 180 ? ["minutes", 60] : ["seconds", 1];
  const drifts = drift(overview);
  return {
    data: [line("oldest due", x, y.map((one) => one / size), "waiting", { fill: "tozeroy", mode: points.length < 3 ? "lines+markers" : "lines",
      customdata: y.map(span), hovertemplate: "waited %{customdata}<extra></extra>" })],
    layout: axes(series, { title: { text: unit, font: { size: 12 } }, ...(most ? {} : { range: [0, 1] }) }),
    figures: [["oldest due now", now ? span(now) : "none"], ...drifts],
    sentence: `${now ? `The oldest due task has been waiting for ${span(now)}` : "Nothing due waits"}; at most ${span(most)} in this range.`,
    columns: ["From (UTC)", "Oldest due waited"], rows: points.map((one, at) => [moment(one.start), span(y[at])]),
  };
}

/** How late this service started tasks after they were due. */
function drift(overview) {
  const known = overview.drift;
  return known ? [["drift p50", span(known.p50)], ["p95", span(known.p95)], ["in the last", span(known.over_seconds)]] : [];
}

// --- drawing ------------------------------------------------------------------------------------------------------------

const CONFIG = { displayModeBar: false, responsive: true, showTips: false };

function dressed(layout) {
  const font = { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("quiet") };
  const axis = { gridcolor: colour("grid"), zerolinecolor: colour("line"), linecolor: colour("line"), automargin: true, fixedrange: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, font,
    margin: { l: 36, r: 10, t: 8, b: 30 }, showlegend: false, legend: { orientation: "h", x: 0, y: 1.18, font },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { ...font, color: colour("text") } },
    ...layout,
    xaxis: { ...axis, showgrid: false, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
  };
}

/** Draw one widget: the chart, its figures, its sentence and its table; or say that there is nothing yet. */
export async function draw(figure, widget) {
  const plot = figure.querySelector(".plot");
  figure.querySelector(".nothing").hidden = widget !== null;
  figure.querySelector("details").hidden = widget === null;
  plot.hidden = widget === null;
  figure.dataset.drawn = widget === null ? "empty" : "data";
  const figures = figure.querySelector(".figures");
  figures.replaceChildren(...(widget?.figures ?? []).map(([name, value]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value }))));
  if (widget === null) return;
  plot.setAttribute("aria-label", `${figure.querySelector("h2").textContent}: ${widget.sentence}`);
  const details = figure.querySelector("details");
  details.widget = widget;
  if (details.open) fill(details);
  await Plotly.react(plot, widget.data, dressed(widget.layout), CONFIG);
}

/** The table behind a chart is written when somebody opens it. */
export function fill(details) {
  const { columns, rows } = details.widget;
  const table = details.querySelector("table");
  table.tHead.replaceChildren(make("tr", {}, ...columns.map((name) => make("th", { scope: "col", textContent: name }))));
  table.tBodies[0].replaceChildren(...rows.map(([first, ...others]) => make("tr", {},
    make("th", { scope: "row", textContent: first }), ...others.map((value) => make("td", { className: "number", textContent: value })))));
}
