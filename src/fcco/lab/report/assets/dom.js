// The page's data, and elements from it. Names reach the page as text nodes and attributes only, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);

const fill = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
};
const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const hide = (text) => make("span", { class: "hidden" }, text);

// Seven colours (in the style sheet) and five dashes: 35 styles, told apart without colour too.
const dashes = [null, "8 3", "2.5 2.5", "8 3 2 3", "14 3 5 3"];
const color = (group) => ({ "--c": `var(--s${group.style % 7})` });
const stroke = (group) => ({ ...color(group), "stroke-dasharray": dashes[group.style % dashes.length] });
const swatch = (group) =>
  draw("svg", { class: "swatch", viewBox: "0 0 30 10", "aria-hidden": "true" },
    draw("line", { x1: 1, x2: 29, y1: 5, y2: 5, class: "line", ...stroke(group) }));
const named = (group) => make("span", { class: "named" }, swatch(group), make("span", {}, group.label));

// A table in a box that scrolls by itself, so that the page never does.
const table = (label, heads, rows, kind = null) =>
  make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    make("table", { class: kind },
      make("thead", {}, make("tr", {}, heads.map((head) =>
        make("th", { scope: "col", class: head.class, title: head.help, "aria-sort": head.sort }, head.content ?? head)))),
      make("tbody", {}, rows.map((cells) => make("tr", {}, cells.map((cell, column) =>
        make(column ? "td" : "th", column ? { class: cell.class } : { scope: "row" }, cell.content ?? cell)))))));

const segment = (box, type, options, chosen, change) => {
  box.append(...options.map(([key, label, help]) => {
    const input = make("input", { type, name: box.id, value: key, id: `${box.id}-${key}`, checked: chosen(key) });
    input.addEventListener("change", () => change(key, input.checked));
    return make("span", { class: "segment" }, input, make("label", { for: input.id, title: help }, label));
  }));
};
