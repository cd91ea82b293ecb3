// The page of one model: where its milliseconds go.

import { drawn, h, text } from "./dom.js";
import { count, rate, seconds, words } from "./format.js";
import { Live } from "./live.js";
import { Plot } from "./plot.js";
import * as sections from "./sections.js";

const HISTORY_S = 900;

export function modelPage(main, root, name) {
  document.title = `${name} · tailcut`;
  document.getElementById("crumbs").append(h("li", { "aria-current": "page" }, name));
  const path = `models.${name}`;
  const state = sections.pill(), about = h("span", { class: "note" }), why = h("p", { class: "error" });
  const head = sections.facts([
    ["requests / s", `${path}.requests.all.rate`, rate, (now) => now.requests.all.rate],
    ["p50", `${path}.head.p50_s`, seconds, (now) => now.stages.at(-1).p50_s],
    ["p95", `${path}.head.p95_s`, seconds, (now) => now.stages.at(-1).p95_s],
    ["p99", `${path}.head.p99_s`, seconds, (now) => now.stages.at(-1).p99_s],
    ["shed / s", `${path}.requests.shed.rate`, rate, (now) => now.requests.shed.rate],
    ["failed / s", `${path}.requests.failed.rate`, rate, (now) => now.requests.failed.rate],
    ["in flight", `${path}.now.in_flight`, count, (now) => now.now.in_flight],
    ["queued rows", `${path}.now.queue_rows`, count, (now) => now.now.queue_rows],
    ["executors", `${path}.now.executors`, count, (now) => now.now.executors],
    ["answered", `${path}.requests.answered.total`, count, (now) => now.requests.answered.total],
  ]);
  const plots = makePlots();
  const parts = [sections.stages(path), sections.slo(path), sections.lookups(path), sections.batches(path), sections.variants(path), sections.errors(path)];
  const kept = sections.keptRequests(root, false), firing = sections.alerts(), drift = sections.drift(path);
  const shown = [
    h("div", { class: "title" }, h("h1", null, name), state.element, about),
    why,
    head.element,
    firing.element,
    h("section", { class: "card", "aria-label": "Latency by stage over time" }, plots.stages.element),
    h("div", { class: "pair" }, h("section", { class: "card", "aria-label": "Percentiles over time" }, plots.percentiles.element), h("section", { class: "card", "aria-label": "Requests over time" }, plots.requests.element)),
    h("div", { class: "masonry" }, parts.map((each) => each.element)),
    kept.element,
    drift.element,
  ];
  main.append(...shown);
  for (const each of shown.slice(1)) each.hidden = true;
  const empty = document.getElementById("empty");
  let points = [], names = [];

  function update({ snapshot, point }) {
    const model = snapshot.models[0];
    if (!model) return;
    for (const each of shown) each.hidden = false;
    drawn(main, snapshot);
    if (point) points.push(point);
    points = points.filter((each) => each[0] > snapshot.at_s - HISTORY_S);
    empty.hidden = model.requests.all.total > 0;
    text(empty, `No requests yet. Send one to POST /v2/models/${name}/infer or /predict/${name}.`);
    text(about, model.variant ? `variant ${model.variant}, version ${model.version}` : "");
    text(why, model.reason);
    why.hidden = !model.reason;
    state.update(model);
    head.update(model);
    firing.update(snapshot);
    for (const each of parts) each.update(model);
    for (const each of Object.values(plots)) each.update(points, names);
    kept.update([model], snapshot.at_s);
    drift.update(model, snapshot.at_s);
  }

  new Live(`${root}models/${name}/events`, {
    begin(told) {
      ({ points, names } = told);
      update(told);
    },
    snapshot: update,
    gone(reason) {
      for (const each of shown) each.hidden = true;
      empty.hidden = false;
      text(empty, reason);
    },
  });
}

function makePlots() {
  const stages = sections.STAGES.map((each) => ({ name: each, label: words(each), kind: `fill-${each}` }));
  return {
    stages: new Plot("Latency by stage", stages, { stacked: true, format: seconds, least: 1e-3, note: "Mean of answered requests, of the ten seconds before each moment. Arrow keys move along the time." }),
    percentiles: new Plot("Request latency", [
      { name: "p99", label: "p99", kind: "p99" },
      { name: "p95", label: "p95", kind: "p95" },
      { name: "p50", label: "p50", kind: "p50" },
    ], { log: true, format: seconds, least: 1e-4, note: "Answered requests, on a logarithmic scale." }),
    requests: new Plot("Requests per second", [
      { name: "answered", label: "answered", kind: "answered" },
      { name: "shed", label: "shed", kind: "shed" },
      { name: "failed", label: "failed", kind: "failed" },
    ], { stacked: true, format: rate, least: 1, note: "By how they ended." }),
  };
}
