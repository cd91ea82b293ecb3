// Plots over time in SVG, drawn at the size they have on the screen; the same values as a table for whoever reads those.

import { attribute, h, s, text } from "./dom.js";
import { clock } from "./format.js";

const LEFT = 58, RIGHT = 10, TOP = 8, BOTTOM = 22;
const LEAST_S = 60, LONGEST_S = 900;

// series: [{name, label, kind}]; kind is a class that colours it. options: stacked, log, format, note.
export class Plot {
  constructor(title, series, options) {
    this.series = series;
    this.options = options;
    this.points = [];
    this.marked = null;
    this.svg = s("svg", { tabindex: "0", role: "img", "aria-label": title, class: "plot" });
    this.frame = s("g");
    this.shapes = s("g");
    this.cursor = s("line", { class: "cursor", visibility: "hidden" });
    this.over = s("text", { class: "over", "text-anchor": "middle" });
    this.svg.append(this.frame, this.shapes, this.cursor, this.over);
    this.readout = h("p", { class: "readout" });
    this.table = h("div", { class: "scroll" });
    this.details = h("details", { ontoggle: () => this.tabulate() }, h("summary", null, "As a table"), this.table);
    const legend = h("ul", { class: "legend" }, series.map((each) => h("li", null, h("i", { class: each.kind }), each.label)));
    this.element = h("figure", null, h("figcaption", null, h("h2", null, title), options.note ? h("p", { class: "note" }, options.note) : null), legend, this.svg, this.readout, this.details);
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.mark(null));
    this.svg.addEventListener("blur", () => this.mark(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  // points: arrays of numbers; names: what the numbers are, "at" first.
  update(points, names) {
    const at = names.indexOf("at");
    const places = this.series.map((each) => names.indexOf(each.name));
    this.points = points.map((each) => ({ at: each[at], values: places.map((place) => each[place]) }));
    this.draw();
    this.tabulate();
  }

  draw() {
    const width = this.svg.clientWidth, height = this.svg.clientHeight;
    if (!width) return;
    const end = this.points.length ? this.points.at(-1).at : 0;
    const begin = Math.max(end - LONGEST_S, Math.min(this.points[0]?.at ?? 0, end - LEAST_S));
    this.shown = thinned(this.points.filter((each) => each.at >= begin), begin, end, Math.max(Math.floor(width / 3), 60));
    this.x = (value) => LEFT + ((value - begin) / Math.max(end - begin, 1)) * (width - LEFT - RIGHT);
    const scale = this.scale(height);
    this.y = scale.y;
    this.frame.replaceChildren(...scale.ticks.flatMap((tick) => this.level(tick, width)), ...this.times(begin, end, width, height));
    const shapes = this.options.stacked ? this.areas() : this.lines();
    this.shapes.replaceChildren(...shapes);
    const any = this.shown.some((each) => each.values.some((value) => value > 0));
    attribute(this.over, "x", width / 2);
    attribute(this.over, "y", height / 2);
    text(this.over, any ? "" : "no requests in this time");
    this.show();
  }

  scale(height) {
    const whole = (each) => (this.options.stacked ? sum(each.values) : Math.max(...each.values.map((value) => value ?? 0)));
    const top = Math.max(...this.shown.map(whole), 0);
    const room = height - TOP - BOTTOM;
    if (!this.options.log) {
      const step = niceStep((top || this.options.least) / 3.2);
      const end = Math.max(Math.ceil(top / step) * step, step);
      const ticks = Array.from({ length: Math.round(end / step) + 1 }, (_, place) => place * step);
      return { ticks, y: (value) => TOP + room - (value / end) * room };
    }
    const known = this.shown.flatMap((each) => each.values).filter((value) => value > 0);
    const low = Math.floor(Math.log10(known.length ? Math.min(...known) : this.options.least));
    const high = Math.max(Math.ceil(Math.log10(top || this.options.least * 10)), low + 1);
    const decades = Array.from({ length: high - low + 1 }, (_, place) => 10 ** (low + place));
    const y = (value) => TOP + room - ((Math.log10(Math.max(value, 10 ** low)) - low) / (high - low)) * room;
    return { ticks: decades, y };
  }

  level(tick, width) {
    const y = Math.round(this.y(tick)) + 0.5;
    return [
      s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }),
      s("text", { class: "tick", x: LEFT - 8, y: y + 4, "text-anchor": "end" }, round(this.options.format(tick))),
    ];
  }

  times(begin, end, width, height) {
    const most = Math.min((width - LEFT) / 80, 6);
    const step = [10, 20, 30, 60, 120, 180, 300].find((each) => (end - begin) / each <= most) ?? 300;
    const found = [];
    for (let past = 0; past <= end - begin; past += step) {
      const label = past === 0 ? "now" : past % 60 ? `−${past} s` : `−${past / 60} min`;
      found.push(s("text", { class: "tick", x: this.x(end - past), y: height - 5, "text-anchor": past === 0 ? "end" : "middle" }, label));
    }
    return found;
  }

  areas() {
    const found = [];
    const under = this.shown.map(() => 0);
    this.series.forEach((series, place) => {
      const low = [...under];
      this.shown.forEach((each, at) => (under[at] += each.values[place] ?? 0));
      const parts = runs(this.shown).map(([from, to]) => {
        const upper = [], lower = [];
        for (let at = from; at <= to; at += 1) {
          const x = this.x(this.shown[at].at).toFixed(1);
          upper.push(`${x},${this.y(under[at]).toFixed(1)}`);
          lower.unshift(`${x},${this.y(low[at]).toFixed(1)}`);
        }
        return `M${upper.join("L")}L${lower.join("L")}Z`;
      });
      found.push(s("path", { class: `area ${series.kind}`, d: parts.join("") }));
    });
    return found;
  }

  lines() {
    return this.series.map((series, place) => {
      let path = "", open = false, last = null;
      for (const each of this.shown) {
        const value = each.values[place];
        const broken = last !== null && each.at - last > this.gap();
        if (value === null || value === undefined) open = false;
        else {
          path += `${open && !broken ? "L" : "M"}${this.x(each.at).toFixed(1)},${this.y(value).toFixed(1)}`;
          open = true;
          last = each.at;
        }
      }
      return s("path", { class: `line ${series.kind}`, d: path || "M0,0" });
    });
  }

  gap() {
    return 25;
  }

  point(x) {
    if (!this.shown?.length) return;
    const away = this.shown.map((each) => Math.abs(this.x(each.at) - x));
    this.mark(away.indexOf(Math.min(...away)));
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (event.key === "Escape") this.mark(null);
    else if (step) {
      event.preventDefault();
      const from = this.marked ?? (step < 0 ? this.shown.length : -1);
      this.mark(Math.min(Math.max(from + step, 0), this.shown.length - 1));
      attribute(this.readout, "aria-live", "polite");
    }
  }

  mark(place) {
    this.marked = place;
    this.show();
  }

  show() {
    const each = this.marked === null ? null : this.shown?.[this.marked];
    attribute(this.cursor, "visibility", each ? "visible" : "hidden");
    if (!each) {
      attribute(this.readout, "aria-live", null);
      text(this.readout, "");
      return;
    }
    for (const [name, value] of [["x1", this.x(each.at)], ["x2", this.x(each.at)], ["y1", TOP], ["y2", this.svg.clientHeight - BOTTOM]]) attribute(this.cursor, name, value);
    const whole = this.options.stacked && this.series.length > 1 ? [`total ${this.options.format(sum(each.values))}`] : [];
    const parts = this.series.map((series, place) => (each.values[place] ? `${series.label} ${this.options.format(each.values[place])}` : null));
    text(this.readout, [clock(each.at), ...whole, ...parts.filter(Boolean)].join("  ·  "));
  }

  tabulate() {
    if (!this.details.open || !this.points.length) return;
    const end = this.points.at(-1).at;
    const rows = thinned(this.points, this.points[0].at, end, 15).reverse();
    const heads = ["time", ...this.series.map((each) => each.label)].map((each) => h("th", { scope: "col" }, each));
    const body = rows.map((each) => h("tr", null, h("th", { scope: "row" }, clock(each.at)), each.values.map((value) => h("td", null, this.options.format(value)))));
    this.table.replaceChildren(h("table", null, h("thead", null, h("tr", null, heads)), h("tbody", null, body)));
  }
}

export class Spark {
  constructor(label) {
    this.path = s("path", { class: "line" });
    this.element = s("svg", { class: "spark", role: "img", "aria-label": label, viewBox: "0 0 80 20", preserveAspectRatio: "none" }, this.path);
  }

  // values: the last of them is now; null is a gap.
  update(values) {
    const shown = values.slice(-60), top = Math.max(...shown.map((each) => each ?? 0), 1e-12);
    let path = "", open = false;
    shown.forEach((value, place) => {
      if (value === null || value === undefined) open = false;
      else {
        path += `${open ? "L" : "M"}${((place + 60 - shown.length) * 80 / 59).toFixed(1)},${(18.5 - (value / top) * 17).toFixed(1)}`;
        open = true;
      }
    });
    attribute(this.path, "d", path || "M0,18.5");
  }
}

function sum(values) {
  return values.reduce((total, each) => total + (each ?? 0), 0);
}

// A round number on an axis needs no digits behind the point: 10.0 ms is 10 ms.
function round(label) {
  return label.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "").replace(/^0 .*/, "0");
}

function niceStep(value) {
  const size = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 2, 5, 10].find((each) => each * size >= value) * size;
}

// Stretches of points without a gap: where there were no requests, or nobody looked.
function runs(points) {
  const found = [];
  points.forEach((each, at) => {
    const empty = each.values.every((value) => value === null || value === undefined);
    if (empty) return;
    const last = found.at(-1);
    if (last && last[1] === at - 1 && each.at - points[at - 1].at <= 25) last[1] = at;
    else found.push([at, at]);
  });
  return found;
}

// As many points as there is room for: the means of neighbours.
function thinned(points, begin, end, most) {
  if (points.length <= most) return points;
  const width = (end - begin) / most, found = new Map();
  for (const each of points) {
    const place = Math.floor((each.at - begin) / width);
    if (!found.has(place)) found.set(place, []);
    found.get(place).push(each);
  }
  return [...found.values()].map((group) => ({
    at: group.at(-1).at,
    values: group[0].values.map((_, place) => {
      const known = group.map((each) => each.values[place]).filter((value) => value !== null && value !== undefined);
      return known.length ? sum(known) / known.length : null;
    }),
  }));
}
