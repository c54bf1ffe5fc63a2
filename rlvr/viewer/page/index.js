// The index of many runs: tables that sort and filter, and one chart of the rewards of the chosen training runs.

const page = headOf(), kept = new URLSearchParams(location.hash.slice(1)), MOST = 6; // conditions drawn at first
const state = { sort: "changed", down: true, query: "", drawn: new Set() };
const percent = (value) => (value === null || value === undefined ? "" : value < 0 || value > 1 ? String(Number(value.toPrecision(4))) : `${(100 * value).toFixed(1)} %`);
const lasted = (seconds) => (seconds === null || seconds === undefined ? "" : seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`);

/** The ends of a row's curve: rewards from 0 to 1 have the same scale in all rows. */
function shareEnds(values) { return values.every((value) => value === null || (value >= 0 && value <= 1)) ? [0, 1] : ends(values); }

/** The small course of a reward in a row. */
function spark({ panels, condition }) {
  const [panel] = panels ?? [], svg = draw("svg", { viewBox: "0 0 120 22", class: "spark", "aria-hidden": "true" });
  if (!panel) return svg;
  const values = smooth(panel.lines.reward, Math.max(1, Math.floor(panel.steps.length / 12))), [low, high] = shareEnds(panel.lines.reward), { steps } = panel, span = steps[steps.length - 1] - steps[0] || 1;
  const places = values.map((value, at) => `${(2 + ((steps[at] - steps[0]) / span) * 116).toFixed(1)} ${(20 - ((value - low) / (high - low)) * 18).toFixed(1)}`);
  svg.append(draw("path", { d: `M${places.join("L")}`, class: `series ${hue(colourOf(condition))}` }));
  return svg;
}

const drawnConditions = () => [...state.drawn].sort((a, b) => a - b);
const colourOf = (condition) => { const at = drawnConditions().indexOf(condition); return at < 0 ? 7 : at; };

/** A name with a link to the page of the run, if there is one. */
function nameOf(entry) {
  if (!entry.page) return make("span", "", entry.name);
  const link = make("a", "", entry.name);
  link.href = entry.page.split("/").map(encodeURIComponent).join("/");
  return link;
}

/** The box that draws a run's condition in the chart. */
function boxOf(entry) {
  const box = make("input"), label = make("label");
  box.type = "checkbox";
  box.checked = state.drawn.has(entry.condition);
  box.title = `draw ${entry.label}`;
  box.addEventListener("change", () => { if (box.checked) state.drawn.add(entry.condition); else state.drawn.delete(entry.condition); paint(); });
  label.append(box, make("i", box.checked ? hue(colourOf(entry.condition)) : "none"));
  return label;
}

const stateOf = (entry) => make("span", entry.finished ? "good" : "warn", entry.finished ? "finished" : entry.kind === "training" ? `${entry.steps} of ${entry.total}` : "unfinished");

/** The columns of a kind of run: [title, what it sorts by, what is shown]. */
const COLUMNS = {
  training: [
    ["", null, boxOf], ["run", (of) => of.name, nameOf], ["environment", (of) => of.what, null],
    ["course", null, spark], ["reward", (of) => of.reward, (of) => short(of.reward)],
    ["before", (of) => of.accuracy_before, (of) => percent(of.accuracy_before)], ["after", (of) => of.accuracy_after, (of) => make("b", "", percent(of.accuracy_after))],
    ["steps", (of) => of.steps, stateOf], ["took", (of) => of.seconds, (of) => lasted(of.seconds)], ["changed", (of) => of.changed, (of) => of.changed.slice(0, 16).replace("T", " ")],
    ...page.varied.map(({ key, values }) => [key.split(".").pop(), (of) => values[of.name] ?? "", null]),
  ],
  evaluation: [
    ["run", (of) => of.name, nameOf], ["suite", (of) => of.what, null], ["policy", (of) => of.with, null], ["environments", (of) => of.environments, null],
    ["mean score", (of) => of.accuracy_after, (of) => make("b", "", percent(of.accuracy_after))], ["state", (of) => String(of.finished), stateOf],
    ["changed", (of) => of.changed, (of) => of.changed.slice(0, 16).replace("T", " ")],
  ],
  unreadable: [["run", (of) => of.name, null], ["why it cannot be shown", (of) => of.why, null]],
};

function sorted(entries, columns) {
  const by = columns.find(([title]) => title === state.sort)?.[1] ?? ((of) => of.name), sign = state.down ? -1 : 1, text = new Intl.Collator("en", { numeric: true });
  return [...entries].sort((a, b) => {
    const [x, y] = [by(a) ?? null, by(b) ?? null];
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (typeof x === "string" ? text.compare(x, y) : x - y);
  });
}

function tableOfKind(kind) {
  const columns = COLUMNS[kind], query = state.query.toLowerCase();
  const entries = page.entries.filter((of) => of.kind === kind && [of.name, of.what, of.with, of.label].some((word) => (word ?? "").toLowerCase().includes(query)));
  if (!entries.length) return [];
  const cells = sorted(entries, columns).map((of) => columns.map(([, by, show]) => (show ? show(of) : String(by(of) ?? ""))));
  const table = tableOf(columns.map(([title]) => title), cells, `runs ${kind}`);
  [...table.tHead.rows[0].cells].forEach((cell, nth) => {
    const [title, by] = columns[nth];
    cell.title = page.varied.find(({ key }) => key.split(".").pop() === title)?.key ?? "";
    if (!by) return;
    cell.classList.add("sorts");
    if (title === state.sort) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    cell.addEventListener("click", () => { state.down = state.sort === title ? !state.down : typeof by(entries[0]) === "number"; state.sort = title; paint(); });
  });
  for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, nth) => { cell.dataset.name = columns[nth][0]; });
  return [make("h2", "", { training: "training runs", evaluation: "evaluations", unreadable: "unreadable" }[kind]), scrolling(table)];
}

function paint() {
  const chosen = drawnConditions(), entries = page.entries.filter((of) => of.kind === "training" && state.drawn.has(of.condition));
  const head = { labels: chosen.map((condition) => entries.find((of) => of.condition === condition).label), at: entries.map((of) => chosen.indexOf(of.condition)), runs: entries };
  const main = entries.length ? mainChart(head) : null;
  $("main").replaceChildren(...(main ? [main] : []));
  $("tables").replaceChildren(...Object.keys(COLUMNS).flatMap(tableOfKind));
  const told = new URLSearchParams({ sort: state.sort, down: state.down ? "1" : "", q: state.query, draw: chosen.join("."), theme: document.documentElement.dataset.theme || "" });
  history.replaceState(null, "", `#${told}`);
}

function begin() {
  const trained = page.entries.filter((of) => of.kind === "training"), newest = [...trained].sort((a, b) => (a.changed < b.changed ? 1 : -1))[0];
  document.title = `${page.name} · rlvr`;
  $("name").textContent = visible(page.name);
  $("facts").textContent = plural(trained.length, "training run") + `  ·  ${plural(page.entries.filter((of) => of.kind === "evaluation").length, "evaluation")}`;
  $("going").hidden = !page.reload_s;
  $("hint").textContent = page.entries.some((of) => !of.page) ? "A run without a link has no page yet: `rlvr view RUN` writes it; `rlvr view FOLDER --watch` serves all of them." : "";
  if (kept.has("draw")) for (const part of kept.get("draw").split(".").filter(Boolean)) state.drawn.add(Number(part));
  else for (const of of trained) if (of.what === newest.what && (state.drawn.size < MOST || state.drawn.has(of.condition)) && of.panels.length) state.drawn.add(of.condition);
  for (const condition of [...state.drawn]) if (!trained.some((of) => of.condition === condition)) state.drawn.delete(condition);
  if (kept.get("sort")) [state.sort, state.down] = [kept.get("sort"), Boolean(kept.get("down"))];
  state.query = $("query").value = kept.get("q") ?? "";
  dress(kept.get("theme") ?? "");
  paint();
}


begin();
let width = innerWidth;
$("query").addEventListener("input", () => { state.query = $("query").value; paint(); });
$("theme").addEventListener("click", () => { nextTheme(); paint(); });
addEventListener("resize", () => { if (Math.abs(innerWidth - width) > 40) { width = innerWidth; paint(); } });
if (page.reload_s) setTimeout(() => location.reload(), 1000 * page.reload_s);
