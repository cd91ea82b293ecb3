// Elements. Text from the server goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

export function attribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// A number on the page: its text, the value it was made from, and the path of that value in /ui/data.
export function figure(path, format, tag = "span") {
  const element = h(tag, { "data-key": path });
  return {
    element,
    set(value) {
      attribute(element, "data-value", value ?? "");
      text(element, format(value));
    },
  };
}

// A list whose elements live as long as their items, so that focus and selection survive an update.
export class List {
  constructor(parent, create) {
    this.parent = parent;
    this.create = create;
    this.known = new Map();
  }

  update(items, key) {
    const wanted = new Map(items.map((item) => [key(item), item]));
    for (const [name, made] of this.known) {
      if (!wanted.has(name)) {
        made.element.remove();
        this.known.delete(name);
      }
    }
    let place = this.parent.firstElementChild;
    for (const [name, item] of wanted) {
      let made = this.known.get(name);
      if (!made) {
        made = this.create(item);
        this.known.set(name, made);
      }
      if (made.element !== place) this.parent.insertBefore(made.element, place);
      else place = place.nextElementSibling;
      made.update(item);
    }
  }
}

// A table whose columns are [title, class, how to make a cell]; a cell is {element, update(item)}.
export class Table {
  constructor(caption, columns, rowAttributes = () => ({})) {
    this.body = h("tbody");
    const heads = columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title));
    this.element = h("table", null, h("caption", { class: "hidden" }, caption), h("thead", null, h("tr", null, heads)), this.body);
    this.list = new List(this.body, (item) => {
      const cells = columns.map(([title, kind, make]) => {
        const cell = make(item);
        const attributes = { class: kind, "data-title": title };
        const first = title === columns[0][0];
        return { update: cell.update, element: h(first ? "th" : "td", first ? { ...attributes, scope: "row" } : attributes, cell.element) };
      });
      const row = h("tr", rowAttributes(item), cells.map((each) => each.element));
      return { element: row, update: (now) => cells.forEach((each) => each.update(now)) };
    });
  }

  update(items, key) {
    this.list.update(items, key);
  }
}

export function number(path, format, pick) {
  return (item) => {
    const made = figure(path(item), format);
    return { element: made.element, update: (now) => made.set(pick(now)) };
  };
}

export function label(pick) {
  return () => {
    const element = h("span");
    return { element, update: (now) => text(element, pick(now)) };
  };
}

// Note which snapshot the page shows, and when the first figures were there.
export function drawn(main, snapshot) {
  if (main.getAttribute("aria-busy")) performance.mark("figures");
  main.removeAttribute("aria-busy");
  attribute(main, "data-at", snapshot.at_s);
  attribute(main, "data-window", snapshot.models[0]?.window_s);
}
