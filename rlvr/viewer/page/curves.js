// The charts of training runs: one main chart, and small ones below it in the order of their importance. A panel of a run is
// {title, steps, lines: {name: [number or null, ..]}}. Runs of one condition differ only by their seed: their mean is drawn, with a band.

const LINES = {
  "completions/mean_length": "mean", "completions/max_length": "longest", "completions/clipped_ratio": "share of answers", kl: "to the reference",
  mismatch_kl: "trainer to sampler", "clip_ratio/region_mean": "all", "clip_ratio/low_mean": "low side", "clip_ratio/high_mean": "high side",
  grad_norm: "before clipping", frac_reward_zero_std: "share of groups", step_time: "whole step", "time/sample": "sampling",
  "time/verify_after_sampling": "waiting for verdicts", "time/update": "update", "turns/mean_per_episode": "turns", "tools/calls_per_episode": "calls", "tools/errors_per_episode": "failed calls",
  reward_std: "standard deviation in a group", "eval/accuracy": "held-out accuracy", "staleness/mean": "mean",
  "cluster/sampling_fraction": "rollout_workers sample", "cluster/idle_fraction": "idle", "cluster/loading_fraction": "load weights", "cluster/trainer_busy_fraction": "trainer trains",
  "cluster/rollout_workers": "at work or ready", "cluster/workers_lost": "lost", "cluster/retried_tasks": "calls sampled again", "cluster/abandoned_tasks": "calls given up",
};
const FIRST = ["groups by share of right answers", "reward by part", "turns and calls per answer", "activity, fraction of a step"]; // of the small ones; the others keep their order
const SHOWN = 8; // small charts; more are folded
const lineName = (name) => LINES[name] ?? name;

/** Interpolate the values of one run at a step; null outside of its steps. */
function valueAt({ steps, values }, step) {
  const last = steps.length - 1;
  if (step < steps[0] || step > steps[last]) return null;
  const near = nearest(steps, step), at = steps[near] > step ? near - 1 : near;
  if (steps[at] === step || at === last) return values[at];
  const [a, b] = [values[at], values[at + 1]];
  return a === null || b === null ? a ?? b : a + ((step - steps[at]) / (steps[at + 1] - steps[at])) * (b - a);
}

/** The mean of several runs at the steps that all have reached, with the smallest and the largest value. */
function meanOf(runs) {
  if (runs.length === 1) return runs[0];
  const longest = runs.reduce((a, b) => (b.steps.length > a.steps.length ? b : a)), found = { steps: [], values: [], low: [], high: [] };
  for (const step of longest.steps) {
    const values = runs.map((one) => valueAt(one, step));
    if (values.some((value) => value === null)) continue;
    found.steps.push(step);
    found.values.push(values.reduce((a, b) => a + b) / values.length);
    found.low.push(Math.min(...values));
    found.high.push(Math.max(...values));
  }
  return found.steps.length ? found : runs[0];
}

/** The mean of each value and its neighbours, `window` in all; nulls are left out. */
function smooth(values, window) {
  const half = window >> 1;
  return values.map((_, at) => {
    const near = values.slice(Math.max(0, at - half), at + half + 1).filter((value) => value !== null);
    return near.length ? near.reduce((a, b) => a + b) / near.length : null;
  });
}

/** The runs of each condition that have a line: [{label, colour, runs: [{steps, values}]}]. */
function byCondition(head, title, name) {
  const found = head.labels.map((label, colour) => ({ label, colour, runs: [] }));
  head.runs.forEach((one, nth) => {
    const panel = one.panels.find((panel_) => panel_.title === title), values = panel?.lines[name];
    if (values && !one.hidden) found[head.at[nth]].runs.push({ steps: panel.steps, values, held: one.held_out ?? [] });
  });
  return found.filter((condition) => condition.runs.length);
}

/** Held-out accuracies of a condition: of one run with their intervals, of several the mean with the smallest and the largest. */
function heldOut({ runs, colour, label }, many) {
  const steps = [...new Set(runs.flatMap((one) => one.held.map(([step]) => step)))].sort((a, b) => a - b);
  const at = steps.flatMap((step) => {
    const there = runs.flatMap((one) => one.held.filter(([found]) => found === step));
    if (there.length === 1 && runs.length === 1) return there;
    if (there.length < runs.length) return []; // not measured in all runs
    const values = there.map(([, value]) => value);
    return [[step, values.reduce((a, b) => a + b) / values.length, Math.min(...values), Math.max(...values)]];
  });
  return at.length ? [{ label: many ? `${label}, held out` : "held-out accuracy", colour: many ? colour : 1, at }] : [];
}

/** The main chart: the reward by step, smoothed, with held-out accuracies; of a run without rewards its first panel. */
function mainChart(head) {
  const panels = head.runs.flatMap((one) => one.panels), first = panels.find(({ title }) => title === "reward") ?? panels[0];
  if (!first) return null;
  const [name] = Object.keys(first.lines), found = byCondition(head, first.title, name), many = head.labels.length > 1;
  const points = Math.max(...found.flatMap(({ runs }) => runs.map(({ steps }) => steps.length)), 0), window = Math.min(9, 2 * Math.floor(points / 16) + 1); // odd: as many before as after
  if (!found.length) return null;
  const series = [];
  for (const { label, colour, runs } of found) {
    const smoothed = runs.map(({ steps, values }) => ({ steps, values: smooth(values, window) })), told = many ? label : lineName(name);
    if (runs.length === 1 && window > 1) series.push({ label: told, colour, ...runs[0], faint: true });
    if (runs.length > 1 && runs.length <= 5) series.push(...smoothed.map((one) => ({ label: told, colour, ...one, faint: true })));
    series.push({ label: runs.length > 1 ? `${told}, ${runs.length} runs` : told, colour, ...meanOf(smoothed) });
  }
  const held = first.title === "reward" ? found.flatMap((condition) => heldOut(condition, many)) : [];
  const notes = [];
  if (window > 1) notes.push(`lines: mean of ${window} neighbouring points${found.some(({ runs }) => runs.length === 1) ? ", pale: each" : ""}`);
  if (found.some(({ runs }) => runs.length > 1)) notes.push("bands: smallest to largest of the runs");
  if (held.some(({ at }) => at.some(([, , low]) => low !== null))) notes.push(`points: accuracy on held-out tasks, ${found.some(({ runs }) => runs.length > 1) ? "smallest to largest of several runs, 95 % interval of one" : "with 95 % intervals"}`);
  const wide = Math.max(320, Math.min(1700, document.body.clientWidth - 40)), narrow = wide < 640;
  const size = { width: wide, height: narrow ? 230 : 310, left: 52, right: 14, top: 10, bottom: 39, marks: 5 };
  return chart({ title: first.title, series, points: held, size, labels: { className: "main", across: "step", up: held.length ? "reward, accuracy" : lineName(name), note: notes.join("; ") } });
}

/** The small charts. What the main chart shows is left out. */
function smallCharts(head) {
  const panels = head.runs.flatMap((one) => one.panels), titles = [...new Set(panels.map(({ title }) => title))], many = head.labels.length > 1;
  const main = titles.includes("reward") ? "reward" : titles[0], rank = (title) => (FIRST.includes(title) ? FIRST.indexOf(title) : FIRST.length);
  titles.sort((a, b) => rank(a) - rank(b));
  return titles.flatMap((title) => {
    let names = [...new Set(panels.filter((panel) => panel.title === title).flatMap((panel) => Object.keys(panel.lines)))];
    if (title === main) names = names.slice(1);
    if (main === "reward") names = names.filter((name) => name !== "eval/accuracy");
    if (!names.length) return [];
    const shares = panels.find((panel) => panel.title === title).stacked, stacked = !many && shares;
    if (shares && many) names = [names[0], names[names.length - 1]];
    const series = names.flatMap((name, nth) => byCondition(head, title, name).map(({ label, colour, runs }) => {
      const { low, high, ...line } = meanOf(runs), band = low && nth === 0 && !stacked ? { low, high } : {};
      return { label: many ? `${label}${names.length > 1 ? `, ${lineName(name)}` : ""}` : lineName(name), colour: many ? colour : nth, dashed: many && nth > 0, stacked, ...line, ...band };
    }));
    return series.length ? [chart({ title: title === "reward" ? "spread of rewards" : title, series })] : [];
  });
}

/** All charts of the page, drawn again when its width changes much. */
function paintCurves(head) {
  const main = mainChart(head), small = smallCharts(head);
  $("main").replaceChildren(...(main ? [main] : []));
  $("curves").replaceChildren(...small.slice(0, SHOWN));
  $("more").hidden = small.length <= SHOWN;
  $("more-curves").replaceChildren(...small.slice(SHOWN));
}
