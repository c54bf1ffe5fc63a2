"use strict";
// Curves as inline SVG. A panel is {title, steps: [..], lines: {name: [number or null, ..]}}.

const WIDTH = 320, HEIGHT = 120, LEFT = 50, RIGHT = 6, TOP = 8, BOTTOM = 16;

/** An element with a class and a text. Text is only ever set as text. */
function make(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== "") made.textContent = text;
  return made;
}

/** A part of a drawing; its kind of name is taken from a drawing that the page has already. */
function draw(tag, attributes, text = "") {
  const made = document.createElementNS(document.getElementById("canvas").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== "") made.textContent = text;
  return made;
}

/** A number as a person reads it. */
function short(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(size >= 100 ? 4 : digits)));
}

/** One panel: title, curves, and a legend that tells the values under the pointer. */
function curve(panel) {
  const figure = make("figure", "curve");
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": panel.title });
  const names = Object.keys(panel.lines);
  const scale = scales(panel);
  for (const value of [scale.low, (scale.low + scale.high) / 2, scale.high]) {
    svg.append(draw("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: scale.y(value), y2: scale.y(value), class: "grid" }));
    svg.append(draw("text", { x: LEFT - 4, y: scale.y(value) + 3, "text-anchor": "end" }, short(value, 2)));
  }
  const last = panel.steps.length - 1;
  svg.append(draw("text", { x: LEFT, y: HEIGHT - 3 }, `step ${panel.steps[0]}`));
  svg.append(draw("text", { x: WIDTH - RIGHT, y: HEIGHT - 3, "text-anchor": "end" }, String(panel.steps[last])));
  names.forEach((name, at) => svg.append(...series(panel, name, at, scale)));
  const cursor = draw("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "cursor", visibility: "hidden" });
  svg.append(cursor);

  const where = make("span", "at"), legend = make("div", "legend"), values = {};
  names.forEach((name, at) => {
    const entry = make("span");
    entry.append(make("i", `c${at}`), `${name} `, (values[name] = make("b")));
    legend.append(entry);
  });
  const tell = (at) => {
    where.textContent = `step ${panel.steps[at]}`;
    for (const name of names) values[name].textContent = short(panel.lines[name][at]);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = scale.nearest(((event.clientX - box.left) / box.width) * WIDTH);
    cursor.setAttribute("visibility", "visible");
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, scale.x(at));
    tell(at);
  });
  const rest = () => { cursor.setAttribute("visibility", "hidden"); tell(last); };
  svg.addEventListener("pointerleave", rest);
  rest();
  figure.append(make("b", "", panel.title), where, svg, legend);
  return figure;
}

/** From steps and values to places in the drawing. */
function scales(panel) {
  const found = Object.values(panel.lines).flat().filter((value) => value !== null);
  let low = Infinity, high = -Infinity;
  for (const value of found) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > 0 && low < high / 2) low = 0; // a quantity that starts near nothing is shown from nothing
  if (low === high) { low -= low ? Math.abs(low) / 2 : 0; high += high ? Math.abs(high) / 2 : 1; }
  const first = panel.steps[0], span = panel.steps[panel.steps.length - 1] - first || 1;
  const across = WIDTH - LEFT - RIGHT, down = HEIGHT - TOP - BOTTOM;
  const x = (at) => LEFT + ((panel.steps[at] - first) / span) * across;
  const y = (value) => TOP + (1 - (value - low) / (high - low)) * down;
  const nearest = (place) => {
    let best = 0;
    panel.steps.forEach((_, at) => { if (Math.abs(x(at) - place) < Math.abs(x(best) - place)) best = at; });
    return best;
  };
  return { low, high, x, y, nearest };
}

/** A line through the values that are there, and dots where they are few. */
function series(panel, name, colour, scale) {
  const points = panel.lines[name].map((value, at) => [at, value]).filter(([, value]) => value !== null);
  const places = points.map(([at, value]) => [scale.x(at).toFixed(1), scale.y(value).toFixed(1)]);
  const path = draw("path", { d: `M${places.map((place) => place.join(" ")).join("L")}`, class: `series c${colour}` });
  const dots = places.length > 30 ? [] : places.map(([cx, cy]) => draw("circle", { cx, cy, r: 1.6, class: `c${colour}`, fill: "none" }));
  return [path, ...dots];
}
