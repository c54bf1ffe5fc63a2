// Mathematics in texts: LaTeX between $..$, $$..$$, \(..\) and \[..\] as MathML, for the usual subset. What is not understood stays as it was
// written. Elements are made one by one and text is only set as text, so that nothing in a formula is HTML.

const LONGEST = 2000, DEEPEST = 40, TEXT = 50000, FORMULAS = 400; // characters of a formula, nested groups, characters of a text, formulas in it
const FORMULA = /\$\$([^$]{1,2000}?)\$\$|\\\[([\s\S]{1,2000}?)\\\]|\\\(([\s\S]{1,2000}?)\\\)|\$(?!\s)((?:\\.|[^$\\\n]){1,2000}?)(?<!\s)\$(?!\d)|(\\boxed(?=\{))/g;
const GREEK = "alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ mu μ nu ν xi ξ pi π rho ρ sigma σ tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Phi Φ Psi Ψ Omega Ω infty ∞ partial ∂ nabla ∇ ell ℓ hbar ℏ emptyset ∅ varnothing ∅ Re ℜ Im ℑ aleph ℵ angle ∠ triangle △ degree ° ldots … dots … cdots ⋯ vdots ⋮ ddots ⋱ dotsc … dotsb ⋯ prime ′ top ⊤ bot ⊥ square □ blacksquare ■";
const SIGNS = "times × cdot ⋅ div ÷ pm ± mp ∓ leq ≤ le ≤ geq ≥ ge ≥ neq ≠ ne ≠ lt < gt > approx ≈ equiv ≡ sim ∼ simeq ≃ cong ≅ propto ∝ to → rightarrow → leftarrow ← Rightarrow ⇒ Leftarrow ⇐ leftrightarrow ↔ Leftrightarrow ⇔ iff ⟺ implies ⟹ mapsto ↦ longrightarrow ⟶ uparrow ↑ downarrow ↓ in ∈ notin ∉ ni ∋ subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ cup ∪ cap ∩ setminus ∖ forall ∀ exists ∃ neg ¬ lnot ¬ land ∧ wedge ∧ lor ∨ vee ∨ oplus ⊕ otimes ⊗ circ ∘ bullet ∙ star ⋆ ast ∗ mid ∣ nmid ∤ parallel ∥ perp ⊥ ll ≪ gg ≫ therefore ∴ because ∵ colon : langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ lvert | rvert | vert | lVert ‖ rVert ‖ Vert ‖ backslash \\ { { } } | ‖ % % $ $ & & # # _ _";
const BIG = "sum ∑ prod ∏ int ∫ iint ∬ oint ∮ bigcup ⋃ bigcap ⋂ bigoplus ⨁";
const NAMED = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp lim max min sup inf det dim ker gcd lcm deg arg Pr mod";
const SPACES = { __proto__: null, ",": 0.17, ":": 0.22, ";": 0.28, "!": 0, " ": 0.25, quad: 1, qquad: 2, enspace: 0.5, thinspace: 0.17 };
const ACCENTS = { __proto__: null, hat: "^", widehat: "^", bar: "¯", overline: "¯", vec: "→", overrightarrow: "→", dot: "˙", ddot: "¨", tilde: "~", widetilde: "~" };
const FONTS = { __proto__: null, mathbf: "bold", mathcal: "script", mathrm: "normal", mathit: "italic", boldsymbol: "bold", mathsf: "sans-serif", mathfrak: "fraktur" };
const TEXTS = new Set(["text", "textbf", "textit", "textrm", "mbox", "operatorname", "mathrm", "texttt", "textnormal"]);
const IGNORED = new Set(["displaystyle", "textstyle", "limits", "nolimits", "left", "right", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "biggl", "biggr", "hfill", "phantom"]);
const BRACKETS = { __proto__: null, matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], vmatrix: ["|", "|"], Bmatrix: ["{", "}"], cases: ["{", ""], aligned: ["", ""], align: ["", ""], "align*": ["", ""], array: ["", ""], gathered: ["", ""], smallmatrix: ["", ""] };
const pairs = (words) => { const list = words.split(" "); return new Map(list.flatMap((word, at) => (at % 2 ? [] : [[word, list[at + 1]]]))); };
const LETTERS = pairs(GREEK), OPERATORS = pairs(SIGNS), LARGE = pairs(BIG), FUNCTIONS = new Set(NAMED.split(" "));

const doubleStruck = (letter) => ({ C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" })[letter] ?? (/[A-Z]/.test(letter) ? String.fromCodePoint(0x1d538 + letter.charCodeAt(0) - 65) : letter);

class NotUnderstood extends Error {}

/** An element of MathML. */
function ml(tag, children = [], attributes = {}) {
  const made = document.createElementNS($("formula").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (typeof children === "string") made.textContent = visible(children); else made.append(...children);
  return made;
}

/** Reads one formula. */
class Formula {
  constructor(text) {
    this.tokens = text.match(/\\[a-zA-Z]+\*?|\\[\s\S]|\d+(?:[.,]\d+)*|[\s\S]/gu) ?? [];
    this.at = 0;
    this.depth = 0;
  }

  get next() { return this.tokens[this.at]; }

  skip() { while (this.next !== undefined && /^\s$/.test(this.next)) this.at++; }

  take(expected) {
    this.skip();
    if (this.next !== expected) throw new NotUnderstood(`${expected} expected`);
    this.at++;
  }

  /** Elements up to one of the ends, which is not read. */
  row(...last) {
    if (++this.depth > DEEPEST) throw new NotUnderstood("too deep");
    const found = [];
    for (this.skip(); this.next !== undefined && !last.includes(this.next); this.skip()) {
      if (this.next === "}" || this.next === "&" || this.next === "\\end" || this.next === "\\\\") throw new NotUnderstood(this.next);
      found.push(this.scripted());
    }
    this.depth--;
    return found.length === 1 ? found[0] : ml("mrow", found);
  }

  /** An element with what stands above and below it. */
  scripted() {
    const large = LARGE.has((this.next ?? "").slice(1)) || ["\\lim", "\\max", "\\min", "\\sup", "\\inf"].includes(this.next);
    const base = this.next === "^" || this.next === "_" ? ml("mrow") : this.atom();
    let above = null, below = null;
    for (this.skip(); ["^", "_", "'", "\\limits"].includes(this.next); this.skip()) {
      const mark = this.tokens[this.at++];
      if (mark === "\\limits") continue;
      if (mark === "'") { // all primes in one element: nested rows of hundreds of them freeze the layout
        let primes = 1;
        for (; this.next === "'"; this.at++) primes++;
        above = above ? ml("mrow", [above, ml("mo", "′".repeat(primes))]) : ml("mo", "′".repeat(primes));
        continue;
      }
      if (mark === "^" ? above && !/^′+$/.test(above.textContent) : below) throw new NotUnderstood("two scripts");
      const found = this.argument();
      if (mark === "^") above = above ? ml("mrow", [above, found]) : found; else below = found;
    }
    if (!above && !below) return base;
    if (large && base.localName === "mo" && base.textContent !== "∫") return above && below ? ml("munderover", [base, below, above]) : ml(above ? "mover" : "munder", [base, above ?? below]);
    return above && below ? ml("msubsup", [base, below, above]) : ml(above ? "msup" : "msub", [base, above ?? below]);
  }

  /** A group in braces, or one element. */
  argument() {
    if (++this.depth > DEEPEST) throw new NotUnderstood("too deep"); // arguments without braces nest too
    const found = this.argumentInside();
    this.depth--;
    return found;
  }

  argumentInside() {
    this.skip();
    if (this.next === undefined) throw new NotUnderstood("an argument is missing");
    if (this.next !== "{") {
      if (/^\d\d/.test(this.next)) { // 2^10 is two to the one, then 0
        const [first, ...rest] = this.next;
        this.tokens.splice(this.at, 1, first, rest.join(""));
      }
      return this.atom();
    }
    this.at++;
    const found = this.row("}");
    this.take("}");
    return found;
  }

  /** The text of a group, as it is written. */
  words() {
    this.take("{");
    let text = "";
    for (let open = 1; ; this.at++) {
      if (this.next === undefined) throw new NotUnderstood("a brace is not closed");
      open += this.next === "{" ? 1 : this.next === "}" ? -1 : 0;
      if (!open) break;
      text += this.next.length === 2 && this.next[0] === "\\" ? this.next[1] : this.next;
    }
    this.at++;
    return text;
  }

  atom() {
    this.skip();
    const token = this.tokens[this.at++];
    if (token === undefined) throw new NotUnderstood("the end");
    if (token === "{") { this.at--; return this.argument(); }
    if (token[0] === "\\" && token.length > 1) return this.command(token.slice(1));
    if (/^\d/.test(token)) return ml("mn", token);
    if (/^\p{L}$/u.test(token)) return ml("mi", token);
    if (token === "~") return ml("mspace", [], { width: "0.25em" });
    if ("}&^_$".includes(token)) throw new NotUnderstood(token);
    return ml("mo", token === "-" ? "−" : token === "*" ? "∗" : token, "()[]|/".includes(token) ? { stretchy: "false" } : {});
  }

  command(name) {
    if (LETTERS.has(name)) return ml("mi", LETTERS.get(name));
    if (FUNCTIONS.has(name)) return name.length > 2 && "lim max min sup inf".includes(name) ? ml("mo", name) : ml("mi", name);
    if (LARGE.has(name)) return ml("mo", LARGE.get(name));
    if (OPERATORS.has(name)) return ml("mo", OPERATORS.get(name));
    if (name in SPACES) return ml("mspace", [], { width: `${SPACES[name]}em` });
    if (TEXTS.has(name)) return ml(name === "operatorname" ? "mi" : "mtext", this.words().replace(/^ | $/g, "\u00a0"));
    if (["frac", "dfrac", "tfrac", "cfrac"].includes(name)) return ml("mfrac", [this.argument(), this.argument()]);
    if (["binom", "dbinom", "tbinom"].includes(name)) return ml("mrow", [ml("mo", "("), ml("mfrac", [this.argument(), this.argument()], { linethickness: "0" }), ml("mo", ")")]);
    if (name === "sqrt") return this.root();
    if (name in FONTS) return ml("mstyle", [this.argument()], { class: `math-${FONTS[name]}` });
    if (name === "mathbb") return ml("mi", [...this.words()].map(doubleStruck).join(""));
    if (name in ACCENTS) return ml("mover", [this.argument(), ml("mo", ACCENTS[name])], { accent: "true" });
    if (name === "underline") return ml("munder", [this.argument(), ml("mo", "_")]);
    if (name === "boxed" || name === "fbox") return ml("mrow", [this.argument()], { class: "boxed" });
    if (name === "pmod") return ml("mrow", [ml("mo", "("), ml("mi", "mod"), ml("mspace", [], { width: "0.3em" }), this.argument(), ml("mo", ")")]);
    if (name === "bmod") return ml("mo", "mod");
    if (name === "begin") return this.environment();
    if (name === "left") return this.fenced();
    if (name === "right" || !IGNORED.has(name)) throw new NotUnderstood(`\\${name}`);
    return ml("mrow");
  }

  root() {
    this.skip();
    if (this.next !== "[") return ml("msqrt", [this.argument()]);
    this.at++;
    const index = this.row("]");
    this.take("]");
    return ml("mroot", [this.argument(), index]);
  }

  /** \left( .. \right) */
  fenced() {
    const side = () => {
      this.skip();
      const token = this.tokens[this.at++] ?? "", name = token.slice(1);
      if (token === ".") return [];
      return [ml("mo", token[0] === "\\" && name ? OPERATORS.get(name) ?? (() => { throw new NotUnderstood(token); })() : token, { stretchy: "true" })];
    };
    const open = side(), inner = this.row("\\right");
    this.take("\\right");
    return ml("mrow", [...open, inner, ...side()]);
  }

  /** \begin{pmatrix} .. \end{pmatrix} */
  environment() {
    const name = this.words(), sides = BRACKETS[name], rows = [[]];
    if (!sides) throw new NotUnderstood(name);
    if (name === "array") this.words();
    for (;;) {
      rows[rows.length - 1].push(ml("mtd", [this.row("&", "\\\\", "\\end")]));
      const mark = this.tokens[this.at++];
      if (mark === undefined) throw new NotUnderstood("an environment is not closed");
      if (mark === "\\end") break;
      if (mark === "\\\\") rows.push([]);
    }
    if (this.words() !== name) throw new NotUnderstood("another environment is closed");
    const table = ml("mtable", rows.map((cells) => ml("mtr", cells)));
    return ml("mrow", [...(sides[0] ? [ml("mo", sides[0])] : []), table, ...(sides[1] ? [ml("mo", sides[1])] : [])]);
  }
}

/** A formula as MathML; null if it is not understood. */
function mathOf(text, block = false) {
  if (text.length > LONGEST) return null;
  try {
    const formula = new Formula(text), found = formula.row();
    if (formula.next !== undefined) return null;
    const made = ml("math", [found], block ? { display: "block" } : {});
    made.setAttribute("title", visible(text));
    return made;
  } catch (error) {
    if (error instanceof NotUnderstood) return null;
    throw error;
  }
}

/** The end of the group that opens at a brace; -1 if it is not closed. */
function closing(text, from) {
  for (let at = from, open = 0; at < text.length && at < from + LONGEST; at++) {
    if (text[at] === "\\") at++;
    else if (text[at] === "{") open++;
    else if (text[at] === "}" && !--open) return at + 1;
  }
  return -1;
}

/** A text that is one formula without marks around it, as references often are, with marks; any other text as it is. */
function marked(text) {
  return /\\[a-zA-Z]/.test(text) && !/\$|\\[[(]|\\boxed/.test(text) && !/[a-z]{3,} [a-z]{2,}/i.test(text.replace(/\\[a-zA-Z]+|\{[^{}]*\}/g, "")) && mathOf(text) ? `$${text.trim()}$` : text;
}

/** Append a text to an element, with its formulas set. Returns how many there are. */
function setMath(element, text) {
  let from = 0, set = 0;
  if (text.length > TEXT) { element.append(visible(text)); return 0; }
  const finds = new RegExp(FORMULA.source, "g");
  for (let found = finds.exec(text); found && set < FORMULAS; found = finds.exec(text)) {
    const stop = found[5] ? closing(text, finds.lastIndex) : finds.lastIndex, inner = found[5] ? text.slice(found.index, stop) : found[1] ?? found[2] ?? found[3] ?? found[4];
    const block = found[1] !== undefined || found[2] !== undefined, made = stop < 0 ? null : mathOf(inner, block);
    if (!made) continue;
    element.append(visible(text.slice(from, found.index)), made);
    from = finds.lastIndex = stop + (block && text[stop] === "\n"); // a formula in a line of its own ends it
    set++;
  }
  element.append(visible(text.slice(from)));
  return set;
}
