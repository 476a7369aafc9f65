// What is written on a box, and how large that makes it.

import { bare } from "./colour.js";
import { textWidth } from "./dom.js";
import { count, milliseconds, short } from "./numbers.js";
import { typed } from "./model.js";

export const FONTS = { op: "600 12.5px", small: "400 11px", tiny: "400 10px" };

/** The size of a box, and the lines of text in it. */
export function measured(thing, role, shown = {}) {
  const lines = textOf(thing, role, shown);
  const width = lines.reduce(
    (most, [text, font]) => Math.max(most, Math.min(220, textWidth(text.slice(0, 60), font))),
    0,
  );
  const marks = ["error", "time"].map((mode) => textWidth(markOf(thing, mode), FONTS.small));
  const mark = Math.max(...marks) && Math.max(...marks) + 14;
  const lead = textWidth(lines[0][0].slice(0, 60), lines[0][1]);
  const room = thing.kind === "group" ? 58 : 26;
  const w = Math.ceil(
    Math.max(role === "input" || role === "output" ? 60 : 76, width + room, Math.min(220, lead) + mark + room),
  );
  return { lines, w, h: 10 + 15 * lines.length + (thing.kind === "group" ? 4 : 0) };
}

/** What stands in a box's corner: how long it takes where colours say so, else its error. */
export function markOf(thing, mode) {
  if (mode === "time") return thing.seconds === null || thing.seconds === undefined ? "" : milliseconds(thing.seconds);
  return thing.worst && thing.worst.error !== null ? short(thing.worst.error) : "";
}

/** Pairs of text and font. */
function textOf(thing, role, shown) {
  if (thing.kind === "group") {
    const type = thing.type.slice(thing.type.lastIndexOf(".") + 1);
    const size = count(thing.size, "operation");
    if (role === "open") return [[`${thing.name}   ${type}`, FONTS.op]];
    return [
      [thing.name, FONTS.op],
      [type ? `${type} · ${size}` : size, FONTS.small],
    ];
  }
  if (thing.kind === "value")
    return [
      [thing.name, FONTS.small],
      [typed(thing), FONTS.tiny],
    ];
  const lines = [
    [bare(thing.op), FONTS.op],
    [thing.name, FONTS.small],
  ];
  if (shown.weights) return lines;
  const chips = [...new Set(thing.reads.map(chip).filter(Boolean))];
  if (chips.length) lines.push([chips.slice(0, 3).join("  ·  ") + (chips.length > 3 ? "  …" : ""), FONTS.tiny]);
  return lines;
}

/** What a box says of a weight that it reads, or of what is made of weights; nothing of a plain number. */
function chip(value) {
  if (value.role !== "parameter" && !(value.producer && value.producer.fixed)) return "";
  let root = value;
  while (root.producer && root.producer.reads.length) [root] = root.producer.reads;
  if (root.role !== "parameter") return "";
  const shape = (value.shape || root.shape || []).join("×");
  return `${root.name.slice(-80).split(".").at(-1)}${shape ? ` ${shape}` : ""}`;
}
