"use strict";
// Elements, numbers and tables. All data is inserted through textContent.

const $ = (id) => document.getElementById(id);
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb]/g;

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

/** A button with an action. */
function button(className, text, act) {
  const made = make("button", className, text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

/** An SVG element; the namespace is taken from an SVG that the page already has. */
function draw(tag, attributes, text = "") {
  const made = document.createElementNS($("canvas").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== "") made.textContent = visible(text);
  return made;
}

/** A number in a readable form. */
function short(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace(".0e", "e");
  return String(Number(value.toPrecision(size >= 100 ? 4 : digits)));
}

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

/** A table of texts; a cell may be an element. */
function tableOf(names, lines, className = "") {
  const table = make("table", className), top = table.createTHead().insertRow(), body = table.createTBody();
  for (const name of names) top.append(make("th", "", name));
  for (const line of lines) body.insertRow().append(...line.map((cell) => { const td = make("td"); td.append(typeof cell === "string" ? visible(cell) : cell); return td; }));
  return table;
}

/** A table that scrolls by itself where it is wider than the screen. */
function scrolling(table) {
  const box = make("div", "scroll");
  box.append(table);
  return box;
}

/** The index of the step closest to a given one; steps ascend. */
function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] > step) high = middle; else low = middle;
  }
  return Math.abs(steps[high] - step) < Math.abs(steps[low] - step) ? high : low;
}

/** The bytes of a part of the page. */
function bytesOf(id) {
  const raw = atob($(id).textContent), bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
  return bytes;
}

/** The first, small part of the page. */
const headOf = () => JSON.parse(new TextDecoder().decode(bytesOf("head")));

// ---- light and dark ---------------------------------------------------------------------------------------------------------------

function dress(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = `theme: ${theme || "system"}`;
}

function nextTheme() {
  const themes = ["", "light", "dark"];
  dress(themes[(themes.indexOf(document.documentElement.dataset.theme || "") + 1) % themes.length]);
}
