"use strict";
/* Helpers. Text from runs and models enters the document as text nodes and attributes of ours only. */

const SVG = "http://www.w3.org/2000/svg";
const ROW = 46; // height of a sample in the list, px; the style sheet has the same
const $ = (id) => document.getElementById(id);
const cache = new Map();

/** The JSON of a data block, parsed when first asked for; its text is let go of then. */
function read(id) {
  if (!cache.has(id)) {
    const block = $(id);
    cache.set(id, JSON.parse(block.textContent));
    block.remove();
  }
  return cache.get(id);
}

function el(name, options = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/* ---- numbers as people read them ---- */
const known = (value) => value !== null && value !== undefined;
const minus = (text) => text.replace("-", "\u2212");

function num(value) {
  if (!known(value)) return "\u2013";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return minus(String(value));
  if (size >= 100) return minus(value.toFixed(0));
  if (size >= 10) return minus(value.toFixed(1));
  if (size >= 1) return minus(value.toFixed(2));
  return minus(size >= 0.001 ? value.toFixed(3) : value.toPrecision(2));
}
const signed = (value) => (known(value) && value > 0 ? "+" : "") + num(value);
const percent = (value) => (known(value) ? minus((100 * value).toFixed(value < 0.0995 ? 1 : 0)) + "%" : "\u2013");

function bytes(value) {
  if (!known(value)) return "\u2013";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
}
const seconds = (value) => (!known(value) ? "\u2013" : value >= 90 ? `${(value / 60).toFixed(1)} min` : `${num(value)} s`);
const range = (low, high, show = num) => (known(low) && known(high) ? `${show(low)} to ${show(high)}` : null);
const small = (text) => (text ? el("small", {}, text) : null);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

const summary = read("summary");
const { comparison, verdicts, runs } = summary;
const sections = comparison.sections;
let active = 0;
const section = () => sections[active];
const better = (difference) => (section().higher_is_better ? difference : -difference);
