/* One sample: what was asked, and two answers beside each other. */

function showSample() {
  const pair = listed[current];
  if (!pair) { $("sample").replaceChildren(el("p", { class: "hint" }, "No sample matches.")); return; }
  const arms = section().arms;
  const [left, right] = [arms[Number($("left").value)], arms[Number($("right").value)]];
  const head = el("header", {}, el("h3", {}, pair.id), el("span", {}, `${pair.stratum}${known(pair.a?.prompt_tokens) ? ` \u00b7 prompt of ${pair.a.prompt_tokens} tokens` : ""}`));
  const scale = Math.max(0, ...(pair.a?.kl ?? []), ...(pair.b?.kl ?? []));
  const panes = el("div", { class: "panes" }, pane("A", left, pair.a, pair.at, scale), pane("B", right, pair.b, pair.at, scale));
  $("sample").replaceChildren(head, promptOf(pair), keyOf(pair), panes, scoresOf(pair), inspectOf(left, right, pair));
}

function promptOf(pair) {
  const { texts, missing } = read(`prompts-${active}`);
  const text = Object.hasOwn(texts, pair.id) ? texts[pair.id] : null;
  if (text === null) return el("p", { class: "hint" }, `Prompt not shown: ${missing || "not in the data"}.`);
  return el("details", {}, el("summary", {}, "Prompt"), el("pre", { class: "prompt", tabindex: "0" }, text));
}

function keyOf(pair) {
  const line = el("p", { class: "key" });
  if (pair.forced) {
    line.append("Bars: KL from the full cache at each token, one scale for both; below them, tokens where the first choice differs.");
    return line;
  }
  if (pair.at === -1) line.append("The answers are identical, byte for byte.");
  if (pair.at >= 0 && known(pair.at)) {
    const jump = () => document.querySelectorAll("#sample .answer").forEach((box) => {
      const mark = box.querySelector("mark");
      if (mark) box.scrollTop = mark.offsetTop - box.offsetTop - box.clientHeight / 3;
    });
    line.append(el("span", {}, el("mark", {}, "marked"), ": where they first differ"), el("button", { type: "button", class: "jump", onclick: jump }, "Show the difference"));
  }
  line.append(el("span", {}, el("span", { class: "again" }, "underlined"), ": words that stood earlier in the answer, four or more in a row"));
  return line;
}

function pane(name, arm, answer, at, scale) {
  const head = el("header", {}, el("h3", {}, `${name}: ${arm.label}`), el("p", {}, factsOf(answer)));
  const box = el("section", { class: "pane", "aria-label": `${name}: ${arm.label}` }, head);
  if (!answer) box.append(el("p", { class: "answer" }, "This run has no such sample."));
  else if (answer.logprobs) box.append(likelihoods(answer));
  else if (!known(answer.text)) box.append(el("p", { class: "answer" }, answer.error ?? "No answer."));
  else if (answer.kl) box.append(strip(answer, scale), el("div", { class: "answer", tabindex: "0" }, answer.text));
  else box.append(marked(answer.text, at, answer.repeated ?? []));
  return box;
}

function factsOf(answer) {
  if (!answer) return "";
  const ends = { eos: "ended by the model", stop: "ended by a stop string", length: "cut by a limit" };
  return [
    known(answer.score) ? `${section().score} ${num(answer.score)}` : null,
    known(answer.tokens) ? plural(answer.tokens, "token") : null,
    ends[answer.finish],
    known(answer.repetition) ? `repetition ${num(answer.repetition)}` : null,
    known(answer.peak) ? `peak ${bytes(answer.peak)}` : null,
    known(answer.seconds) ? seconds(answer.seconds) : null,
    answer.error,
  ].filter(Boolean).join(" \u00b7 ");
}

/** The answer in pieces: what both share, the first difference (to the end of its word), and what repeats. */
function marked(text, at, repeated) {
  const box = el("div", { class: "answer", tabindex: "0" });
  let differs = [-1, -1];
  if (known(at) && at >= 0) {
    const rest = /^\s*\S*/u.exec(text.slice(at))[0].length;
    differs = [at, Math.max(at + rest, at)];
  }
  const cuts = new Set([0, text.length, ...repeated]);
  if (differs[0] >= 0) cuts.add(differs[0]).add(differs[1]);
  const edges = [...cuts].sort((x, y) => x - y);
  let stretch = 0; // the repeated stretch at hand
  for (let index = 0; index < edges.length - 1; index += 1) {
    const [start, end] = [edges[index], edges[index + 1]];
    while (stretch < repeated.length && repeated[stretch + 1] <= start) stretch += 2;
    const again = stretch < repeated.length && repeated[stretch] <= start;
    const isDifferent = start >= differs[0] && end <= differs[1];
    const classes = [again ? "again" : "", differs[0] > 0 && end <= differs[0] ? "same" : ""].join(" ").trim();
    box.append(el(isDifferent ? "mark" : "span", classes ? { class: classes } : {}, text.slice(start, end)));
  }
  if (differs[0] === text.length) box.append(el("mark", {}, "(the answer ends here)"));
  return box;
}

/** A task that asked how likely texts are: one line each, in the task's order. */
function likelihoods(answer) {
  const most = Math.max(...answer.logprobs);
  const lines = answer.logprobs.map((value, index) => {
    const words = [value === most && answer.logprobs.length > 1 ? "the likeliest" : null, answer.greedy[index] ? "what greedy decoding gives" : null];
    return el("li", {}, [`log-probability ${num(value)}`, ...words].filter(Boolean).join(", "));
  });
  return el("ol", { class: "options" }, ...lines);
}

function strip(answer, scale) {
  const count = answer.kl.length;
  const picture = svg("svg", { class: "strip", viewBox: `0 0 ${count} 64`, preserveAspectRatio: "none", role: "img", "aria-label": `KL at each of ${count} tokens, largest ${num(Math.max(...answer.kl))} nats` });
  let bars = "", off = "";
  answer.kl.forEach((value, index) => {
    const height = scale > 0 ? 52 * Math.sqrt(value / scale) : 0;
    if (height > 0) bars += `M${index} 54h.86v${-height.toFixed(2)}h-.86z`;
    if (answer.agree[index] === "0") off += `M${index} 57h.86v7h-.86z`;
  });
  picture.append(svg("path", { class: "kl", d: bars }), svg("path", { class: "off", d: off }));
  const first = answer.agree.indexOf("0");
  const words = `largest ${num(Math.max(...answer.kl))} nats (height: square root); ${first < 0 ? "the first choice is always the same" : `first choice first differs at token ${first + 1}`}`;
  return el("div", { class: "figures" }, picture, el("p", { class: "hint" }, words));
}

function scoresOf(pair) {
  const names = [...new Set([...Object.keys(pair.a?.scores ?? {}), ...Object.keys(pair.b?.scores ?? {})])];
  const value = (answer, name) => {
    if (answer && Object.hasOwn(answer.unscored ?? {}, name)) return `unscored: ${answer.unscored[name]}`;
    const score = answer && Object.hasOwn(answer.scores ?? {}, name) ? answer.scores[name] : null;
    if (!score) return "\u2013";
    return score[1] === 1 ? num(score[0]) : score[1] ? `${num(score[0] / score[1])} (${num(score[0])} of ${num(score[1])})` : "nothing asked";
  };
  const lost = Object.keys({ ...pair.a?.unscored, ...pair.b?.unscored }).filter((name) => !names.includes(name));
  const rows = [...names, ...lost].map((name) => el("tr", {}, el("th", { scope: "row" }, name), cell(value(pair.a, name)), cell(value(pair.b, name))));
  const head = el("thead", {}, el("tr", {}, el("th", {}, "score"), el("th", { scope: "col" }, "A"), el("th", { scope: "col" }, "B")));
  return el("details", { open: pair.forced }, el("summary", {}, "All scores of this sample"), el("div", { class: "boxed" }, el("table", { class: "scores" }, head, el("tbody", {}, ...rows))));
}

const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);

function inspectOf(left, right, pair) {
  const commands = [...new Set([left.run_id, right.run_id])].map((run) => commandLine(`velox-eval inspect ${quote(run)} --sample ${quote(pair.id)}`));
  return el("details", {}, el("summary", {}, "Draw which positions were kept"), ...commands);
}
