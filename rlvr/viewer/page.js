// The page of a run: filters, a list that draws only what is seen, and one episode at a time with its group.
// Everything from the run comes out of base64 and goes in through textContent.

const $ = (id) => document.getElementById(id);
const ROW = 26, DECIMALS = 100, COLOURS = ["log-probability", "mask", "advantage"], UNREADABLE = "\ufffd";
const VERDICTS = { right: (s) => s === 1, partial: (s) => s !== null && s > 0 && s < 1, wrong: (s) => s === 0, unscored: (s) => s === null };

/** The bytes that a part of the page holds. */
function bytesOf(id) {
  const raw = atob($(id).textContent), bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
  return bytes;
}

const head = JSON.parse(new TextDecoder().decode(bytesOf("head")));
const state = { columns: null, shown: [], at: -1, open: -1, groups: new Map(), chunks: new Map(), haystack: null, colour: 0, turn: 0, prefix: 0 };

/** A part of the run, unpacked; each only once. */
function unpacked(id) {
  if (!state.chunks.has(id)) {
    const stream = new Blob([bytesOf(id)]).stream().pipeThrough(new DecompressionStream("gzip"));
    state.chunks.set(id, new Response(stream).json());
  }
  return state.chunks.get(id);
}

/** What one episode says, or which tokens it has. */
async function part(kind, episode) {
  return (await unpacked(`${kind}-${Math.floor(episode / head.chunk)}`))[episode % head.chunk];
}

const word = (name, episode) => state.columns[name].words[state.columns[name].at[episode]];
const trained = head.kind === "training";
const gained = (episode) => (trained ? [`advantage ${short(state.columns.advantage[episode])}`] : []);
const tone = (score) => (score === null ? "warn" : score === 1 ? "good" : score === 0 ? "bad" : "");
const scored = (score) => (score === null ? "none" : short(score));

// ---- the top of the page ----------------------------------------------------------------------------------------------------

function paintHead() {
  document.title = `${head.name} · rlvr`;
  $("name").textContent = head.name;
  $("kind").textContent = head.kind;
  const said = (value) => (typeof value === "number" ? short(value) : String(value));
  $("facts").textContent = Object.entries(head.facts).map(([name, value]) => `${name.replaceAll("_", " ")} ${said(value)}`).join("  ·  ");
  document.body.classList.add(head.kind);
  $("settings").querySelector("pre").textContent = head.settings;
  $("curves").append(...head.panels.map(curve));
  if (head.figures) {
    $("figures").hidden = false;
    $("figures").append(tableOf(head.figures.head, head.figures.lines));
  }
}

/** A table of texts; a cell may be an element. */
function tableOf(names, lines, className = "") {
  const table = make("table", className), top = table.createTHead().insertRow(), body = table.createTBody();
  for (const name of names) top.append(make("th", "", name));
  for (const line of lines) body.insertRow().append(...line.map((cell) => { const td = make("td"); td.append(cell); return td; }));
  return table;
}

// ---- filters ----------------------------------------------------------------------------------------------------------------

function options(select, words) {
  select.append(new Option("all", ""), ...words.map((name) => new Option(name, name)));
}

/** The words that a column may have, as a test by number; null where all may pass. */
function allowed(name, test) {
  return test ? state.columns[name].words.map(test) : null;
}

function stepRange(text) {
  const found = /^\s*(\d+)?\s*(-)?\s*(\d+)?\s*$/.exec(text);
  if (!found || !text.trim()) return null;
  const low = found[1] === undefined ? 0 : Number(found[1]);
  return [low, found[3] !== undefined ? Number(found[3]) : found[2] ? Infinity : low];
}

async function filter() {
  const turn = ++state.turn, columns = state.columns;
  const query = $("f-search").value.toLowerCase(), task = $("f-task").value.toLowerCase(), steps = stepRange($("f-step").value);
  if (query && !state.haystack) await unpackTexts();
  if (turn !== state.turn) return; // a later keystroke has asked again
  const verdict = VERDICTS[$("f-verdict").value];
  const exact = (id) => ($(id).value ? (name) => name === $(id).value : null);
  const tests = [["fault", exact("f-fault")], ["end", exact("f-end")], ["env", exact("f-env")], ["task", task && ((name) => name.toLowerCase().includes(task))]]
    .filter(([, test]) => test).map(([name, test]) => [columns[name].at, allowed(name, test)]);
  const shown = [];
  for (let episode = 0; episode < head.episodes; episode++) {
    if (verdict && !verdict(columns.score[episode])) continue;
    if (steps && (columns.step[episode] < steps[0] || columns.step[episode] > steps[1])) continue;
    if (!tests.every(([at, ok]) => ok[at[episode]])) continue;
    if (query && !state.haystack[episode].includes(query)) continue;
    shown.push(episode);
  }
  state.shown = shown;
  state.at = shown.indexOf(state.open);
  const count = shown.length === head.episodes ? "" : `${shown.length.toLocaleString("en")} of `;
  $("count").textContent = `${count}${head.episodes.toLocaleString("en")} episodes`;
  $("height").style.height = `${shown.length * ROW}px`;
  $("window").scrollTop = Math.max(0, state.at - 5) * ROW;
  drawRows();
}

/** All that is read, in small letters: made when the first search asks for it. */
async function unpackTexts() {
  const found = [];
  for (let at = 0; at * head.chunk < head.episodes; at++) {
    $("count").textContent = `unpacking the texts, ${Math.round((100 * at * head.chunk) / head.episodes)} %`;
    for (const row of await unpacked(`texts-${at}`)) {
      const prompt = (row.prompt || []).map((message) => message.content).join("\n");
      found.push([row.text, row.reason, row.error, prompt].filter(Boolean).join("\n").toLowerCase());
    }
  }
  state.haystack = found;
}

/** How much the names of all tasks have in common, up to a slash: the list leaves it out. */
function commonPrefix([first = "", ...others]) {
  let length = first.lastIndexOf("/") + 1;
  for (const other of others) {
    while (!other.startsWith(first.slice(0, length))) length = length < 2 ? 0 : first.lastIndexOf("/", length - 2) + 1;
  }
  return length;
}

// ---- the list -----------------------------------------------------------------------------------------------------------------

function drawRows() {
  const view = $("window"), first = Math.max(0, Math.floor(view.scrollTop / ROW) - 8);
  const last = Math.min(state.shown.length, first + Math.ceil(view.clientHeight / ROW) + 16);
  $("rows").style.transform = `translateY(${first * ROW}px)`;
  $("rows").replaceChildren(...state.shown.slice(first, last).map((episode, n) => rowOf(episode, first + n)));
}

function rowOf(episode, at) {
  const { step, score, advantage, tokens, glimpse } = state.columns;
  const row = make("div", at === state.at ? "row chosen" : "row");
  const reason = word("fault", episode) === "none" ? word("reason", episode) : `${word("fault", episode)}: ${word("reason", episode)}`;
  row.append(
    make("span", "quiet", String(step[episode])), make("span", "", word("task", episode).slice(state.prefix)), make("span", tone(score[episode]), scored(score[episode])),
    make("span", "", short(advantage[episode])), make("span", "", String(tokens[episode])), make("span", "quiet", word("end", episode)),
    make("span", "", glimpse[episode]), make("span", "quiet", reason),
  );
  row.addEventListener("click", () => choose(at, true));
  return row;
}

/** Go to a place in the list; open what is there where something is open, or where that was asked for. */
function choose(at, open) {
  if (!state.shown.length) return;
  state.at = Math.min(Math.max(at, 0), state.shown.length - 1);
  const view = $("window"), top = state.at * ROW;
  if (top < view.scrollTop) view.scrollTop = top;
  if (top + ROW > view.scrollTop + view.clientHeight) view.scrollTop = top + ROW - view.clientHeight;
  drawRows();
  if (open || state.open >= 0) show(state.shown[state.at]);
}

// ---- one episode ----------------------------------------------------------------------------------------------------------------

async function show(episode) {
  state.open = episode;
  $("explore").classList.add("open");
  $("detail").hidden = false;
  history.replaceState(null, "", `#${episode}`);
  const [said, tokens] = await Promise.all([part("texts", episode), part("tokens", episode)]);
  if (state.open !== episode) return;
  $("detail").replaceChildren(...topOf(episode, said), ...groupOf(episode), ...judged(said), ...conversation(said), ...tokensOf(episode, tokens));
  $("detail").scrollTop = 0;
  const group = $("detail").querySelector(".group");
  if (group) group.scrollLeft = group.querySelector(".chosen").offsetLeft - group.offsetLeft - 120;
  drawRows();
}

function close() {
  state.open = -1;
  $("detail").hidden = true;
  $("explore").classList.remove("open");
  history.replaceState(null, "", "#");
  drawRows();
}

function topOf(episode, said) {
  const top = make("div", "top"), score = state.columns.score[episode], fault = word("fault", episode);
  top.append(make("b", "", word("task", episode)), make("b", tone(score), `score ${scored(score)}`));
  if (fault !== "none") top.append(make("span", "warn", `fault ${fault}`));
  const facts = [word("end", episode), `${state.columns.tokens[episode]} tokens`, ...gained(episode)];
  if (trained) facts.unshift(`step ${state.columns.step[episode]}`);
  if (said.turns > 1) facts.push(`${said.turns} turns`);
  top.append(make("span", "quiet", facts.join("  ·  ")), make("span", "space"));
  const shut = make("button", "", "close");
  shut.addEventListener("click", close);
  top.append(shut);
  return [top, make("p", tone(score), said.reason || said.error || "no reason was given")];
}

/** The answers to the same question at the same time, side by side. */
function groupOf(episode) {
  const { score, tokens, glimpse } = state.columns;
  const members = state.groups.get(state.columns.group.at[episode]);
  if (members.length < 2) return [];
  const group = make("div", "group");
  for (const other of members) {
    const card = make("button", other === episode ? "chosen" : ""), line = make("span");
    line.append(make("b", tone(score[other]), scored(score[other])), make("span", "quiet", `  ${[...gained(other), `${tokens[other]} tokens`].join(" · ")}`));
    card.append(line, make("p", "", glimpse[other]));
    card.addEventListener("click", () => { state.at = state.shown.indexOf(other); show(other); });
    group.append(card);
  }
  return [make("h2", "", `group of ${members.length}`), group];
}

/** The verdict beyond its reason: named parts, tests one by one, and whatever else the verifier noted. */
function judged(said) {
  const found = [], detail = { ...said.detail };
  if (said.parts) found.push(make("h2", "", "parts"), tableOf(["part", "score"], Object.entries(said.parts).map(([name, value]) => [name, short(value)])));
  if (Array.isArray(detail.tests)) {
    const mark = (test) => make("span", test.ok === true ? "good" : "bad", test.ok === true ? "passed" : "failed");
    found.push(make("h2", "", "tests"), tableOf(["test", "", "why"], detail.tests.map((test) => [String(test.name), mark(test), String(test.why ?? "")]), "words"));
    delete detail.tests;
  }
  if (Object.keys(detail).length) found.push(make("h2", "", "noted by the verifier"), make("pre", "", JSON.stringify(detail, null, 1)));
  return found;
}

function conversation(said) {
  const found = [];
  for (const message of said.prompt || []) found.push(make("h2", "", message.role), make("pre", "", message.content));
  found.push(make("h2", "", "answer"), make("pre", "", said.text ?? ""));
  if (said.reference !== undefined) {
    found.push(make("h2", "", "reference"), make("pre", "", typeof said.reference === "string" ? said.reference : JSON.stringify(said.reference, null, 1)));
  }
  return found;
}

function tokensOf(episode, [ids, stretches, logprobs]) {
  const pick = make("button", "", COLOURS[state.colour]), title = make("h2", "", "tokens by "), pre = make("pre", "tokens");
  pick.addEventListener("click", recolour);
  title.append(pick, make("span", "quiet", "  pale: given to the policy"));
  const advantage = state.columns.advantage[episode];
  let own = true, left = 0, stretch = 0, chosen = 0;
  for (const id of ids) {
    while (!left && stretch < stretches.length) { left = stretches[stretch++]; own = !own; }
    left--;
    const piece = state.columns.vocabulary[id], legible = piece && piece !== UNREADABLE;
    const span = make("span", `${own ? "own" : "other"}${legible ? "" : " mark"}`, legible ? piece : `⟨${id}⟩`);
    if (own) {
      const logprob = -logprobs[chosen++] / DECIMALS;
      paint(span, logprob, advantage);
      span.title = [`id ${id}`, `log-probability ${logprob}`, ...gained(episode)].join(", ");
    } else span.title = `id ${id}, given`;
    pre.append(span);
  }
  return [title, pre];
}

/** The colour of one token: deeper where it was less likely, or where the advantage is greater. */
function paint(span, logprob, advantage) {
  const [hue, depth] = [
    ["--line-1", Math.min(1, -logprob / 5)], ["--line-0", 0.35], [advantage < 0 ? "--bad" : "--good", Math.min(1, Math.abs(advantage) / 2)],
  ][state.colour];
  span.style.setProperty("--hue", `var(${hue})`);
  span.style.setProperty("--depth", `${Math.round(65 * depth)}%`);
}

function recolour() {
  state.colour = (state.colour + 1) % (trained ? COLOURS.length : COLOURS.length - 1); // an evaluation has no advantages
  if (state.open >= 0) show(state.open);
}

// ---- keys, theme, start -----------------------------------------------------------------------------------------------------------

function nextTheme() {
  const themes = ["", "light", "dark"], root = document.documentElement;
  root.dataset.theme = themes[(themes.indexOf(root.dataset.theme || "") + 1) % themes.length];
  $("theme").textContent = `theme: ${root.dataset.theme || "system"}`;
}

const KEYS = {
  j: () => choose(state.at + 1, false), k: () => choose(state.at - 1, false), Enter: () => choose(state.at, true), Escape: close,
  "/": () => $("f-search").focus(), "?": () => $("help").showModal(), c: recolour, t: nextTheme,
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open || !state.columns) return;
  if (/INPUT|SELECT/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if ((event.key === "Enter" && /BUTTON|SUMMARY/.test(event.target.tagName)) || !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
}

async function start() {
  if (!globalThis.DecompressionStream) throw new Error("this browser is too old to unpack the episodes; any of 2023 or later can");
  const columns = (state.columns = await unpacked("columns"));
  columns.group.at.forEach((group, episode) => {
    if (!state.groups.has(group)) state.groups.set(group, []);
    state.groups.get(group).push(episode);
  });
  state.prefix = commonPrefix(columns.task.words);
  options($("f-verdict"), Object.keys(VERDICTS));
  for (const name of ["fault", "end", "env"]) options($(`f-${name}`), [...columns[name].words].sort());
  $("envs").hidden = columns.env.words.length < 2;
  $("filters").addEventListener("input", filter);
  $("filters").addEventListener("reset", () => setTimeout(filter));
  await filter();
  const asked = /^#(\d+)$/.exec(location.hash);
  if (asked && Number(asked[1]) < head.episodes) choose(Number(asked[1]), true);
}

paintHead();
$("window").addEventListener("scroll", drawRows);
addEventListener("resize", drawRows);
addEventListener("keydown", onKey);
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("theme").addEventListener("click", nextTheme);
$("keys").addEventListener("click", () => $("help").showModal());
// The head of the page is drawn while the episodes are still being read; they come after this script.
addEventListener("DOMContentLoaded", () => start().catch((error) => { $("count").textContent = String(error.message || error); }));
