// One episode with its group and its verdict; if two runs are compared, next to the same episode of the other run.
// All data of a run is inserted through textContent.

const tone = (score) => (score === null ? "warn" : score === 1 ? "good" : score === 0 ? "bad" : "");
const scored = (score) => (score === null ? "none" : short(score));
const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

/** All elements of one episode; `actions` has the handlers of its buttons. */
async function episodeOf(episode, colour, actions) {
  const twin = other ? other.find(run.key(episode)) : -1;
  const pairs = twin < 0 ? [[run, episode]] : [[run, episode], [other, twin]];
  const sides = await Promise.all(pairs.map(async ([of, at]) => [of, at, await of.part("texts", at), await of.part("tokens", at)]));
  const said = sides[0][2], bodies = sides.map((side) => bodyOf(...side, colour, actions.recolour));
  let beside = bodies[0];
  if (bodies.length > 1) {
    beside = [make("div", "beside")];
    sides.forEach(([of], nth) => { const side = make("section"); side.append(make("h2", "", of.head.name), ...bodies[nth]); beside[0].append(side); });
  }
  const alone = other && twin < 0 ? [make("p", "quiet", `${other.head.name} does not have this episode`)] : [];
  return [topOf(episode, said, actions), ...groupOf(run, episode, actions.show), ...questionOf(said, run, sides[0][3]), ...alone, ...beside];
}

function topOf(episode, said, actions) {
  const top = make("div", "top"), facts = [run.word("end", episode), `${run.number("tokens", episode)} tokens`], calls = run.number("calls", episode);
  if (run.trained) facts.unshift(`step ${run.number("step", episode)}`);
  if (said.turns > 1) facts.push(`${said.turns} turns`);
  if (calls) facts.push(plural(calls, "call"));
  const set = button("set-math", state.math ? "as written" : "set formulas", actions.remath);
  set.title = "set formulas, or show them as they were written (m)";
  top.append(make("b", "", run.word("task", episode)), make("span", "quiet", facts.join("  ·  ")), make("span", "space"), set, button("close", "close", actions.close));
  return top;
}

/** The answers of one group, side by side. */
function groupOf(of, episode, show) {
  const members = of.group(episode);
  if (members.length < 2) return [];
  const group = make("div", "group"), scores = members.map((member) => of.number("score", member)).filter((score) => score !== null);
  for (const member of members) {
    const card = button(member === episode ? "chosen" : "", "", () => show(member)), line = make("span"), score = of.number("score", member);
    line.append(make("b", tone(score), scored(score)), make("span", "quiet", `  ${[...gained(of, member), `${of.number("tokens", member)} tokens`].join(" · ")}`));
    card.append(line, make("p", "", of.number("glimpse", member)));
    group.append(card);
  }
  const title = make("h2", "", `group of ${members.length} `);
  if (scores.length) title.append(make("span", "quiet", `  mean score ${short(scores.reduce((a, b) => a + b) / scores.length)}`));
  return [title, group];
}

/** The prompt, the turns if there are several and no session recorded them, and the reference. Without stored messages the text comes from tokens. */
function questionOf(said, of, tokens) {
  const part = (title, text) => [make("h2", "", title), longOf(text, true)];
  const found = (said.prompt ? said.prompt.map((message) => [message.role, message.content]) : promptOf(of, tokens)).flatMap(([role, text]) => part(role, text));
  if (said.turns > 1 && !said.talk) {
    const texts = spokenOf(of, tokens).filter(([, text]) => text);
    found.push(...texts.slice(texts[0]?.[0] ? 0 : 1).flatMap(([own, text]) => part(own ? "policy" : "environment", text)));
  }
  if (said.reference !== undefined) found.push(...part("reference", state.math ? marked(plain(said.reference)) : plain(said.reference)));
  return found;
}

const VAST = 20000; // characters; a longer text is folded, so that the browser need not lay it out at once

/** A question or an answer: open, unless it is vast. */
function longOf(text, math = false) {
  return text.length <= VAST ? preOf(text, math) : folded(`${text.length.toLocaleString("en")} characters: ${text.slice(0, 80)} …`, text);
}

/** What differs between the runs: the verdict, the answer, the tokens. */
function bodyOf(of, episode, said, tokens, colour, recolour) {
  const score = of.number("score", episode), fault = of.word("fault", episode), verdict = make("p", "verdict");
  verdict.append(make("b", `score ${tone(score)}`, `score ${scored(score)}`), make("span", "quiet", gained(of, episode).join("")));
  if (fault !== "none") verdict.append(make("b", "warn", `fault ${fault}`));
  verdict.append(make("span", tone(score), said.error || said.reason || "no reason was given"));
  const talk = turnsOf(said.talk);
  return [verdict, ...judged(said), ...talk, ...reasoningOf(said), make("h2", "", talk.length ? "answer, as it was judged" : "answer"), longOf(said.text ?? "", true), ...tokensOf(of, episode, tokens, colour, recolour)];
}

/** The reasoning that an endpoint gave apart from the answer, folded. A recorded session has it in its turns. */
function reasoningOf(said) {
  const found = said.reasoning ?? [], whose = (nth) => (found.length > 1 ? ` of turn ${nth + 1}` : "");
  return found.flatMap((text, nth) => (text ? [folded(`reasoning${whose(nth)}, ${text.length.toLocaleString("en")} characters`, text, "reasoning")] : []));
}

/** The details of the verdict: named parts, tests one by one, and other notes of the verifier. */
function judged(said) {
  const found = [], detail = { ...said.detail };
  if (said.components) found.push(make("h2", "", "components"), tableOf(["component", "score"], Object.entries(said.components).map(([name, value]) => [name, short(value)])));
  if (Array.isArray(detail.tests) && detail.tests.every((test) => typeof test?.ok === "boolean")) {
    const mark = (test) => make("span", test.ok === true ? "good" : "bad", test.ok === true ? "passed" : "failed");
    const passed = detail.tests.filter((test) => test.ok === true).length;
    found.push(make("h2", "", `tests: ${passed} of ${detail.tests.length} passed`));
    found.push(tableOf(["test", "", "why"], detail.tests.map((test) => [String(test.name ?? ""), mark(test), String(test.why ?? "")]), "words"));
    delete detail.tests;
  }
  if (Object.keys(detail).length) found.push(make("h2", "", "notes of the verifier"), longOf(plain(detail)));
  return found;
}
