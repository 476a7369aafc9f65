// The visible part of a graph as an SVG file, which needs no style sheet.

/** @import { Pane } from "./pane.js" */

const SVG = "http://www.w3.org/2000/svg";
/** The properties that a drawing uses. */
const PROPERTIES = [
  ...["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "paint-order"],
  ...["opacity", "vector-effect", "font-family", "font-size", "font-weight", "text-anchor"],
];
const COLORS = new Set(["fill", "stroke"]);

/**
 * A color as most programs read it: `color-mix()` gives `color(srgb 1 0.5 0)`, which few do.
 * @param {string} color as `getComputedStyle` gives it
 */
export function plainColor(color) {
  const [space, ...parts] = color.match(/^color\((\w+)|-?[\d.]+(?:e-?\d+)?/g) ?? [];
  if (space !== "color(srgb") return color;
  const [red, green, blue] = parts.map((part) => Math.round(255 * Math.max(0, Math.min(1, Number(part)))));
  return `rgb(${red}, ${green}, ${blue})`;
}

/**
 * The visible part of a pane as the text of an SVG file.
 * @param {Pane} pane
 */
export function pictureOf({ svg, view }) {
  const copy = /** @type {SVGSVGElement} */ (svg.cloneNode(true));
  const originals = [svg, ...svg.querySelectorAll("*")];
  const hidden = [];
  for (const [index, element] of [copy, ...copy.querySelectorAll("*")].entries()) {
    const style = getComputedStyle(originals[index]);
    if (style.display === "none") hidden.push(element);
    for (const name of element.getAttributeNames())
      if (/^(class|style|data-|aria-|role|tabindex)/.test(name)) element.removeAttribute(name);
    if (element.localName === "g" || element === copy) {
      if (style.opacity !== "1") element.setAttribute("opacity", style.opacity);
      continue;
    }
    for (const name of PROPERTIES) {
      const value = style.getPropertyValue(name);
      if (value) element.setAttribute(name, COLORS.has(name) ? plainColor(value) : value);
    }
  }
  for (const element of hidden) element.remove();
  const { width, height } = view;
  for (const [name, value] of Object.entries({ xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` })) {
    copy.setAttribute(name, String(value));
  }
  const paper = document.createElementNS(SVG, "rect");
  const fill = plainColor(getComputedStyle(document.body).backgroundColor);
  for (const [name, value] of Object.entries({ width, height, fill })) paper.setAttribute(name, String(value));
  copy.prepend(paper);
  return new XMLSerializer().serializeToString(copy);
}

/**
 * Saves a text as a file.
 * @param {string} name
 * @param {string} text
 */
export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const link = document.createElement("a");
  link.setAttribute("href", address);
  link.setAttribute("download", name);
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
