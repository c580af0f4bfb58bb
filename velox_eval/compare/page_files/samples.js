/* Two arms, sample by sample: the list. */

let pairs = []; // all samples of the two arms
let listed = []; // those shown, in order
let current = 0; // place in `listed`

/** Where two texts first differ, in UTF-16 units and never inside a character; -1 where they do not. */
function firstDifference(a, b) {
  if (a === b) return -1;
  const most = Math.min(a.length, b.length);
  let place = 0;
  while (place < most && a.charCodeAt(place) === b.charCodeAt(place)) place += 1;
  const inside = place > 0 && (a.charCodeAt(place - 1) & 0xfc00) === 0xd800;
  return inside ? place - 1 : place;
}

const answers = (index) => read(`answers-${active}-${index}`);

function pairUp(left, right) {
  const others = new Map(answers(right).map((answer) => [answer.id, answer]));
  const joined = answers(left).map((a) => {
    const b = others.get(a.id) ?? null;
    others.delete(a.id);
    return { id: a.id, stratum: a.stratum, a, b };
  });
  for (const b of others.values()) joined.push({ id: b.id, stratum: b.stratum, a: null, b });
  joined.forEach((pair, index) => {
    const { a, b } = pair;
    pair.index = index;
    const both = a && b && known(a.text) && known(b.text);
    pair.forced = Boolean(a?.kl || b?.kl);
    pair.at = both && !pair.forced ? firstDifference(a.text, b.text) : null;
    pair.change = a && b && known(a.score) && known(b.score) ? b.score - a.score : null;
  });
  return joined;
}

const ORDERS = [
  ["task order", (pair) => pair.index],
  ["B loses most first", (pair) => (known(pair.change) ? better(pair.change) : null)],
  ["B gains most first", (pair) => (known(pair.change) ? -better(pair.change) : null)],
  ["earliest difference first", (pair) => (pair.at === -1 ? Infinity : pair.at)],
  ["B repeats most first", (pair) => (known(pair.b?.repetition) ? -pair.b.repetition : null)],
  ["longest B first", (pair) => (known(pair.b?.tokens) ? -pair.b.tokens : null)],
];

function showPair() {
  const keep = listed[current]?.id;
  pairs = pairUp(Number($("left").value), Number($("right").value));
  const scored = pairs.filter((pair) => known(pair.change));
  const wins = scored.filter((pair) => better(pair.change) > 0).length;
  const losses = scored.filter((pair) => better(pair.change) < 0).length;
  const same = pairs.filter((pair) => pair.at === -1).length;
  const parts = [`${plural(pairs.length, "sample")}: B scores better on `, el("b", {}, String(wins)), ", worse on ", el("b", {}, String(losses)), ", equal on ", el("b", {}, String(scored.length - wins - losses))];
  if (pairs.some((pair) => known(pair.at))) parts.push("; answers byte-identical: ", el("b", {}, String(same)));
  $("pair").replaceChildren(...parts, ".");
  listSamples(keep);
}

function listSamples(keep) {
  const words = $("find").value.toLowerCase();
  const [, key] = ORDERS[Number($("order").value)];
  const holds = (text) => known(text) && text.toLowerCase().includes(words);
  listed = pairs.filter((pair) => !words || holds(pair.id) || holds(pair.stratum) || holds(pair.a?.text) || holds(pair.b?.text));
  listed.sort((x, y) => compare(key(x), key(y), false) || x.index - y.index);
  const place = listed.findIndex((pair) => pair.id === keep);
  $("samples-shown").value = listed.length === pairs.length ? plural(pairs.length, "sample") : `${listed.length} of ${plural(pairs.length, "sample")}`;
  $("samples").querySelector(".space").style.height = `${listed.length * ROW}px`;
  select(place < 0 ? 0 : place);
}

/** Only the samples in sight are in the document: thousands open and sort at once. */
function drawList() {
  const box = $("samples");
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 4);
  const last = Math.min(listed.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + 4);
  const options = [];
  for (let place = first; place < last; place += 1) options.push(optionOf(place));
  box.replaceChildren(box.querySelector(".space"), ...options);
  if (current >= first && current < last) box.setAttribute("aria-activedescendant", `option-${current}`);
  else box.removeAttribute("aria-activedescendant");
}

function optionOf(place) {
  const pair = listed[place];
  const score = (answer) => (answer ? (answer.error ? "failed" : num(answer.score)) : "none");
  const option = el("div", {
    role: "option", id: `option-${place}`, "aria-selected": String(place === current),
    "aria-setsize": listed.length, "aria-posinset": place + 1, onclick: () => { select(place); $("samples").focus(); },
  }, el("span", {}, `${pair.index + 1}. ${pair.id}`), el("span", {}, `A ${score(pair.a)} \u00b7 B ${score(pair.b)}${differs(pair)}`));
  option.style.top = `${place * ROW}px`;
  return option;
}

function differs(pair) {
  if (pair.at === -1) return " \u00b7 identical";
  return known(pair.at) ? ` \u00b7 differ from character ${pair.at + 1}` : "";
}

function select(place) {
  const box = $("samples");
  current = Math.max(0, Math.min(listed.length - 1, place));
  const top = current * ROW;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
  drawList();
  showSample();
}

function keys(event) {
  const page = Math.max(1, Math.floor($("samples").clientHeight / ROW) - 1);
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  if (!(event.key in moves) || !listed.length) return;
  event.preventDefault();
  select(current + moves[event.key]);
}
