// The text in a box, and the size that the text gives it.

import { operatorName } from "./color.js";
import { typeLabel } from "./model.js";
import { count, milliseconds, shortNumber } from "./numbers.js";
import { textWidth } from "./text.js";

/** @import { ColorMode } from "./color.js" */
/** @import { Item, Value } from "./model.js" */
/** @typedef {{ tensors: boolean, weights: boolean, constants: boolean, unlinked: boolean }} Shown what is drawn beside
 * operations; `unlinked`: in outlines, also operations whose results can't be told by their numbers */
/** @typedef {[text: string, font: string]} Line */

export const FONTS = { title: "600 12.5px", small: "400 11px", tiny: "400 10px" };
const WIDEST_TEXT = 220;
const LONGEST_TEXT = 60; // characters

/**
 * The lines of text in a box, and its size.
 * @param {Item} item
 * @param {string} role "input" and "output" make narrow boxes; "open" is the heading of an opened group
 * @param {Partial<Shown>} shown
 */
export function measureBox(item, role, shown = {}) {
  const lines = boxLines(item, role, shown);
  const widths = lines.map(([text, font]) => Math.min(WIDEST_TEXT, textWidth(text.slice(0, LONGEST_TEXT), font)));
  // The box has room for either label, so that changing the colors moves nothing.
  const label = Math.max(...[errorLabel(item), timeLabel(item)].map((text) => textWidth(text, FONTS.small)));
  const margin = item.kind === "group" ? 58 : 26;
  const least = role === "input" || role === "output" ? 60 : 76;
  const width = Math.max(least, Math.max(...widths) + margin, widths[0] + (label && label + 14) + margin);
  return { lines, w: Math.ceil(width), h: 10 + 15 * lines.length + (item.kind === "group" ? 4 : 0) };
}

/**
 * The text in a box's corner.
 * @param {Item} item
 * @param {ColorMode} mode
 */
export function cornerLabel(item, mode) {
  return mode === "time" ? timeLabel(item) : errorLabel(item);
}

/** @param {Item} item */
function timeLabel(item) {
  return item.kind === "value" || item.seconds === null ? "" : milliseconds(item.seconds);
}

/** @param {Item} item */
function errorLabel(item) {
  return shortNumber(item.worst?.error);
}

/**
 * @param {Item} item
 * @param {string} role
 * @param {Partial<Shown>} shown
 * @returns {Line[]}
 */
function boxLines(item, role, shown) {
  if (item.kind === "group") {
    const type = className(item.type);
    if (role === "open") return [[`${item.name}   ${type}`, FONTS.title]];
    const size = count(item.size, "operation");
    return [
      [item.name, FONTS.title],
      [type ? `${type} · ${size}` : size, FONTS.small],
    ];
  }
  if (item.kind === "value") {
    return [
      [item.name, FONTS.small],
      [typeLabel(item), FONTS.tiny],
    ];
  }
  /** @type {Line[]} */
  const lines = [
    [operatorName(item.op), FONTS.title],
    [item.name, FONTS.small],
  ];
  const weights = shown.weights ? [] : [...new Set(item.reads.map(weightLabel).filter(Boolean))];
  if (weights.length) lines.push([weights.slice(0, 3).join("  ·  ") + (weights.length > 3 ? "  …" : ""), FONTS.tiny]);
  return lines;
}

/**
 * The last part of a dotted name.
 * @param {string} name
 */
export function className(name) {
  return name.slice(name.lastIndexOf(".") + 1);
}

/**
 * The name and shape of a weight, or of the weight that a constant value is computed from; "" for any other value.
 * @param {Value} value
 */
function weightLabel(value) {
  if (value.role !== "parameter" && !value.producer?.constant) return "";
  let root = value;
  while (root.producer?.reads.length) [root] = root.producer.reads;
  if (root.role !== "parameter") return "";
  const shape = (value.shape ?? root.shape ?? []).join("×");
  return `${className(root.name.slice(-80))}${shape ? ` ${shape}` : ""}`;
}
