// A summary of what is under the mouse.

import { statusClass } from "./color.js";
import { contents, html, nameElement } from "./dom.js";
import { typeLabel } from "./model.js";
import { count, milliseconds, shortNumber } from "./numbers.js";

/** @import { Child } from "./dom.js" */
/** @import { Item } from "./model.js" */

const LONGEST = 120; // characters of a name

/** The tooltip of the page. */
export class Tooltip {
  constructor() {
    this.element = html("div", { class: "tooltip", role: "tooltip", hidden: true });
    /** @type {Item | null} */
    this.item = null;
    this.note = "";
  }

  hide() {
    this.element.hidden = true;
  }

  /**
   * @param {Item} item
   * @param {MouseEvent} event where
   * @param {string} note a further line
   */
  show(item, event, note = "") {
    const { element } = this;
    element.hidden = false;
    if (this.item !== item || this.note !== note) {
      element.replaceChildren(...contents([note && html("p", {}, note), summary(item)]));
    }
    this.item = item;
    this.note = note;
    const { offsetWidth: width, offsetHeight: height } = element;
    const { clientX: x, clientY: y } = event;
    element.style.left = `${Math.max(4, Math.min(innerWidth - width - 8, x + 14))}px`;
    element.style.top = `${y + 18 + height > innerHeight ? y - height - 12 : y + 18}px`;
  }
}

/** @param {Item} item */
function summary(item) {
  const name = nameElement(item.name.slice(0, LONGEST));
  const muted = (/** @type {Child[]} */ ...content) => html("p", { class: "muted" }, content);
  const lines = [];
  if (item.kind === "node") {
    lines.push(html("p", {}, html("b", {}, nameElement(item.op.slice(0, LONGEST))), " ", name));
    lines.push(...item.written.slice(0, 3).map((value) => muted(`→ ${typeLabel(value).slice(0, LONGEST)}`)));
  } else {
    lines.push(html("p", {}, html("b", {}, name)));
  }
  if (item.kind === "group") {
    lines.push(muted(nameElement(item.type.slice(0, LONGEST)), ` ${count(item.size, "operation")}`));
  }
  if (item.kind === "value") lines.push(muted(`${item.role}, ${typeLabel(item).slice(0, LONGEST)}`));
  if (item.worst) {
    const { status, error } = item.worst;
    const text = error === null ? status : `${status}, error ${shortNumber(error)}`;
    lines.push(html("p", { class: statusClass(item.worst) }, html("span", { class: "dot" }), text));
  }
  if (item.kind !== "value" && item.seconds) lines.push(muted(milliseconds(item.seconds)));
  return lines;
}
