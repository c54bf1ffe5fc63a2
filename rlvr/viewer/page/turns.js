// A conversation as turns: what the policy wrote, its calls as folded cards with their results, and what the other side answered.
// All texts were written by a model, a tool or a task, and are inserted through textContent.

const LONG = 1200, MOST_LINES = 16; // a longer text is folded
const GLANCE = 70; // characters of the arguments and of the output in the title of a folded call

const stateTone = (state) => (state === "ok" ? "good" : state === "error" ? "bad" : "warn");


const PIECE = 50000; // characters of a folded text that the browser lays out at a time: hundreds of thousands of lines at once freeze it

/** A text that opens on a click; of a vast one a piece, and the next with each click. */
function folded(title, text, className = "") {
  const fold = make("details", `fold ${className}`), pieceOf = (from) => {
    if (text.length - from <= PIECE) return [preOf(text.slice(from))];
    let end = text.lastIndexOf("\n", from + PIECE - 1) + 1; // the end of a line, or of a character that is not cut in half
    if (end <= from) end = from + PIECE + /[\udc00-\udfff]/.test(text[from + PIECE]);
    const rest = button("piece", `show ${plural(Math.min(text.length - end, PIECE), "more character")} of ${text.length.toLocaleString("en")}`, () => rest.replaceWith(...pieceOf(end)));
    return [preOf(text.slice(from, end)), rest];
  };
  fold.append(make("summary", "", title), ...pieceOf(0));
  return fold;
}

/** A text as it is, with its formulas set if that is wanted. */
function preOf(text, math = false) {
  const pre = make("pre");
  if (math && state.math) pre.classList.toggle("set", setMath(pre, text) > 0);
  else pre.textContent = visible(text);
  return pre;
}

/** A text, folded with its first line as the title if it is long. */
function textOf(text, math = false) {
  const lines = text.split("\n");
  if (text.length <= LONG && lines.length <= MOST_LINES) return preOf(text, math);
  const first = lines.find((line) => line.trim()) ?? "";
  return folded(`${text.length.toLocaleString("en")} characters: ${first.slice(0, 80)} …`, text);
}

/** The whole conversation after the prompt; nothing if it was not recorded, or is a single answer. */
function turnsOf(talk) {
  if (!talk || (talk.turns.length === 1 && plain1(talk.turns[0]) && !talk.opening.length && !talk.tools.length && !talk.left)) return [];
  const calls = talk.turns.flatMap((turn) => turn.calls ?? []), wrong = calls.filter((call) => call.state !== "ok").length;
  const facts = [plural(talk.turns.length, "turn"), plural(calls.length, "call")];
  if (wrong) facts.push(`${wrong} not ok`);
  const title = make("h2", "", "conversation "), talked = make("div", "talk");
  title.append(make("span", "quiet", `  ${facts.join("  ·  ")}`));
  if (calls.length) title.append(" ", button("unfold", "open all calls", () => { for (const fold of talked.querySelectorAll("details.call")) fold.open = true; }));
  if (talk.tools.length) {
    const tools = make("details", "fold");
    tools.append(make("summary", "", `tools: ${talk.tools.map(([name]) => name).join(", ")}`), tableOf(["tool", "description"], talk.tools, "words"));
    talked.append(tools);
  }
  talked.append(...talk.opening.map(replyOf), ...talk.turns.flatMap(turnOf));
  if (talk.left) talked.append(leftOf(talk.left));
  return [title, talked];
}

const plain1 = (turn) => !turn.calls && !turn.reasoning && !turn.replies && !turn.raw;

/** One turn of the policy, and the messages that answered it. */
function turnOf(turn, nth) {
  const box = make("div", "turn"), head = make("div", "who", `turn ${nth + 1}`);
  head.append(make("span", "quiet", "  policy"));
  if (turn.cut) head.append(make("span", "warn", "  cut off by the token limit"));
  box.append(head);
  if (turn.reasoning) box.append(folded(`reasoning, ${turn.reasoning.length.toLocaleString("en")} characters`, turn.reasoning, "reasoning"));
  if (turn.said?.trim()) box.append(textOf(turn.said, true));
  box.append(...(turn.calls ?? []).map(callOf));
  if (turn.raw) box.append(folded("as written", turn.raw, "quiet"));
  if (!turn.said?.trim() && !turn.calls && !turn.raw) box.append(make("p", "quiet", "an empty turn"));
  return [box, ...(turn.replies ?? []).map(replyOf)];
}

/** What the session left for the verifier: the final state of its world. */
function leftOf(left) {
  const fold = make("details", "fold"), fields = make("div", "fields");
  fold.append(make("summary", "", `left for the verifier: ${left.map(([name]) => name).join(", ")}`));
  for (const [name, text] of left) fields.append(make("span", "label", name), textOf(text));
  fold.append(fields);
  return fold;
}

function replyOf([role, text]) {
  const box = make("div", `reply ${role === "user" ? "asks" : ""}`);
  box.append(make("div", "who", role), textOf(text, true));
  return box;
}

/** One call, folded: the tool, its arguments and its output at a glance, its state in words, the time; open it for the whole. */
function callOf(call) {
  const card = make("details", `call ${stateTone(call.state)}-edge`), head = make("summary", "who"), glance = (text) => text.replace(/\s+/g, " ").trim().slice(0, GLANCE);
  head.append(make("b", "", call.name ?? "a call without a name"));
  const told = typeof call.arguments === "string" ? call.arguments : (call.arguments ?? []).map(([, value]) => value).join(", ");
  if (told) head.append(make("code", "", glance(told)));
  head.append(make("b", stateTone(call.state), call.state));
  if (call.output !== undefined) head.append(make("code", "gave", `→ ${glance(call.output)}`));
  if (call.duration_s !== undefined) head.append(make("span", "quiet", `${short(call.duration_s)} s`));
  if (call.cut) head.append(make("span", "warn", "output was cut"));
  if (call.over) head.append(make("span", "quiet", "ended the conversation"));
  card.append(head);
  if (call.why && call.output === undefined) card.append(make("p", "warn", call.why)); // else the output says it
  const fields = make("div", "fields"), field = (name, text) => fields.append(make("span", "label", name), textOf(text));
  if (typeof call.arguments === "string") field("as written", call.arguments);
  else for (const [name, value] of call.arguments ?? []) field(name, value);
  if (call.output !== undefined) field("output", call.output);
  card.append(fields);
  return card;
}

/** Every text of a conversation, for the search. */
function textsOf(talk) {
  if (!talk) return [];
  const ofCall = (call) => [call.name, call.output, ...(typeof call.arguments === "string" ? [call.arguments] : (call.arguments ?? []).flat())];
  const ofTurn = (turn) => [turn.said, turn.reasoning, ...(turn.calls ?? []).flatMap(ofCall), ...(turn.replies ?? []).map(([, text]) => text)];
  return [...talk.opening.map(([, text]) => text), ...talk.turns.flatMap(ofTurn)];
}
