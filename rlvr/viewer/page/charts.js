// Charts as inline SVG. A series is {label, colour, steps, values} and may have {low, high} (a band), `faint`, `dashed` or `stacked`;
// points are {label, colour, at: [[step, value, low, high], ..]}. The legend is a part of the drawing, so that a saved file has it.

const COLOURS_OF_LINES = 8;
const hue = (colour) => `c${colour % COLOURS_OF_LINES}`;

/** Round values between two ends, about so many. */
function ticks(low, high, count) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((found) => found >= rough * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}

/** The ends of the value axis: from 0 to 1 for shares and rewards in that range, else the values with a margin. */
function ends(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (value !== null && value !== undefined) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > high) return [0, 1];
  if (low >= 0 && high <= 1 && high > 0.4 && low < 0.6) return [0, 1];
  if (low > 0 && low < high / 2) low = 0; // start the axis at 0 if the lowest value is small
  if (low === high) { low -= low ? Math.abs(low) / 2 : 0; high += high ? Math.abs(high) / 2 : 1; }
  return [low, high];
}

/** Where steps and values are drawn. */
function scaleOf(series, points, size) {
  const steps = [...series.flatMap((one) => [one.steps[0], one.steps[one.steps.length - 1]]), ...points.flatMap((one) => one.at.map(([step]) => step))];
  const values = [...series.flatMap((one) => [...one.values, ...(one.low ?? []), ...(one.high ?? [])]), ...points.flatMap((one) => one.at.flatMap((at) => at.slice(1)))];
  const [low, high] = series.some((one) => one.stacked) ? [0, 1] : ends(values), first = Math.min(...steps), last = Math.max(...steps), span = last - first || 1;
  const across = size.width - size.left - size.right, down = size.height - size.top - size.bottom;
  const x = (step) => size.left + ((step - first) / span) * across, y = (value) => size.top + (1 - (value - low) / (high - low)) * down;
  return { low, high, first, last, x, y, stepAt: (place) => first + ((place - size.left) / across) * span };
}

const SMALL = { width: 320, height: 132, left: 44, right: 8, top: 6, bottom: 16, marks: 3 };

/** A figure: title, drawing, and a legend with the values under the pointer. `size` is SMALL unless told. */
function chart({ title, series, points = [], size = SMALL, labels = {} }) {
  const figure = make("figure", `curve ${labels.className ?? ""}`), head = make("figcaption"), where = make("span", "at"), legend = make("div", "legend");
  const svg = draw("svg", { viewBox: `0 0 ${size.width} ${size.height}`, role: "img", "aria-label": title });
  const scale = scaleOf(series, points, size), cursor = draw("line", { y1: size.top, y2: size.height - size.bottom, class: "cursor", visibility: "hidden" });
  svg.append(...axes(scale, size, labels));
  for (const [nth, one] of series.entries()) svg.append(...(one.stacked ? area(series, nth, scale) : lineOf(one, scale)));
  for (const one of points) svg.append(...dotsOf(one, scale, size));
  svg.append(cursor);
  const entries = [...series.filter((one) => !one.faint), ...points].map((one) => entryOf(one, legend));
  const tell = (step) => {
    where.textContent = `step ${Math.round(step)}`;
    for (const entry of entries) entry(step);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), longest = series.reduce((a, b) => (b.steps.length > a.steps.length ? b : a)).steps;
    const step = longest[nearest(longest, scale.stepAt(((event.clientX - box.left) / box.width) * size.width))];
    cursor.setAttribute("visibility", "visible");
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, scale.x(step));
    tell(step);
  });
  const rest = () => { cursor.setAttribute("visibility", "hidden"); tell(scale.last); };
  svg.addEventListener("pointerleave", rest);
  rest();
  head.append(make("b", "", title), make("span", "space"), where, saveButton(title, svg, () => [...series.filter((one) => !one.faint), ...points], size));
  figure.append(head, svg, legend);
  if (labels.note) figure.append(make("p", "note", labels.note));
  return figure;
}

/** Grid lines with their values, the first and the last step, and the names of the axes if they are given. */
function axes(scale, size, { across = "", up = "" }) {
  const found = [];
  for (const value of ticks(scale.low, scale.high, size.marks)) {
    found.push(draw("line", { x1: size.left, x2: size.width - size.right, y1: scale.y(value), y2: scale.y(value), class: "grid" }));
    found.push(draw("text", { x: size.left - 4, y: scale.y(value) + 3.5, "text-anchor": "end" }, short(value, 3)));
  }
  const below = size.height - size.bottom + 12;
  if (!across) {
    found.push(draw("text", { x: size.left, y: below }, `step ${scale.first}`));
    if (scale.last !== scale.first) found.push(draw("text", { x: size.width - size.right, y: below, "text-anchor": "end" }, String(scale.last)));
    return found;
  }
  for (const step of ticks(scale.first, scale.last, size.width / 110).filter(Number.isInteger)) {
    found.push(draw("line", { x1: scale.x(step), x2: scale.x(step), y1: size.height - size.bottom, y2: size.height - size.bottom + 4, class: "axis" }));
    found.push(draw("text", { x: scale.x(step), y: below + 4, "text-anchor": "middle" }, String(step)));
  }
  found.push(draw("line", { x1: size.left, x2: size.width - size.right, y1: size.height - size.bottom, y2: size.height - size.bottom, class: "axis" }));
  found.push(draw("text", { x: (size.left + size.width - size.right) / 2, y: size.height - 5, "text-anchor": "middle", class: "name" }, across));
  const middle = (size.top + size.height - size.bottom) / 2;
  found.push(draw("text", { x: 11, y: middle, transform: `rotate(-90 11 ${middle})`, "text-anchor": "middle", class: "name" }, up));
  return found;
}

/** The places of the values that are not null. */
const placesOf = (steps, values, scale) => values.flatMap((value, at) => (value === null || value === undefined ? [] : [`${scale.x(steps[at]).toFixed(1)} ${scale.y(value).toFixed(1)}`]));

/** A line with its band, and dots if its values are few. */
function lineOf({ colour, steps, values, low, high, faint, dashed }, scale) {
  const found = [], places = placesOf(steps, values, scale), className = `${hue(colour)}${faint ? " faint" : ""}${dashed ? " dashed" : ""}`;
  if (low) found.push(draw("path", { d: `M${[...placesOf(steps, high, scale), ...placesOf(steps, low, scale).reverse()].join("L")}Z`, class: `band ${hue(colour)}` }));
  if (places.length) found.push(draw("path", { d: `M${places.join("L")}`, class: `series ${className}` }));
  if (places.length <= 30 && !faint) found.push(...places.map((place) => { const [cx, cy] = place.split(" "); return draw("circle", { cx, cy, r: 1.6, class: `dot ${hue(colour)}` }); }));
  return found;
}

/** One layer of shares that add up to 1, above the layers before it. */
function area(series, nth, scale) {
  const { steps, colour } = series[nth], under = steps.map((_, at) => series.slice(0, nth).reduce((sum, one) => sum + one.values[at], 0));
  const over = under.map((value, at) => value + series[nth].values[at]);
  const wide = steps.length > 1 ? steps : [scale.first, scale.first + 1], fill = (values) => (steps.length > 1 ? values : [values[0], values[0]]);
  return [draw("path", { d: `M${[...placesOf(wide, fill(over), scale), ...placesOf(wide, fill(under), scale).reverse()].join("L")}Z`, class: `layer s${colour}` })];
}

/** Points with their intervals. */
function dotsOf({ at, colour }, scale, size) {
  return at.flatMap(([step, value, low, high]) => {
    const found = [], x = scale.x(step);
    if (low !== null && low !== undefined) {
      found.push(draw("path", { d: `M${x} ${scale.y(low)}V${scale.y(high)}M${x - 3} ${scale.y(low)}h6M${x - 3} ${scale.y(high)}h6`, class: `whisker ${hue(colour)}` }));
    }
    return [...found, draw("circle", { cx: x, cy: scale.y(value), r: size === SMALL ? 2.5 : 4.5, class: `held ${hue(colour)}` })];
  });
}

/** An entry of the legend; the returned function shows its value at a step. */
function entryOf(one, legend) {
  const entry = make("span"), value = make("b");
  entry.append(make("i", `${one.stacked ? `s${one.colour}` : hue(one.colour)}${one.at ? " round" : ""}${one.dashed ? " dashed" : ""}`), visible(`${one.label} `), value);
  legend.append(entry);
  return (step) => {
    if (one.at) {
      const past = one.at.filter(([found]) => found <= step), [, there] = past[past.length - 1] ?? one.at[0];
      value.textContent = short(there);
      return;
    }
    const at = nearest(one.steps, step), last = one.steps[one.steps.length - 1], spread = one.low ? ` (${short(one.low[at])} to ${short(one.high[at])})` : "";
    value.textContent = step < one.steps[0] ? "" : `${short(one.values[at])}${spread}${step > last ? ` at step ${last}` : ""}`;
  };
}

/** A forest plot: a row for each value with its interval, and a line at `zero`. */
function forest({ title, rows, zero = null, labels = {} }) {
  const narrow = innerWidth < 700, row = 24, wide = narrow ? 360 : 860, left = narrow ? 110 : 210, right = narrow ? 10 : 230;
  const size = { width: wide, height: rows.length * row * (narrow ? 1.6 : 1) + 34, left, right, top: 6, bottom: 26 };
  const figure = make("figure", "curve forest"), svg = draw("svg", { viewBox: `0 0 ${size.width} ${size.height}`, role: "img", "aria-label": title });
  const values = rows.flatMap((one) => [one.value, one.low ?? one.value, one.high ?? one.value]);
  let low = Math.min(...values, zero ?? 0), high = Math.max(...values, zero ?? 1);
  if (zero !== null) { const margin = (high - low) * 0.06 || 0.01; low -= margin; high += margin; }
  const x = (value) => size.left + ((value - low) / (high - low)) * (size.width - size.left - size.right), base = size.height - size.bottom;
  for (const value of ticks(low, high, narrow ? 3 : 6)) {
    svg.append(draw("line", { x1: x(value), x2: x(value), y1: size.top, y2: base, class: "grid" }));
    svg.append(draw("text", { x: x(value), y: base + 13, "text-anchor": "middle" }, zero === null ? short(100 * value) : `${value > 0 ? "+" : ""}${short(100 * value)}`));
  }
  if (zero !== null) svg.append(draw("line", { x1: x(zero), x2: x(zero), y1: size.top, y2: base, class: "axis" }));
  rows.forEach((one, nth) => {
    const y = size.top + (nth + 0.5) * row * (narrow ? 1.6 : 1), colour = hue(one.colour ?? 0);
    svg.append(draw("text", { x: left - 8, y: y + 4, "text-anchor": "end", class: "name" }, cutTo(one.label, narrow ? 16 : 32)));
    if (one.low !== null && one.low !== undefined) svg.append(draw("path", { d: `M${x(one.low)} ${y}H${x(one.high)}M${x(one.low)} ${y - 4}v8M${x(one.high)} ${y - 4}v8`, class: `whisker ${colour}` }));
    svg.append(draw("circle", { cx: x(one.value), cy: y, r: 4, class: `held ${colour}` }));
    svg.append(narrow ? draw("text", { x: size.width - right, y: y + 17, "text-anchor": "end" }, one.told) : draw("text", { x: size.width - right + 12, y: y + 4, class: "name" }, one.told));
  });
  const head = make("figcaption");
  head.append(make("b", "", title), make("span", "space"), saveButton(title, svg, () => [], size));
  figure.append(head, svg);
  if (labels.note) figure.append(make("p", "note", labels.note));
  return figure;
}

const cutTo = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
