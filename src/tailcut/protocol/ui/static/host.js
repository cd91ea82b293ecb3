// The page of the host: all models at a glance.

import { attribute, drawn, figure, h, label, number, Table, text } from "./dom.js";
import { burn, bytes, count, decimal, rate, seconds, span } from "./format.js";
import { Live } from "./live.js";
import { Spark } from "./plot.js";
import { alerts, facts, keptRequests, pill } from "./sections.js";

const MOST_SPARKS = 180;

export function hostPage(main, root) {
  const sparks = new Map();
  const head = facts([
    ["state", "process.state", (value) => value ?? "–", (now) => now.process.state],
    ["requests / s", "requests.rate", rate, (now) => total(now, (each) => each.requests.all.rate)],
    ["not answered / s", "requests.lost", rate, (now) => total(now, (each) => each.requests.shed.rate + each.requests.failed.rate)],
    ["CPU cores", "process.cpu_cores", decimal, (now) => now.process.cpu_cores],
    ["memory", "process.memory_bytes", bytes, (now) => now.process.memory_bytes],
    ["event loop lag", "process.loop_lag_s", seconds, (now) => now.process.loop_lag_s],
    ["open files", "process.open_files", count, (now) => now.process.open_files],
    ["up", "process.started_s", span, (now) => (now.process.started_s === null ? undefined : now.at_s - now.process.started_s)],
  ]);
  const firing = alerts(), kept = keptRequests(root, true), models = table(root, sparks);
  const empty = h("p", { class: "empty" }, "This server has no models yet: add a folder with a tailcut.toml, and load it.");
  main.append(h("h1", { class: "hidden" }, "Models of this server"), head.element, firing.element, h("section", { class: "card flush", "aria-label": "Models" }, h("div", { class: "scroll" }, models.element), empty), kept.element);
  for (const each of [...main.children].slice(1)) each.hidden = true;

  function update({ snapshot }) {
    document.getElementById("empty").hidden = true;
    for (const each of main.children) if (each.id !== "empty") each.hidden = false;
    drawn(main, snapshot);
    document.title = `${rate(total(snapshot, (each) => each.requests.all.rate))} req/s · tailcut`;
    for (const each of snapshot.models) {
      const known = sparks.get(each.name) ?? [];
      const at = Math.floor(snapshot.at_s / 5);
      if (!known.length || Math.floor(known.at(-1)[0] / 5) !== at) known.push([snapshot.at_s, each.requests.all.rate, each.stages.at(-1).p95_s]);
      sparks.set(each.name, known.slice(-MOST_SPARKS));
    }
    head.update(snapshot);
    firing.update(snapshot);
    empty.hidden = snapshot.models.length > 0;
    models.element.hidden = !snapshot.models.length;
    models.update(snapshot.models, (each) => each.name);
    kept.update(snapshot.models, snapshot.at_s);
  }

  new Live(`${root}events`, {
    begin(told) {
      for (const [name, points] of Object.entries(told.sparks)) sparks.set(name, points);
      update(told);
    },
    snapshot: update,
    gone(why) {
      text(document.getElementById("empty"), why);
    },
  });
}

function total(snapshot, pick) {
  return snapshot.models.reduce((found, each) => found + pick(each), 0);
}

function table(root, sparks) {
  const at = (name, format, pick) => number((item) => `models.${item.name}.${name}`, format, pick);
  const whole = (name) => at(`stages.request.${name}`, seconds, (now) => now.stages.at(-1)[name]);
  const line = (title, place) => (item) => {
    const made = new Spark(`${title} of ${item.name} in the last five minutes`);
    return { element: made.element, update: (now) => made.update((sparks.get(now.name) ?? []).map((each) => each[place])) };
  };
  return new Table("Models", [
    ["model", "name", (item) => link(root, item)],
    ["requests / s", "number", at("requests.all.rate", rate, (now) => now.requests.all.rate)],
    ["rate, 5 min", "sparks large", line("rate", 1)],
    ["p50", "number large", whole("p50_s")],
    ["p95", "number", whole("p95_s")],
    ["p95, 5 min", "sparks", line("p95", 2)],
    ["p99", "number large", whole("p99_s")],
    ["not answered / s", "number", at("requests.lost", rate, (now) => now.requests.shed.rate + now.requests.failed.rate)],
    ["SLO burn", "number", worst],
    ["queue", "number", at("now.queue_rows", count, (now) => now.now.queue_rows)],
    ["rows / batch", "number large", at("batches.rows_mean", decimal, (now) => now.batches.rows_mean)],
    ["executors", "number large", at("now.executors", count, (now) => now.now.executors)],
  ]);
}

function link(root, item) {
  const state = pill(), variant = h("span", { class: "note" }), why = h("span", { class: "error" });
  const element = h("span", null, h("a", { href: `${root}models/${item.name}` }, item.name), " ", state.element, variant, why);
  return {
    element,
    update(now) {
      state.update(now);
      state.element.hidden = now.state === "ready" && now.ready;
      text(variant, now.variant);
      text(why, now.reason);
      why.hidden = !now.reason;
    },
  };
}

function worst(item) {
  const made = figure(`models.${item.name}.burn`, burn);
  return {
    element: made.element,
    update(now) {
      const known = now.objectives.map((each) => each.burn_recent).filter((each) => each !== null);
      const value = known.length ? Math.max(...known) : null;
      made.set(value);
      attribute(made.element, "class", value > 6 ? "bad" : value > 1 ? "warn" : "fine");
    },
  };
}
