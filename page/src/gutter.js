// The lines between two outlines, from each value of A to its places in B.

import { statusClass } from "./color.js";
import { svg } from "./dom.js";
import { LINE_HEIGHT } from "./outline.js";
import { linkedItems } from "./tree.js";

/** @import { App } from "./app.js" */
/** @import { Item } from "./model.js" */
/** @import { Outline } from "./outline.js" */

/** The space between the outlines of A and B. */
export class Gutter {
  /**
   * @param {App} app
   * @param {Outline} own of A
   * @param {Outline} other of B
   */
  constructor(app, own, other) {
    this.app = app;
    this.own = own;
    this.other = other;
    this.element = svg("svg", { class: "gutter", "aria-hidden": "true" });
  }

  draw() {
    const { width, height } = this.element.getBoundingClientRect();
    if (!width) return;
    /** The lines of each class. @type {Map<string, Set<string>>} */
    const paths = new Map();
    const add = (/** @type {string} */ classes, /** @type {number} */ from, /** @type {number} */ to) => {
      const d = `M0 ${from}C${width / 2} ${from} ${width / 2} ${to} ${width} ${to}`;
      paths.set(classes, (paths.get(classes) ?? new Set()).add(d));
    };
    const isVisible = (/** @type {number} */ y) => y > this.top && y < height;
    for (const entry of this.own.lines.slice(this.own.range.from, this.own.range.to)) {
      const { item, finding } = entry;
      if (!finding?.links.length || (item.kind === "group" && this.own.openGroups.has(item))) continue;
      for (const each of linkedItems(entry, this.other.tree)) {
        const [from, to] = [this.place(this.own, item), this.place(this.other, each)];
        if (isVisible(from) && isVisible(to)) add(statusClass(finding), from, to);
      }
    }
    const { selected, marked } = this.app.look;
    const { links } = (selected && this.app.outline?.entryOf(selected)?.finding) ?? { links: [] };
    const near = links.length ? "near" : "near operand";
    for (const each of selected ? marked : []) {
      const items = selected?.graph === this.own.graph ? [selected, each] : [each, selected];
      const [from, to] = [this.own, this.other].map((outline, index) => {
        const y = this.place(outline, /** @type {Item} */ (items[index]));
        return Math.max(this.top, Math.min(height, y));
      });
      add(near, from, to);
    }
    const path = (/** @type {[string, Set<string>]} */ [classes, lines]) =>
      svg("path", { class: classes, d: [...lines].join("") });
    this.element.replaceChildren(...[...paths].map(path));
  }

  /** Where lines begin, below the headings. */
  get top() {
    return this.own.scroller.offsetTop - this.own.element.offsetTop;
  }

  /**
   * The middle of an item's line, or of the closed module that it is in; it may be above or below the screen.
   * @param {Outline} outline
   * @param {Item} item
   */
  place(outline, item) {
    let entry = outline.entryOf(item) ?? null;
    while (entry && !outline.indexOf.has(entry)) entry = entry.parent;
    const index = entry ? (outline.indexOf.get(entry) ?? 0) : 0;
    return Math.round(this.top - outline.scroller.scrollTop + (index + 0.5) * LINE_HEIGHT);
  }
}
