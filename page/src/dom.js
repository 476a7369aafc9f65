// Makes elements. Text becomes text nodes and attributes: nothing here is parsed as HTML.

import { exactNumber, shortNumber } from "./numbers.js";

/** @typedef {Node | string | null | undefined | false | Child[]} Child null, undefined, false and "" are left out */
/** @typedef {Record<string, any>} Attributes a function under `onclick` and the like is a listener */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An HTML element.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function html(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/**
 * An SVG element.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/**
 * @template {Element} T
 * @param {T} element
 * @param {Attributes | undefined} attributes
 * @param {Child[]} children
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...contents(children));
  return element;
}

/**
 * Nested lists of children as one list, without those that are left out.
 * @param {Child[]} children
 * @returns {(Node | string)[]}
 */
export function contents(children) {
  return children.flatMap((child) => (Array.isArray(child) ? contents(child) : child || []));
}

/**
 * A name from a model, whose text direction cannot change the text around it.
 * @param {string} text
 */
export function nameElement(text) {
  return html("bdi", { class: "name" }, text);
}

/**
 * A number in short form, which has the exact number as its value and as its title.
 * @param {number | bigint | null | undefined} number
 */
export function numberElement(number) {
  if (number === null || number === undefined) return null;
  const exact = exactNumber(number);
  return html("data", { class: "number", value: exact, "data-value": exact, title: exact }, shortNumber(number));
}

/**
 * Copies a text to the clipboard; says whether the browser allowed it.
 * @param {string} text
 */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyFromField(text);
  }
}

/**
 * Copies a text where there is no `navigator.clipboard`: on pages that a server sends without encryption.
 * @param {string} text
 */
function copyFromField(text) {
  const focused = document.activeElement;
  const field = html("textarea", { class: "voice", "aria-hidden": "true" }, text);
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return copied;
}

/**
 * A function that calls `act` at the next animation frame, once, however often it was called before.
 * @param {() => void} act
 */
export function oncePerFrame(act) {
  let requested = false;
  return () => {
    if (requested) return;
    requested = true;
    requestAnimationFrame(() => {
      requested = false;
      act();
    });
  };
}
