// Cards that more than one page has: facts, alerts, kept requests; and the sections of a model.

import { attribute, figure, h, label, List, number, s, Table, text } from "./dom.js";
import { ago, burn, bytes, count, decimal, objective, rate, seconds, share, span, words } from "./format.js";

export const STAGES = document.documentElement.dataset.stages.split(" ");

export function card(title, note, ...children) {
  const id = `card-${title.toLowerCase().replaceAll(" ", "-")}`;
  return h("section", { class: "card", "aria-labelledby": id }, h("h2", { id }, title), note ? h("p", { class: "note" }, note) : null, ...children);
}

// Facts in a row: [[title, path, format, pick]]; pick returns undefined for a fact that there is not.
export function facts(items) {
  const made = items.map(([title, path, format, pick]) => {
    const value = figure(path, format, "dd");
    return { value, pick, element: h("div", { class: "fact" }, h("dt", null, title), value.element) };
  });
  return {
    element: h("dl", { class: "facts" }, made.map((each) => each.element)),
    update(now) {
      for (const each of made) {
        const value = each.pick(now);
        each.element.hidden = value === undefined;
        each.value.set(value ?? null);
      }
    },
  };
}

export function bar(kind = "") {
  const fill = s("rect", { class: kind, height: "10", width: "0", rx: "2" });
  const element = s("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { class: "track", width: "100", height: "10", rx: "2" }), fill);
  return { element, set: (value) => attribute(fill, "width", Math.min(Math.max(value ?? 0, 0), 1) * 100) };
}

export function pill() {
  const element = h("span", { class: "pill" });
  return {
    element,
    update(model) {
      const state = model.state === "ready" && !model.ready ? "not ready" : model.state;
      attribute(element, "data-state", state);
      text(element, state);
    },
  };
}

export function alerts() {
  const list = h("ul", { class: "alerts" });
  const items = new List(list, () => {
    const title = h("b"), told = h("span"), since = h("span", { class: "note" }), more = h("span", { class: "note more" });
    const element = h("li", null, title, told, since, more);
    return {
      element,
      update([alert, now]) {
        attribute(element, "data-severity", alert.severity);
        text(title, words(alert.name));
        text(told, `${alert.model ? `${alert.model}: ` : ""}${alert.text}`);
        text(since, `for ${past(alert.since_s, now)}${alert.stage ? `, probably ${alert.stage}` : ""}`);
        text(more, alert.hint);
      },
    };
  });
  const quiet = h("p", { class: "empty" }, "No alert is firing.");
  const element = card("Alerts", null, list, quiet);
  return {
    element,
    update(snapshot) {
      element.hidden = !snapshot.alerts;
      quiet.hidden = Boolean(snapshot.alerts?.length);
      items.update((snapshot.alerts ?? []).map((each) => [each, snapshot.at_s]), ([each]) => `${each.name} ${each.model} ${each.subject} ${each.severity}`);
    },
  };
}

export function keptRequests(root, withModel) {
  const link = (item) => {
    const element = h("a", { href: `${root}requests/${item.trace}` }, item.trace.slice(0, 8));
    return { element, update() {} };
  };
  const columns = [
    ["request", "", link],
    ...(withModel ? [["model", "", label((each) => each.model)]] : []),
    ["took", "number", number((item) => `kept.${item.trace}.total_s`, seconds, (each) => each.total_s)],
    ["outcome", "", label((each) => (each.code === "ok" ? "answered" : words(each.code)))],
    ["route", "large", label((each) => each.route)],
    ["variant", "large", label((each) => each.variant)],
    ["ended", "", label((each) => ago(each.ended_s, each.now))],
  ];
  const table = new Table("Slowest and failed requests", columns);
  const quiet = h("p", { class: "empty" }, "None was kept in the last minutes.");
  const element = card("Slowest and failed requests", "Of the last minutes. A request opens as a waterfall with its batch.", h("div", { class: "scroll" }, table.element), quiet);
  return {
    element,
    update(models, now) {
      const kept = models.flatMap((each) => each.kept ?? []);
      element.hidden = models.every((each) => !each.kept);
      quiet.hidden = kept.length > 0;
      table.element.hidden = !kept.length;
      kept.sort((one, other) => (one.code === "ok") - (other.code === "ok") || other.total_s - one.total_s);
      table.update(kept.slice(0, 20).map((each) => ({ ...each, now })), (each) => each.trace);
    },
  };
}

// Each of the following is about one model: {element, update(model)}; path is that of the model in /ui/data.

export function stages(path) {
  const part = (item) => {
    const made = bar(`fill-${item.name}`);
    return { element: made.element, update: (now) => made.set(now.whole ? now.mean_s / now.whole : 0) };
  };
  const titled = (item) => {
    const element = h("span", { class: "stage" }, h("i", { class: `fill-${item.name}` }), words(item.name));
    return { element, update() {} };
  };
  const cell = (name) => number((item) => `${path}.stages.${item.name}.${name}`, seconds, (now) => now[name]);
  const table = new Table("Latency by stage", [
    ["stage", "", titled],
    ["share of mean", "wide", part],
    ["mean", "number", cell("mean_s")],
    ["p50", "number large", cell("p50_s")],
    ["p95", "number", cell("p95_s")],
    ["p99", "number", cell("p99_s")],
  ], (item) => ({ class: item.name === "request" ? "total" : "" }));
  const quiet = h("p", { class: "empty" }, "No request was answered in the last seconds.");
  const element = card("Stages", "Answered requests of the last ten seconds. The mean is over all of them; percentiles are over those that met the stage.", h("div", { class: "scroll" }, table.element), quiet);
  return {
    element,
    update(model) {
      const whole = model.stages.at(-1).mean_s;
      const shown = model.stages.filter((each) => each.count).map((each) => ({ ...each, whole }));
      quiet.hidden = shown.length > 0;
      table.element.hidden = !shown.length;
      table.update(shown, (each) => each.name);
    },
  };
}

export function slo(path) {
  const burning = (name) => (item) => {
    const made = figure(`${path}.objectives.${item.name}.${name}`, burn);
    return {
      element: made.element,
      update(now) {
        made.set(now[name]);
        attribute(made.element, "class", now[name] > 6 ? "bad" : now[name] > 1 ? "warn" : "fine");
      },
    };
  };
  const at = (name, format) => number((item) => `${path}.objectives.${item.name}.${name}`, format, (now) => now[name]);
  const table = new Table("Objectives of the SLO", [
    ["objective", "", label((each) => (each.limit_s === null ? `${objective(each.share)} answered` : `${objective(each.share)} within ${seconds(each.limit_s)}`))],
    ["met", "number", number((item) => `${path}.objectives.${item.name}.met`, (value) => (value === null ? "–" : value === 1 ? "100 %" : `${(value * 100).toFixed(2)} %`), (now) => (now.total ? now.good / now.total : null))],
    ["burn, 5 min", "number", burning("burn_recent")],
    ["burn, since start", "number", burning("burn")],
    ["good", "number", at("good", count)],
    ["of", "number", at("total", count)],
  ]);
  const element = card("SLO", "A burn of 1× uses exactly the error budget; above it the budget runs out early.", h("div", { class: "scroll" }, table.element));
  return {
    element,
    update(model) {
      element.hidden = !model.objectives.length;
      table.update(model.objectives, (each) => `${each.name} ${each.share} ${each.limit_s}`);
    },
  };
}

export function lookups(path) {
  const rows = (kind, title, first) => {
    const at = (name, format, pick) => number((item) => `${path}.${kind}.${item.name}${kind === "features" ? `/${item.about}` : ""}.${name}`, format, pick);
    const hit = () => {
      const made = bar("hit");
      return { element: made.element, update: (now) => made.set(now.share) };
    };
    return new Table(title, [
      [first, "", label((each) => (each.about ? `${each.name} (${each.about})` : each.name))],
      ["", "wide", hit],
      ["hit rate", "number", at("share", share, (now) => now.share)],
      ["hits", "number", at("hits.total", count, (now) => now.hits.total)],
      ["misses", "number", at("misses.total", count, (now) => now.misses.total)],
      ["stale", "number large", at("stale", count, (now) => now.stale)],
      ...(kind === "features" ? [["errors", "number", at("errors", count, (now) => now.errors)]] : [["size", "number", at("size_bytes", bytes, (now) => now.size_bytes)]]),
    ]);
  };
  const features = rows("features", "Hit rates of feature groups", "feature group"), caches = rows("caches", "Hit rates of prediction caches", "prediction cache");
  const element = card("Hit rates", "Rates are of the last ten seconds, counts since the start.", h("div", { class: "scroll" }, features.element), h("div", { class: "scroll more" }, caches.element));
  return {
    element,
    update(model) {
      element.hidden = !model.features.length && !model.caches.length;
      features.element.hidden = !model.features.length;
      caches.element.hidden = !model.caches.length;
      features.update(model.features, (each) => `${each.name} ${each.about}`);
      caches.update(model.caches, (each) => each.name);
    },
  };
}

export function batches(path) {
  const head = facts([
    ["rows per batch", `${path}.batches.rows_mean`, decimal, (now) => now.rows_mean],
    ["time per batch", `${path}.batches.seconds_mean`, seconds, (now) => now.seconds_mean],
    ["batches / s", `${path}.batches.count.rate`, rate, (now) => now.count.rate],
    ["batches", `${path}.batches.count.total`, count, (now) => now.count.total],
    ["rows", `${path}.batches.rows_total`, count, (now) => now.rows_total],
  ]);
  const table = new Table("Batches by rows", [
    ["rows", "", label((each) => each.label)],
    ["", "widest", () => { const made = bar("size"); return { element: made.element, update: (now) => made.set(now.part) }; }],
    ["batches", "number", number((item) => `${path}.batches.sizes.${item.label}`, count, (now) => now.count)],
  ]);
  const element = card("Batches", "Sizes, means and rates are of the last ten seconds, counts since the start.", head.element, h("div", { class: "scroll" }, table.element));
  return {
    element,
    update(model) {
      head.update(model.batches);
      const most = Math.max(...model.batches.sizes.map((each) => each[1]), 1);
      const last = model.batches.sizes.findLastIndex((each) => each[1]);
      const shown = model.batches.sizes.slice(0, last + 1).map(([bound, n], place, all) => {
        const low = place ? all[place - 1][0] + 1 : 1;
        return { label: bound === null ? `over ${low - 1}` : low === bound ? `${bound}` : `${low}–${bound}`, count: n, part: n / most };
      });
      table.element.hidden = !shown.length;
      table.update(shown, (each) => each.label);
    },
  };
}

export function variants(path) {
  const at = (name, format, pick = (now) => now[name]) => number((item) => `${path}.variants.${item.name}.${name}`, format, pick);
  const part = () => {
    const made = bar("size");
    return { element: made.element, update: (now) => made.set(now.share) };
  };
  const table = new Table("Variants", [
    ["variant", "", label((each) => (each.served ? `${each.name} (served)` : each.name))],
    ["", "wide", part],
    ["share", "number", at("share", share)],
    ["requests", "number large", at("requests.total", count, (now) => now.requests.total)],
    ["p50", "number large", at("p50_s", seconds)],
    ["p95", "number", at("p95_s", seconds)],
    ["p99", "number", at("p99_s", seconds)],
    ["device busy", "number busy", at("busy_share", share)],
    ["cost per million", "number cost", at("cost", decimal, (now) => now.cost)],
    ["", "cost", label((each) => each.currency)],
  ]);
  const element = card("Variants", "Shares and percentiles are of the last ten seconds; the cost is what the build measured.", h("div", { class: "scroll" }, table.element));
  return {
    element,
    update(model) {
      element.hidden = !model.variants.length;
      attribute(table.element, "class", [["busy_share", "no-busy"], ["cost", "no-cost"]].map(([name, kind]) => (model.variants.some((each) => each[name] !== null) ? "" : kind)).join(" "));
      table.update(model.variants, (each) => `${each.name} ${each.version}`);
    },
  };
}

export function errors(path) {
  const table = new Table("Errors by code", [
    ["code", "", label((each) => words(each.code))],
    ["per second", "number", number((item) => `${path}.requests.codes.${item.code}.rate`, rate, (now) => now.rate)],
    ["since start", "number", number((item) => `${path}.requests.codes.${item.code}.total`, count, (now) => now.total)],
  ]);
  const quiet = h("p", { class: "empty" }, "None since the start.");
  const element = card("Errors", null, h("div", { class: "scroll" }, table.element), quiet);
  return {
    element,
    update(model) {
      const codes = Object.entries(model.requests.codes).map(([code, each]) => ({ code, ...each }));
      codes.sort((one, other) => other.rate - one.rate || other.total - one.total);
      quiet.hidden = codes.length > 0;
      table.element.hidden = !codes.length;
      table.update(codes, (each) => each.code);
    },
  };
}

export function drift(path) {
  const list = h("div", { class: "columns" });
  const items = new List(list, (column) => {
    const psi = figure(`${path}.drift.${column.role}.${column.name}.psi`, (value) => `PSI ${decimal(value)}`);
    const title = h("b"), told = h("span", { class: "note" });
    const plot = s("svg", { class: "shares", role: "img", preserveAspectRatio: "none" });
    return {
      element: h("div", { class: "column" }, title, h("p", null, psi.element, " ", told), plot),
      update([now, at]) {
        text(title, `${now.role} ${now.name}`);
        psi.set(now.psi);
        attribute(psi.element, "class", now.drifting ? "bad" : "");
        const parts = [now.drifting ? `drifts for ${past(now.since_s, at)}` : "no drift", `missing ${share(now.missing)}`, `unseen ${share(now.unseen)}`];
        text(told, parts.join(", "));
        distributions(plot, now);
      },
    };
  });
  const head = h("p", { class: "note" });
  const element = card("Drift", null, head, list);
  return {
    element,
    update(model, at) {
      element.hidden = !model.drift;
      if (!model.drift) return;
      text(head, `${count(model.drift.rows)} rows compared with the holdout. Filled: the current window; outlined: the holdout.`);
      items.update(model.drift.columns.slice(0, 12).map((each) => [each, at]), ([each]) => `${each.role} ${each.name}`);
    },
  };
}

function distributions(plot, column) {
  const cells = column.current.length, top = Math.max(...column.current, ...column.reference, 1e-9);
  attribute(plot, "viewBox", `0 0 ${cells * 10} 40`);
  attribute(plot, "aria-label", `${column.name}: ${column.labels.map((each, place) => `${each} ${share(column.current[place])}, was ${share(column.reference[place])}`).join("; ")}`);
  plot.replaceChildren(...column.current.flatMap((value, place) => {
    const now = (value / top) * 38, before = (column.reference[place] / top) * 38;
    return [
      s("rect", { class: "now", x: place * 10 + 1, width: 8, y: 40 - now, height: now }),
      s("path", { class: "was", d: `M${place * 10},${40 - before}h10`, "vector-effect": "non-scaling-stroke" }, s("title", null, `${column.labels[place] ?? ""}: ${share(value)}, was ${share(column.reference[place])}`)),
    ];
  }));
}

function past(atSeconds, now) {
  return span(Math.max(now - atSeconds, 0));
}
