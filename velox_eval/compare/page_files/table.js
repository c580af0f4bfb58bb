/* The table of methods and budgets: sorting and filtering. */

const SIGNS = {
  better: "\u25b2", worse: "\u25bc", not_worse: "\u2265", no_difference: "\u2248", cannot_decide: "?",
  same_answers: "=", judge_noise: "=", not_compared: "\u2013",
};
const RANKS = ["better", "not_worse", "same_answers", "judge_noise", "no_difference", "cannot_decide", "not_compared", "worse"];

/** An interval of a difference beside zero, on one scale for the whole table. */
function forest(difference, scale) {
  const at = (value) => 46 + (44 * Math.max(-scale, Math.min(scale, value))) / (scale || 1);
  const picture = svg("svg", { class: "forest", viewBox: "0 0 92 14", "aria-hidden": "true" });
  picture.append(svg("line", { class: "zero", x1: 46, x2: 46, y1: 0, y2: 14 }));
  if (known(difference.low) && known(difference.high)) {
    picture.append(svg("line", { class: "span", x1: at(difference.low), x2: at(difference.high), y1: 7, y2: 7 }));
  }
  picture.append(svg("circle", { cx: at(difference.value), cy: 7, r: 3 }));
  return picture;
}

function scaleOf(arms) {
  const edges = arms.filter((arm) => arm.difference && known(arm.difference.value))
    .flatMap(({ difference: d }) => [d.value, d.low ?? d.value, d.high ?? d.value]);
  return Math.max(0, ...edges.map(Math.abs));
}

const cell = (...children) => el("td", {}, ...children);

function differenceCell(arm, scale) {
  const d = arm.difference;
  if (!d) return cell(arm.baseline ? "baseline" : "\u2013");
  if (!known(d.value)) return cell("\u2013");
  return cell(signed(d.value), small(range(d.low, d.high, signed)), forest(d, scale));
}

function verdictCell(arm) {
  const d = arm.difference;
  if (!d) return el("td", { class: "verdict text" }, arm.baseline ? "" : "\u2013");
  const same = d.n_identical && d.verdict !== "same_answers" ? `${d.n_identical} of ${d.n_pairs} answers byte-identical` : null;
  const reason = d.reason === sharedReason() ? null : d.reason;
  return el("td", { class: "verdict text" }, `${SIGNS[d.verdict]} ${verdicts[d.verdict]}`, small(reason), small(same));
}

/** The reason that every verdict of the table has; it is said once, below. */
function sharedReason() {
  const reasons = new Set(section().arms.filter((arm) => arm.difference).map((arm) => arm.difference.reason));
  return reasons.size === 1 ? [...reasons][0] : "";
}

function samplesCell({ counts }) {
  const odd = [[counts.error, "failed"], [counts.unscored, "unscored"], [counts.truncated, "cut by a limit"], [counts.not_fired, "never evicted"]];
  const words = odd.filter(([count]) => count).map(([count, word]) => `${count} ${word}`);
  return cell(`${counts.ok} of ${counts.wanted}`, ...words.map(small));
}

function repetitionCell(arm) {
  const equal = arm.repetition;
  const change = equal && known(equal.difference.value) ? `${signed(equal.difference.value)} at equal length` : null;
  return cell(num(arm.repetition_rate), small(change));
}

function columns() {
  const s = section();
  const against = s.baseline ? `against ${s.baseline}` : "difference";
  const all = [
    { name: "method and budget", text: true, value: (arm) => arm.label, cell: nameCell },
    { name: s.score, hint: `${s.higher_is_better ? "higher" : "lower"} is better`, value: (arm) => arm.score.value,
      cell: (arm) => cell(num(arm.score.value), small(range(arm.score.low, arm.score.high))) },
    { name: against, value: (arm) => arm.difference?.value ?? null, cell: differenceCell },
    { name: "verdict", text: true, value: (arm) => (arm.difference ? RANKS.indexOf(arm.difference.verdict) : null), cell: verdictCell },
    { name: "repetition", hint: "word 4-grams", value: (arm) => arm.repetition_rate, cell: repetitionCell },
    { name: "peak cache", value: (arm) => arm.cost.peak_cache_bytes, cell: (arm) => cell(bytes(arm.cost.peak_cache_bytes)) },
    { name: "of full", value: (arm) => arm.cost.peak_of_full, cell: (arm) => cell(percent(arm.cost.peak_of_full)) },
    { name: "rows kept", hint: "a layer", value: (arm) => arm.cost.kept_tokens,
      cell: (arm) => cell(known(arm.cost.kept_tokens) ? Math.round(arm.cost.kept_tokens) : "\u2013", small(known(arm.cost.kept_fraction) ? percent(arm.cost.kept_fraction) : null)) },
    { name: "early share", value: (arm) => arm.cost.early_share, cell: (arm) => cell(percent(arm.cost.early_share)) },
    { name: "prefill", hint: "tokens/s", value: (arm) => arm.cost.prefill_tokens_per_second, cell: (arm) => speedCell(arm, "prefill") },
    { name: "decode", hint: "tokens/s", value: (arm) => arm.cost.decode_tokens_per_second, cell: (arm) => speedCell(arm, "decode") },
    { name: "samples", value: (arm) => arm.counts.ok, cell: samplesCell },
  ];
  return all.filter(({ value }) => s.arms.some((arm) => known(value(arm))));
}

function speedCell({ cost }, what) {
  const ratio = cost[`${what}_ratio`];
  const batch = cost.batch ? `batch ${cost.batch}` : null;
  return cell(num(cost[`${what}_tokens_per_second`]), small(known(ratio) ? `${num(ratio)}\u00d7` : batch));
}

function nameCell(arm) {
  const choose = () => { $("right").value = String(section().arms.indexOf(arm)); showPair(); $("answers").scrollIntoView(); };
  const button = el("button", { class: "link", type: "button", "aria-label": `${arm.label}: read its answers`, onclick: choose }, arm.label);
  const notes = [arm.finished ? null : "not finished", ...arm.notes];
  return el("th", { scope: "row" }, button, ...notes.map(small));
}

let sorting = null; // { index, down }

function drawHead() {
  const cells = columns().map((column, index) => {
    const button = el("button", { type: "button", onclick: () => sortBy(index) }, el("span", {}, column.name), small(column.hint));
    return el("th", { scope: "col", class: column.text ? "text" : "", "aria-sort": "none" }, button);
  });
  $("arms").tHead.replaceChildren(el("tr", {}, ...cells));
}

function sortBy(index) {
  const again = sorting && sorting.index === index;
  sorting = { index, down: again ? !sorting.down : false };
  [...$("arms").tHead.rows[0].cells].forEach((head, place) => {
    head.setAttribute("aria-sort", place !== index ? "none" : sorting.down ? "descending" : "ascending");
  });
  drawRows();
}

/** Text by the alphabet, numbers by size; what is not known comes last either way. */
function compare(a, b, down) {
  if (!known(a) || !known(b)) return known(a) ? -1 : known(b) ? 1 : 0;
  const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return down ? -order : order;
}

function drawRows() {
  const list = columns();
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = $("verdict").value;
  const all = section().arms;
  const rows = all.filter((arm) => {
    const verdict = arm.difference?.verdict;
    const text = [arm.label, verdict ? verdicts[verdict] : "baseline", ...arm.notes].join(" ").toLowerCase();
    return words.every((word) => text.includes(word)) && (!wanted || verdict === wanted);
  });
  if (sorting) {
    const { value } = list[sorting.index];
    rows.sort((a, b) => compare(value(a), value(b), sorting.down));
  }
  const scale = scaleOf(all);
  $("arms").tBodies[0].replaceChildren(...rows.map((arm) => el("tr", {}, ...list.map((column) => column.cell(arm, scale)))));
  $("shown").value = rows.length === all.length ? plural(all.length, "row") : `${rows.length} of ${plural(all.length, "row")}`;
}

function drawVerdicts() {
  const present = RANKS.filter((name) => section().arms.some((arm) => arm.difference?.verdict === name));
  $("verdict").replaceChildren(el("option", { value: "" }, "any"), ...present.map((name) => el("option", { value: name }, verdicts[name])));
}

/** Arms that ran under one memory limit, at the batch that it allowed each. */
function drawMemory() {
  const rows = section().equal_memory;
  const box = $("memory");
  box.hidden = !rows.length;
  const table = box.querySelector("table");
  const names = ["method and budget", "memory limit", "batch", "decode, tokens/s", "over the baseline's", "prefill, tokens/s"];
  table.tHead.replaceChildren(el("tr", {}, ...names.map((name, index) => el("th", { scope: "col", class: index ? "" : "text" }, name))));
  table.tBodies[0].replaceChildren(...rows.map((row) => el("tr", {},
    el("th", { scope: "row" }, row.label), cell(bytes(row.memory_limit)), cell(row.batch ?? "\u2013"), cell(num(row.decode_tokens_per_second)),
    cell(known(row.decode_ratio) ? `${num(row.decode_ratio)}\u00d7` : "\u2013"), cell(num(row.prefill_tokens_per_second)))));
}
