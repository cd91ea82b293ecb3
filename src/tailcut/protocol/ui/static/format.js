// Numbers as people read them: three digits, a unit, and a dash for a figure that there is not.

const NONE = "–";

function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US").replaceAll(",", "\u202f");
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0 ms";
  if (value >= 1) return `${digits(value)} s`;
  return value >= 1e-3 ? `${digits(value * 1e3)} ms` : `${digits(value * 1e6)} µs`;
}

export function rate(value) {
  if (value === null || value === undefined) return NONE;
  return value > 0 && value < 0.05 ? "< 0.1" : value >= 100 ? digits(value) : value.toFixed(1);
}

export function share(value) {
  if (value === null || value === undefined) return NONE;
  if (value > 0.9995 && value < 1) return "> 99.9 %";
  return `${(value * 100).toFixed(1)} %`;
}

export function objective(value) {
  return `${Number((value * 100).toFixed(4))} %`;
}

export function count(value) {
  return value === null || value === undefined ? NONE : Math.round(value).toLocaleString("en-US").replaceAll(",", "\u202f");
}

export function decimal(value) {
  return value === null || value === undefined ? NONE : digits(value);
}

export function burn(value) {
  return value === null || value === undefined ? NONE : `${value >= 100 ? Math.round(value) : value.toFixed(1)}×`;
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= size) return `${digits(value / size)} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

export function span(value) {
  if (value === null || value === undefined) return NONE;
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (value >= size) return `${digits(value / size)} ${unit}`;
  }
  return `${Math.round(value)} s`;
}

export function clock(atSeconds) {
  return new Date(atSeconds * 1000).toLocaleTimeString("en-GB");
}

export function ago(atSeconds, nowSeconds) {
  const passed = Math.max(nowSeconds - atSeconds, 0);
  return passed < 1.5 ? "now" : `${passed < 3600 && passed >= 60 ? `${Math.round(passed / 60)} min` : span(passed)} ago`;
}

export function words(name) {
  return name.replaceAll("_", " ");
}
