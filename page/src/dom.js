// Elements, text and numbers. All text becomes text nodes and attributes: nothing here is ever read as HTML.

import { exact, short } from "./numbers.js";

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: listeners are `onclick` and the like, all else are attributes; children are nodes or text. */
export function h(tag, attributes, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** The same, of SVG. */
export function s(tag, attributes, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A name from a model: what it does to the direction of text, it does to itself alone. */
export function name(text) {
  return h("bdi", { class: "name" }, text);
}

/** The same as an element, which keeps all digits. */
export function numberCell(number) {
  if (number === null || number === undefined) return null;
  return h(
    "data",
    { class: "number", value: exact(number), "data-value": exact(number), title: exact(number) },
    short(number),
  );
}

const FONT = 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif';
const pen = document.createElement("canvas").getContext("2d");
const widths = new Map();

/** How wide a text is, in pixels; `font` is weight and size (`"600 12px"`). */
export function textWidth(text, font) {
  const key = font + text;
  if (!widths.has(key)) {
    pen.font = `${font} ${FONT}`;
    widths.set(key, pen.measureText(text).width);
  }
  return widths.get(key);
}

/** As much of a text as fits, with an ellipsis for the rest; line breaks and the like are blanks. */
export function clip(text, room, font) {
  let letters = Array.from(text.slice(0, 160)).map((letter) => (/[\p{Cc}\p{Zl}\p{Zp}]/u.test(letter) ? " " : letter));
  const all = letters.join("");
  if (text.length <= 160 && textWidth(all, font) <= room) return all;
  let [low, high] = [0, letters.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (textWidth(letters.slice(0, middle).join("") + "…", font) <= room) low = middle;
    else high = middle - 1;
  }
  return letters.slice(0, low).join("") + "…";
}

/** Calls `act` once with the next picture, however often it was asked for. */
export function soon(act) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      act();
    });
  };
}
