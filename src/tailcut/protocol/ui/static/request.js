// The page of one kept request: its waterfall, and the requests of its batch.

import { attribute, h, label, number, s, Table, text } from "./dom.js";
import { clock, seconds, words } from "./format.js";
import { facts, STAGES } from "./sections.js";

export async function requestPage(main, root, trace) {
  document.title = `request ${trace.slice(0, 8)} · tailcut`;
  const empty = document.getElementById("empty"), status = document.getElementById("status");
  status.hidden = true;
  document.getElementById("crumbs").append(h("li", { "aria-current": "page" }, `request ${trace.slice(0, 8)}`));
  try {
    const reply = await fetch(`${root}requests/${trace}/data`);
    if (reply.status === 401) return location.reload();
    const told = await reply.json();
    if (reply.ok) {
      empty.remove();
      show(main, root, told);
    } else text(empty, `${told.error}. ${told.hint}.`);
  } catch {
    text(empty, "The server cannot be reached. Reload to try again.");
  }
  main.removeAttribute("aria-busy");
  return undefined;
}

function show(main, root, { request, spans, batch }) {
  const crumbs = document.getElementById("crumbs");
  crumbs.insertBefore(h("li", null, h("a", { href: `${root}models/${request.model}` }, request.model)), crumbs.lastElementChild);
  const head = facts([
    ["took", "request.total_s", seconds, (now) => now.total_s],
    ["outcome", "request.code", (value) => (value === "ok" ? "answered" : words(value)), (now) => now.code],
    ["kept because", "request.why", words, (now) => now.why],
    ["route", "request.route", (value) => value, (now) => now.route],
    ["variant", "request.variant", (value) => value, (now) => now.variant],
    ["ended", "request.ended_s", clock, (now) => now.ended_s],
  ]);
  head.update(request);
  main.append(
    h("div", { class: "title" }, h("h1", null, `Request ${request.trace.slice(0, 8)}`), h("code", null, request.trace)),
    head.element,
    h("section", { class: "card", "aria-label": "Waterfall" }, h("h2", null, "Waterfall"), h("div", { class: "scroll" }, waterfall(request, spans))),
    neighbours(root, request, batch),
  );
}

function waterfall(request, spans) {
  const whole = Math.max(request.total_s, ...spans.map((each) => each.start_s + each.duration_s), 1e-9);
  const table = new Table("Steps of the request", [
    ["step", "", (item) => titled(item)],
    ["timeline", "timeline", (item) => ({ element: timeline(item, whole), update() {} })],
    ["begins at", "number large", number((item) => `spans.${item.key}.start_s`, seconds, (now) => now.start_s)],
    ["took", "number", number((item) => `spans.${item.key}.duration_s`, seconds, (now) => now.duration_s)],
    ["", "note large", label((each) => Object.entries(each.facts).map(([name, value]) => `${name} ${value}`).join(", "))],
  ]);
  table.update(spans.map((each, place) => ({ ...each, key: place })), (each) => each.key);
  return table.element;
}

function titled(span) {
  const element = h("span", { class: `stage depth-${Math.min(span.depth, 4)}` }, h("i", { class: `fill-${kind(span)}` }), words(span.name));
  if (span.failed) element.append(" ", h("b", { class: "bad" }, "failed"));
  return { element, update() {} };
}

function timeline(span, whole) {
  const svg = s("svg", { class: "bar", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  const mark = s("rect", { class: `fill-${kind(span)}`, height: "10" });
  attribute(mark, "x", Math.min((span.start_s / whole) * 1000, 997));
  attribute(mark, "width", Math.max((span.duration_s / whole) * 1000, 3));
  svg.append(s("rect", { class: "track", width: "1000", height: "10" }), mark);
  return svg;
}

// The colour of a step: that of its stage. Steps within a stage have the colour of the whole.
function kind(span) {
  const first = span.name.split(" ")[0];
  const known = { batch: "infer", model: "infer", feature: "features" }[first] ?? first;
  return STAGES.includes(known) ? known : "request";
}

function neighbours(root, request, batch) {
  if (!batch.length) return h("p", { class: "note" }, "No other kept request shared its batch.");
  const table = new Table("Requests of the same batch", [
    ["request", "", (item) => ({ element: h("a", { href: `${root}requests/${item.trace}` }, item.trace.slice(0, 8)), update() {} })],
    ["took", "number", number((item) => `batch.${item.trace}.total_s`, seconds, (now) => now.total_s)],
    ["kept because", "", label((each) => words(each.why))],
  ]);
  table.update(batch, (each) => each.trace);
  return h("section", { class: "card", "aria-label": "Batch" }, h("h2", null, "In the same batch"), h("div", { class: "scroll" }, table.element));
}
