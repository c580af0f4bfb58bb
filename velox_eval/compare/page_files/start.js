/* The runs with their commands, and what puts the page together. */

function commandLine(text) {
  const copy = async (event) => {
    const button = event.currentTarget;
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
    catch (error) {
      if (!(error instanceof DOMException)) throw error;
      getSelection().selectAllChildren(button.nextElementSibling);
      button.textContent = "Selected";
    }
  };
  return el("div", { class: "command" }, el("button", { type: "button", class: "copy", onclick: copy }, "Copy"), el("code", {}, text));
}

function drawRuns() {
  $("run-list").replaceChildren(...section().arms.map((arm) => {
    const run = runs[arm.run_id];
    const box = el("details", {}, el("summary", {}, arm.label, " ", el("small", {}, arm.run_id)));
    const fill = () => { if (box.open && box.childElementCount === 1) box.append(...runBody(run, arm)); };
    box.addEventListener("toggle", fill);
    return box;
  }));
}

function runBody(run, arm) {
  const commands = run.commands.length ? run.commands.map(commandLine) : [el("p", { class: "hint" }, "The command line was not recorded.")];
  const facts = Object.entries(run.facts).flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]);
  const cost = run.cost ?? {};
  const costs = [
    ["prefill", `${cost.prefill_tokens} tokens in ${seconds(cost.prefill_seconds)}`],
    ["decode", `${cost.decode_tokens} tokens in ${seconds(cost.decode_seconds)}`],
    ["wall clock", `${seconds(cost.wall_seconds)}: engine ${seconds(cost.engine_seconds)}, scoring ${seconds(cost.scoring_seconds)}, records ${seconds(cost.store_seconds)}`],
    ["peak memory", `${bytes(arm.cost.peak_cache_bytes)} of keys and values, ${bytes(arm.cost.peak_total_bytes)} with the method's own arrays, ${bytes(arm.cost.allocated_cache_bytes)} allocated; whole process ${bytes(run.mlx_peak_bytes)}`],
  ];
  const rows = run.cost ? costs.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]) : [];
  const scores = Object.entries(arm.other_scores).filter(([, value]) => known(value)).map(([name, value]) => `${name} ${num(value)}`);
  if (scores.length) rows.push(el("dt", {}, "other scores"), el("dd", {}, scores.join(" \u00b7 ")));
  return [...commands, el("dl", {}, ...facts, ...rows)];
}

/* ---- a section ---- */
function showSection(index) {
  active = index;
  sorting = null;
  listed = [];
  const s = section();
  const mixed = Object.entries(s.mixed).map(([name, values]) => ` Mixed as asked: ${name} (${values.join("; ")}).`);
  $("about").textContent = `${s.title}.${mixed.join("")}`;
  const paired = s.baseline ? `; differences are from ${s.baseline}, sample by sample` : "";
  const margin = comparison.margin === null ? "" : `, margin ${num(comparison.margin)}`;
  const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;
  const hints = [`Intervals at ${percent(1 - comparison.alpha)}${paired}${margin}.`, ...[sharedReason(), ...s.notes].filter(Boolean).map(sentence), "Select a method to read its answers."];
  $("table-hint").textContent = hints.join(" ");
  for (const figure of document.querySelectorAll(".plot")) figure.hidden = figure.dataset.section !== String(index);
  reachPlots();
  drawVerdicts();
  drawHead();
  drawRows();
  drawMemory();
  const options = () => s.arms.map((arm, place) => el("option", { value: place }, arm.label));
  $("left").replaceChildren(...options());
  $("right").replaceChildren(...options());
  $("left").value = "0";
  const other = s.arms.findIndex((arm) => !arm.baseline);
  $("right").value = String(other < 0 ? s.arms.length - 1 : other);
  showPair();
  drawRuns();
}

/** A plot that is wider than its box can be scrolled by keyboard; others need no stop. */
function reachPlots() {
  for (const figure of document.querySelectorAll(".plot")) {
    if (figure.scrollWidth > figure.clientWidth) figure.tabIndex = 0;
    else figure.removeAttribute("tabindex");
  }
}

function start() {
  $("section").replaceChildren(...sections.map((s, index) => el("option", { value: index }, s.title)));
  $("section-choice").hidden = sections.length < 2;
  $("order").replaceChildren(...ORDERS.map(([name], index) => el("option", { value: index }, name)));
  $("rules").lastElementChild.replaceChildren(...comparison.rules.map((rule) => el("li", {}, rule)));
  $("left-out").hidden = !comparison.left_out.length;
  $("left-out").lastElementChild.replaceChildren(...comparison.left_out.map((run) => el("li", {}, `${run.label} (${run.run_id}): ${run.reason}`)));
  $("section").addEventListener("change", (event) => showSection(Number(event.target.value)));
  $("filter").addEventListener("input", drawRows);
  $("verdict").addEventListener("change", drawRows);
  for (const id of ["left", "right"]) $(id).addEventListener("change", showPair);
  $("swap").addEventListener("click", () => { [$("left").value, $("right").value] = [$("right").value, $("left").value]; showPair(); });
  for (const [id, event] of [["order", "change"], ["find", "input"]]) $(id).addEventListener(event, () => listSamples(listed[current]?.id));
  $("samples").addEventListener("scroll", drawList);
  $("samples").addEventListener("keydown", keys);
  addEventListener("resize", () => { drawList(); reachPlots(); });
  if (sections.length) showSection(0);
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}

start();
