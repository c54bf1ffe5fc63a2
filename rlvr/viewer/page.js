// The page: its head, filters, a list that draws only the visible rows, keyboard shortcuts. The selection is stored in the URL, so that
// a page that reloads (while its run continues) keeps it.

const ROW = 26, COLOUR_NAMES = run.trained ? Object.keys(COLOURS) : EVALUATED;
const VERDICTS = { right: (s) => s === 1, partial: (s) => s !== null && s > 0 && s < 1, wrong: (s) => s === 0, unscored: (s) => s === null };
const DIFFERENCES = {
  "better here": (here, there) => here !== null && there !== null && here > there,
  "worse here": (here, there) => here !== null && there !== null && here < there,
  "the same": (here, there) => here === there,
  "only here": (here, there) => there === undefined,
};
const state = { shown: [], twins: null, at: -1, open: -1, colour: COLOUR_NAMES[0], prefix: 0, touched: 0 };

// ---- the top of the page ----------------------------------------------------------------------------------------------------

function paintHead() {
  const said = (value) => (typeof value === "number" ? short(value) : String(value));
  const facts = (of) => Object.entries(of.head.facts).map(([name, value]) => `${name.replaceAll("_", " ")} ${said(value)}`).join("  ·  ");
  document.title = `${run.head.name}${other ? ` against ${other.head.name}` : ""} · rlvr`;
  document.body.classList.add(run.head.kind, other ? "two" : "one");
  $("name").textContent = run.head.name;
  $("kind").textContent = run.head.kind;
  $("facts").textContent = facts(run);
  if (other) {
    $("against").hidden = false;
    $("against").append("against ", make("b", "", other.head.name), `${run.head.panels.length ? "  (dashed lines)" : ""}   ${facts(other)}`);
  }
  $("going").hidden = !reloadSeconds;
  const runs = [run, other].filter(Boolean);
  for (const of of runs) {
    if (other) $("settings").append(make("h2", "", of.head.name));
    $("settings").append(make("pre", "", of.head.settings));
    if (of.head.figures) $("figures").append(...(other ? [make("h2", "", of.head.name)] : []), tableOf(of.head.figures.head, of.head.figures.lines));
  }
  $("figures").hidden = !$("figures").childElementCount;
  const panels = runs.flatMap((of) => of.head.panels.map((panel) => ({ ...panel, other: of === other })));
  const titles = new Set(panels.map((panel) => panel.title));
  $("curves").append(...[...titles].map((title) => curve(panels.filter((panel) => panel.title === title))));
}

/** Show how many episodes are only in the other run, and therefore not in the list. */
function tellUnseen() {
  const unseen = other.columns.score.filter((_, episode) => run.find(other.key(episode)) < 0).length;
  if (unseen) $("against").append(make("b", "warn", `   ${unseen.toLocaleString("en")} episodes are only in ${other.head.name}, and not listed`));
}

// ---- filters ----------------------------------------------------------------------------------------------------------------

function options(name, words) {
  $(`f-${name}`).append(new Option("all", ""), ...words.map((word) => new Option(visible(word), word)));
}

/** A filter of episodes by the words of a column; no filter if there is no test. */
function asked(name, test) {
  if (!test) return [];
  const { words, at } = run.columns[name], passes = words.map(test);
  return [(episode) => passes[at[episode]]];
}

function stepRange(text) {
  const found = /^\s*(\d+)?\s*(-)?\s*(\d+)?\s*$/.exec(text);
  if (!found || !text.trim()) return null;
  const low = found[1] === undefined ? 0 : Number(found[1]);
  return [low, found[3] !== undefined ? Number(found[3]) : found[2] ? Infinity : low];
}

/** The filters chosen in the form. */
function tests() {
  const value = (name) => $(`f-${name}`).value, { score, step } = run.columns;
  const verdict = VERDICTS[value("verdict")], difference = DIFFERENCES[value("difference")];
  const steps = stepRange(value("step")), task = value("task").toLowerCase(), query = value("search").toLowerCase();
  const exact = (name) => asked(name, value(name) && ((word) => word === value(name)));
  const found = [...exact("fault"), ...exact("end"), ...exact("env"), ...asked("task", task && ((word) => word.toLowerCase().includes(task)))];
  if (verdict) found.push((episode) => verdict(score[episode]));
  if (steps) found.push((episode) => step[episode] >= steps[0] && step[episode] <= steps[1]);
  if (difference) found.push((episode) => difference(score[episode], twinScore(episode)));
  if (query) found.push((episode) => run.texts[episode]?.includes(query));
  return found;
}

/** Apply the filters. A search that starts before all texts are loaded shows the matches so far, and the rest later. */
function filter() {
  const { episodes } = run.head, passed = tests(), unread = $("f-search").value && run.texts.length < episodes;
  if (unread) run.read().then(filter);
  state.shown = [];
  for (let episode = 0; episode < episodes; episode++) if (passed.every((test) => test(episode))) state.shown.push(episode);
  state.at = state.shown.indexOf(state.open);
  const share = state.shown.length === episodes ? "" : `${state.shown.length.toLocaleString("en")} of `;
  $("count").textContent = `${share}${episodes.toLocaleString("en")} episodes${unread ? ", still loading …" : ""}`;
  $("height").style.height = `${state.shown.length * ROW}px`;
  $("window").scrollTop = Math.max(0, state.at - 5) * ROW;
  drawRows();
  remember();
}

/** The score of the same episode in the other run; undefined if it has no such episode. */
function twinScore(episode) {
  state.twins ??= run.columns.score.map((_, at) => other.find(run.key(at)));
  return state.twins[episode] < 0 ? undefined : other.columns.score[state.twins[episode]];
}

/** The length of the common prefix of all task names, up to a slash: the list omits it. */
function commonPrefix([first = "", ...others]) {
  let length = first.lastIndexOf("/") + 1;
  for (const name of others) {
    while (!name.startsWith(first.slice(0, length))) length = length < 2 ? 0 : first.lastIndexOf("/", length - 2) + 1;
  }
  return length;
}

// ---- the list -----------------------------------------------------------------------------------------------------------------

function drawRows() {
  const view = $("window"), first = Math.max(0, Math.floor(view.scrollTop / ROW) - 4);
  const last = Math.min(state.shown.length, first + Math.ceil(view.clientHeight / ROW) + 8);
  $("rows").style.transform = `translateY(${first * ROW}px)`;
  $("rows").replaceChildren(...state.shown.slice(first, last).map((episode, n) => rowOf(episode, first + n)));
}

function rowOf(episode, at) {
  const { step, score, advantage, tokens, glimpse } = run.columns, fault = run.word("fault", episode), reason = run.word("reason", episode);
  const row = make("div", at === state.at ? "row chosen" : "row"), cell = (name, text, className = "") => row.append(make("span", `${name} ${className}`, text));
  cell("step", String(step[episode]), "quiet");
  cell("task", "");
  row.lastChild.append(make("bdi", "", run.word("task", episode).slice(state.prefix)));
  row.title = run.word("task", episode);
  cell("score", scored(score[episode]), tone(score[episode]));
  if (other) {
    const there = twinScore(episode);
    cell("there", there === undefined ? "" : scored(there), there === undefined ? "" : tone(there));
  }
  cell("advantage", short(advantage[episode]));
  cell("tokens", String(tokens[episode]));
  cell("end", run.word("end", episode), "quiet");
  cell("answer", glimpse[episode]);
  cell("reason", fault === "none" ? reason : `${fault}: ${reason}`, "quiet");
  row.addEventListener("click", () => choose(at, true));
  return row;
}

/** Select a row of the list; open its episode if `open` is set or another episode is open. */
function choose(at, open) {
  if (!state.shown.length) return;
  state.at = Math.min(Math.max(at, 0), state.shown.length - 1);
  const view = $("window"), top = state.at * ROW;
  if (top < view.scrollTop) view.scrollTop = top;
  if (top + ROW > view.scrollTop + view.clientHeight) view.scrollTop = top + ROW - view.clientHeight;
  drawRows();
  if (open || state.open >= 0) show(state.shown[state.at]);
}

async function show(episode) {
  const closed = state.open < 0;
  state.open = episode;
  state.at = state.shown.indexOf(episode);
  $("explore").classList.add("open");
  $("detail").hidden = false;
  if (closed) $("explore").scrollIntoView({ block: "nearest" });
  remember();
  const body = await episodeOf(episode, state.colour, { close, recolour, show });
  if (state.open !== episode) return;
  $("detail").replaceChildren(...body);
  $("detail").scrollTop = 0;
  const group = $("detail").querySelector(".group");
  if (group) group.scrollLeft = group.querySelector(".chosen").offsetLeft - group.offsetLeft - 120;
  drawRows();
}

function close() {
  state.open = -1;
  $("detail").hidden = true;
  $("explore").classList.remove("open");
  remember();
  drawRows();
}

/** Open the next or the previous answer of the group. */
function sibling(by) {
  const members = state.open < 0 ? [] : run.group(state.open), next = members[members.indexOf(state.open) + by];
  if (next !== undefined) show(next);
}

function recolour() {
  state.colour = COLOUR_NAMES[(COLOUR_NAMES.indexOf(state.colour) + 1) % COLOUR_NAMES.length];
  if (state.open >= 0) show(state.open);
}

// ---- the selection, in the URL --------------------------------------------------------------------------------------------------

/** Store the selection in the URL. */
function remember(more = {}) {
  const chosen = new URLSearchParams([...new FormData($("filters"))].filter(([, value]) => value));
  if (state.open >= 0) chosen.set("open", run.key(state.open));
  for (const [name, value] of Object.entries({ theme: document.documentElement.dataset.theme || "", ...more })) if (value) chosen.set(name, value);
  history.replaceState(null, "", `#${chosen}`);
}

/** Restore the selection from the URL. */
function recall() {
  const chosen = new URLSearchParams(location.hash.slice(1)), open = chosen.has("open") ? run.find(chosen.get("open")) : -1;
  for (const [name, value] of chosen) if ($("filters").elements[name]) $("filters").elements[name].value = value;
  state.colour = COLOUR_NAMES.includes(chosen.get("colour")) ? chosen.get("colour") : state.colour;
  filter();
  if (chosen.has("top")) $("window").scrollTop = Number(chosen.get("top"));
  if (open >= 0) show(open);
}

/** Reload the page, but not while the user is active. */
function reload() {
  if ($("help").open || Date.now() - state.touched < 3000) return setTimeout(reload, 1000);
  remember({ top: $("window").scrollTop, colour: state.colour });
  location.reload();
}

// ---- keys, theme, start -----------------------------------------------------------------------------------------------------------

function dress(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = `theme: ${theme || "system"}`;
}

function nextTheme() {
  const themes = ["", "light", "dark"];
  dress(themes[(themes.indexOf(document.documentElement.dataset.theme || "") + 1) % themes.length]);
  remember();
}

const next = () => choose(state.at + 1, false), previous = () => choose(state.at - 1, false);
const KEYS = {
  j: next, ArrowDown: next, k: previous, ArrowUp: previous, Enter: () => choose(state.at, true), Escape: close, "]": () => sibling(1), "[": () => sibling(-1),
  "/": () => $("f-search").focus(), "?": () => $("help").showModal(), c: recolour, t: nextTheme,
};

function onKey(event) {
  state.touched = Date.now();
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open || !run.columns) return;
  if (/INPUT|SELECT/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if ((event.key === "Enter" && /BUTTON|SUMMARY/.test(event.target.tagName)) || !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
}

async function start() {
  if (!globalThis.DecompressionStream) throw new Error("this browser cannot decompress the episodes; use a browser of 2023 or later");
  await Promise.all([run, other].filter(Boolean).map((of) => of.open()));
  if (other) tellUnseen();
  state.prefix = commonPrefix(run.columns.task.words);
  options("verdict", Object.keys(VERDICTS));
  options("difference", Object.keys(DIFFERENCES));
  for (const name of ["fault", "end", "env"]) options(name, [...run.columns[name].words].sort());
  $("envs").hidden = run.columns.env.words.length < 2;
  $("filters").addEventListener("input", filter);
  $("filters").addEventListener("reset", () => setTimeout(filter));
  recall();
  if (reloadSeconds) setTimeout(reload, 1000 * reloadSeconds);
  else setTimeout(() => run.read(), 300); // load the texts before the first search
}

paintHead();
dress(new URLSearchParams(location.hash.slice(1)).get("theme") || "");
$("window").addEventListener("scroll", drawRows);
addEventListener("resize", drawRows);
addEventListener("keydown", onKey);
addEventListener("pointerdown", () => { state.touched = Date.now(); });
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("theme").addEventListener("click", nextTheme);
$("keys").addEventListener("click", () => $("help").showModal());
// The head of the page is drawn while the episodes are still loading; they come after this script.
addEventListener("DOMContentLoaded", () => start().catch((error) => { $("count").textContent = String(error.message || error); }));
