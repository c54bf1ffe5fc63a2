// Elements, numbers, and curves as inline SVG. A panel is {title, steps: [..], lines: {name: [number or null, ..]}}.

const WIDTH = 320, HEIGHT = 120, LEFT = 50, RIGHT = 6, TOP = 8, BOTTOM = 16;
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb]/g;

/** A text in which control characters, line separators and direction marks are replaced by their code points. */
function visible(text) {
  return text.replace(UNSEEN, (found) => `⟨U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** An element with a class and a text. Text is only ever set as text. */
function make(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== "") made.textContent = visible(text);
  return made;
}

/** An SVG element; the namespace is taken from an SVG that the page already has. */
function draw(tag, attributes, text = "") {
  const made = document.createElementNS($("canvas").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== "") made.textContent = text;
  return made;
}

/** A number in a readable form. */
function short(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(size >= 100 ? 4 : digits)));
}

/** A panel of one or two runs: title, curves (dashed for the `other` run), and a legend with the values under the pointer. */
function curve(panels) {
  const { title } = panels[0], figure = make("figure", "curve"), scale = scales(panels);
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  for (const value of [scale.low, (scale.low + scale.high) / 2, scale.high]) {
    svg.append(draw("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: scale.y(value), y2: scale.y(value), class: "grid" }));
    svg.append(draw("text", { x: LEFT - 4, y: scale.y(value) + 3, "text-anchor": "end" }, short(value, 2)));
  }
  svg.append(draw("text", { x: LEFT, y: HEIGHT - 3 }, `step ${scale.first}`));
  svg.append(draw("text", { x: WIDTH - RIGHT, y: HEIGHT - 3, "text-anchor": "end" }, String(scale.last)));
  const names = [...new Set(panels.flatMap((panel) => Object.keys(panel.lines)))];
  for (const panel of panels) names.forEach((name, at) => panel.lines[name] && svg.append(...series(panel, name, `c${at}${panel.other ? " other" : ""}`, scale)));
  const cursor = draw("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "cursor", visibility: "hidden" });
  svg.append(cursor);

  const where = make("span", "at"), legend = make("div", "legend"), values = names.map(() => make("b"));
  names.forEach((name, at) => {
    const entry = make("span");
    entry.append(make("i", `c${at}`), `${name} `, values[at]);
    legend.append(entry);
  });
  const tell = (step) => {
    where.textContent = `step ${step}`;
    names.forEach((name, at) => { values[at].textContent = panels.map((panel) => short(panel.lines[name]?.[nearest(panel.steps, step)])).join(" | "); });
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), longest = panels.reduce((a, b) => (b.steps.length > a.steps.length ? b : a)).steps;
    const step = longest[nearest(longest, scale.stepAt(((event.clientX - box.left) / box.width) * WIDTH))];
    cursor.setAttribute("visibility", "visible");
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, scale.x(step));
    tell(step);
  });
  const rest = () => { cursor.setAttribute("visibility", "hidden"); tell(scale.last); };
  svg.addEventListener("pointerleave", rest);
  rest();
  figure.append(make("b", "", title), where, svg, legend);
  return figure;
}

/** The index of the step closest to a given one. */
function nearest(steps, step) {
  let best = 0;
  steps.forEach((found, at) => { if (Math.abs(found - step) < Math.abs(steps[best] - step)) best = at; });
  return best;
}

/** Map steps and values to coordinates in the drawing. */
function scales(panels) {
  let low = Infinity, high = -Infinity;
  for (const value of panels.flatMap((panel) => Object.values(panel.lines).flat())) {
    if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
  }
  if (low > 0 && low < high / 2) low = 0; // start the axis at 0 if the lowest value is small
  if (low === high) { low -= low ? Math.abs(low) / 2 : 0; high += high ? Math.abs(high) / 2 : 1; }
  const first = Math.min(...panels.map(({ steps }) => steps[0])), last = Math.max(...panels.map(({ steps }) => steps[steps.length - 1]));
  const across = WIDTH - LEFT - RIGHT, down = HEIGHT - TOP - BOTTOM, span = last - first || 1;
  const x = (step) => LEFT + ((step - first) / span) * across;
  const y = (value) => TOP + (1 - (value - low) / (high - low)) * down;
  return { low, high, first, last, x, y, stepAt: (place) => first + ((place - LEFT) / across) * span };
}

/** A line through the values that are not null, and dots if they are few. */
function series(panel, name, className, scale) {
  const places = [];
  panel.lines[name].forEach((value, at) => { if (value !== null) places.push([scale.x(panel.steps[at]).toFixed(1), scale.y(value).toFixed(1)]); });
  const path = draw("path", { d: `M${places.map((place) => place.join(" ")).join("L")}`, class: `series ${className}` });
  const dots = places.length > 30 ? [] : places.map(([cx, cy]) => draw("circle", { cx, cy, r: 1.6, class: className, fill: "none" }));
  return [path, ...dots];
}
