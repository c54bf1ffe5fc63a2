// The data of a run in the page: a head, columns of all episodes, and compressed packs of texts and tokens.

const HUNDREDTH = 100, THOUSANDTH = 1000;

/** A part of the page, decompressed and parsed. */
function unpacked(id) {
  const stream = new Blob([bytesOf(id)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

/** One run. Its columns are available after `open`; texts and tokens are decompressed when they are requested. */
class Run {
  constructor(head, nth) {
    this.head = head;
    this.prefix = nth ? `${nth}-` : "";
    this.trained = head.kind === "training";
    this.packs = new Map();
    this.groups = new Map();
    this.texts = [];
  }

  async open() {
    this.columns = await unpacked(`${this.prefix}columns`);
    this.columns.group.at.forEach((group, episode) => {
      if (!this.groups.has(group)) this.groups.set(group, []);
      this.groups.get(group).push(episode);
    });
  }

  word(name, episode) { return this.columns[name].words[this.columns[name].at[episode]]; }

  number(name, episode) { return this.columns[name][episode]; }

  /** The episodes of the same group. */
  group(episode) { return this.groups.get(this.columns.group.at[episode]); }

  /** The key of an episode in any run: environment, step, task and sample. */
  key(episode) {
    const { step, sample } = this.columns;
    return `${this.word("env", episode)} ${step[episode]} ${this.word("task", episode)} ${sample[episode]}`;
  }

  /** The episode with that key, or -1. */
  find(key) {
    this.places ??= new Map(Array.from({ length: this.head.episodes }, (_, episode) => [this.key(episode), episode]));
    return this.places.get(key) ?? -1;
  }

  /** The texts ("texts") or the tokens ("tokens") of an episode. */
  async part(kind, episode) {
    const id = `${this.prefix}${kind}-${Math.floor(episode / page.chunk)}`;
    if (!this.packs.has(id)) this.packs.set(id, unpacked(id));
    return (await this.packs.get(id))[episode % page.chunk];
  }

  /** Load the texts of all episodes for the search, in lower case; in chunks, so that the page stays responsive. */
  read() { return (this.reading ??= this.readAll()); }

  async readAll() {
    for (let at = 0; at * page.chunk < this.head.episodes; at++) {
      for (const said of await unpacked(`${this.prefix}texts-${at}`)) {
        const prompt = (said.prompt || []).map((message) => message.content);
        this.texts.push([said.text, said.reason, said.error, ...(said.reasoning ?? []), ...prompt, ...textsOf(said.talk)].filter(Boolean).join("\n").toLowerCase());
      }
      await new Promise((resolve) => setTimeout(resolve));
    }
  }
}

const page = headOf(), chosenRuns = new URLSearchParams(location.hash.slice(1));

/** The runs whose episodes are shown: the first one and, if there are several, the second next to it, unless the URL says otherwise. */
function chosenRun(name, usual) {
  const nth = chosenRuns.has(name) ? Number(chosenRuns.get(name)) : usual;
  return page.runs[nth] ? new Run(page.runs[nth], nth) : null;
}

const run = chosenRun("run", 0) ?? new Run(page.runs[0], 0), otherRun = chosenRun("next", page.runs.length === 2 ? 1 : -1);
const other = otherRun && otherRun.prefix !== run.prefix ? otherRun : null;
