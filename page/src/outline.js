// One of two implementations as an outline: a line for each module, operation and weight. Only visible lines are
// elements, so that thousands scroll as smoothly as ten.

import { className } from "./boxes.js";
import { operatorName, statusClass } from "./color.js";
import { html, nameElement, oncePerFrame } from "./dom.js";
import { count } from "./numbers.js";
import { DOUBLE_CLICK } from "./pane.js";
import { isWeight, Tree } from "./tree.js";

/** @import { App } from "./app.js" */
/** @import { Graph, Group, Item } from "./model.js" */
/** @import { Entry } from "./tree.js" */

export const LINE_HEIGHT = 26; // pixels, as in `page.css`
const EXTRA_LINES = 10; // above and below what is visible
const LONGEST = 200; // characters

/** The outline of one graph. */
export class Outline {
  /**
   * @param {App} app
   * @param {Graph} graph
   */
  constructor(app, graph) {
    this.app = app;
    this.graph = graph;
    this.tree = new Tree(graph);
    this.openGroups = /** @type {Set<Group>} */ (this.tree.initiallyOpen(app.shown));
    /** The visible lines. @type {Entry[]} */
    this.lines = [];
    /** @type {Map<Entry, number>} */
    this.indexOf = new Map();
    this.range = { from: 0, to: 0 };
    this.above = html("div", { role: "none" });
    // Not `onclick`: there is none if the line is drawn again while the button is down.
    this.content = html("div", {
      role: "none",
      onmousedown: (/** @type {MouseEvent} */ event) => (this.pressed = this.itemAt(event)),
      onmouseup: (/** @type {MouseEvent} */ event) => this.release(event),
      onclick: (/** @type {MouseEvent} */ event) => this.activate(event),
    });
    addEventListener("mouseup", () => (this.pressed = undefined)); // also outside of the outline
    /** @type {Item | undefined} */
    this.pressed = undefined;
    /** @type {{ item: Item, time: number } | null} */
    this.lastClick = null;
    /** Draws again, once, however much has changed. */
    this.redraw = oncePerFrame(() => {
      this.fill();
      app.gutter?.draw();
    });
    const title = `${app.data.titleOf(graph)}: ${graph.name}`;
    this.scroller = html("div", {
      class: "lines",
      tabindex: 0,
      role: "tree",
      "aria-label": `${title.slice(0, 200)}: arrow keys select and open, ? lists all keys`,
      onscroll: oncePerFrame(() => this.scrolled()),
      onfocus: () => app.activate(this),
    });
    this.scroller.append(this.content);
    const size = html("small", {}, graph.nodes.length ? count(graph.nodes.length, "operation") : "");
    const heading = html("h2", { title }, html("b", {}, app.data.titleOf(graph)), " ", nameElement(graph.name), size);
    this.element = html("section", { class: "outline", "aria-label": title }, heading, this.scroller);
    this.arrange();
    new ResizeObserver(() => this.scrolled()).observe(this.scroller);
  }

  /** Finds out which lines there are. */
  arrange() {
    this.lines = this.tree.visible(this.openGroups, this.app.shown);
    this.indexOf = new Map(this.lines.map((entry, index) => [entry, index]));
    this.content.style.height = `${this.lines.length * LINE_HEIGHT}px`;
  }

  takeFocus() {
    this.scroller.focus({ preventScroll: true });
  }

  resize() {
    this.redraw();
  }

  scrolled() {
    const { from, to } = this.visibleRange();
    if (from !== this.range.from || to !== this.range.to) this.fill();
    this.app.gutter?.draw();
  }

  visibleRange() {
    const { scrollTop, clientHeight } = this.scroller;
    const from = Math.max(0, Math.floor(scrollTop / LINE_HEIGHT) - EXTRA_LINES);
    return { from, to: Math.min(this.lines.length, from + Math.ceil(clientHeight / LINE_HEIGHT) + 2 * EXTRA_LINES) };
  }

  /** Makes the visible lines again, or all lines. */
  fill({ all = false } = {}) {
    this.range = all ? { from: 0, to: this.lines.length } : this.visibleRange();
    const { from, to } = this.range;
    this.above.style.height = `${from * LINE_HEIGHT}px`;
    const lines = this.lines.slice(from, to).map((entry, index) => this.line(entry, from + index));
    this.content.replaceChildren(this.above, ...lines);
    const selected = lines.find((line) => line.getAttribute("aria-selected") === "true");
    if (selected) this.scroller.setAttribute("aria-activedescendant", selected.id);
    else this.scroller.removeAttribute("aria-activedescendant");
  }

  /**
   * @param {Entry} entry
   * @param {number} index
   */
  line(entry, index) {
    const { item, finding, children, depth, diverged } = entry;
    const { selected, marked } = this.app.look;
    const open = item.kind === "group" && this.openGroups.has(item);
    const kind = isWeight(entry) ? "weight" : item.kind;
    const states = [item === selected && "selected", marked.has(item) && "marked", !entry.linked && "unlinked"];
    const classes = ["line", kind, finding && statusClass(finding), ...states];
    const inside = diverged && item.kind === "group" && !open;
    const line = html(
      "div",
      {
        class: classes.filter(Boolean).join(" "),
        id: `line-${this.graph.index}-${index}`,
        role: "treeitem",
        "aria-level": depth + 1,
        "aria-selected": String(item === selected),
        "aria-expanded": children.length ? String(open) : null,
      },
      html("span", { class: "sign", "aria-hidden": "true" }, children.length ? (open ? "▾" : "▸") : ""),
      html("span", { class: "label" }, ...labels(item)),
      inside ? html("span", { class: "inside" }, `✗ ${diverged} inside`) : null,
      html("span", { class: "status" }, finding && [html("span", { class: "dot" }), finding.status]),
    );
    line.style.setProperty("--depth", String(depth)); // the page's policy forbids style attributes
    return line;
  }

  /** @param {MouseEvent} event */
  itemAt(event) {
    const top = this.content.getBoundingClientRect().top;
    return this.lines[Math.floor((event.clientY - top) / LINE_HEIGHT)]?.item;
  }

  /** @param {MouseEvent} event */
  release(event) {
    const item = this.itemAt(event);
    if (event.button === 0 && item && item === this.pressed) this.click(item, event);
  }

  /**
   * Selects a line that assistive technology clicks, which has no mouse.
   * @param {MouseEvent} event
   */
  activate(event) {
    const line = event.detail === 0 && event.target instanceof Element ? event.target.closest(".line") : null;
    const item = line ? this.lines[Number(line.id.slice(line.id.lastIndexOf("-") + 1))]?.item : undefined;
    if (item) this.app.select(item);
  }

  /**
   * @param {Item} item
   * @param {MouseEvent} event
   */
  click(item, event) {
    const last = this.lastClick;
    const onSign = document.elementFromPoint(event.clientX, event.clientY)?.classList.contains("sign");
    const second = !onSign && last?.item === item && event.timeStamp - last.time < DOUBLE_CLICK;
    this.lastClick = second || onSign ? null : { item, time: event.timeStamp };
    this.takeFocus();
    if (item.kind === "group" && (onSign || second)) this.toggle(item);
    else this.app.select(item);
  }

  /** @param {Item} item */
  show(item) {
    this.showAll([item]);
  }

  /**
   * Opens the modules around items, and scrolls to the first one unless all are visible.
   * @param {Item[]} items
   * @param {number | null} height at which it should be, in pixels from the top; null is the middle
   */
  showAll(items, height = null) {
    for (const item of items) this.reveal(item);
    const [entry] = items.map((item) => this.entryOf(item));
    const index = entry && this.indexOf.get(entry);
    if (index === undefined) return;
    if (items.some((item) => this.heightOf(item) === null)) {
      const above = height ?? this.scroller.clientHeight / 2 - LINE_HEIGHT;
      this.scroller.scrollTop = index * LINE_HEIGHT - above;
    }
    this.redraw();
  }

  /**
   * How far the line of an item is from the top of the frame; null if it is not visible.
   * @param {Item} item
   */
  heightOf(item) {
    const entry = this.entryOf(item);
    const index = entry && this.indexOf.get(entry);
    if (index === undefined) return null;
    const height = index * LINE_HEIGHT - this.scroller.scrollTop;
    return height >= 0 && height + LINE_HEIGHT <= this.scroller.clientHeight ? height : null;
  }

  /** @param {Item} item */
  entryOf(item) {
    return item.kind === "value" ? this.tree.entryOfValue(item) : this.tree.entryOf.get(item);
  }

  /** @param {Item} item */
  reveal(item) {
    const entry = this.entryOf(item);
    if (!entry) return;
    for (let at = entry.parent; at; at = at.parent) if (at.item.kind === "group") this.openGroups.add(at.item);
    const { shown } = this.app;
    if (isWeight(entry) && !shown.weights) this.app.toggleShown("weights");
    if (!entry.linked && !shown.unlinked) this.app.toggleShown("unlinked");
    this.arrange();
  }

  flash() {} // what is selected stands out

  /** @param {Group} group */
  toggle(group) {
    if (this.openGroups.has(group)) this.openGroups.delete(group);
    else this.openGroups.add(group);
    this.arrange();
    this.redraw();
    this.app.announce(`${group.name} ${this.openGroups.has(group) ? "opened" : "closed"}`);
    this.app.history.note();
  }

  /**
   * Opens these groups, and closes all others.
   * @param {Set<Group>} groups
   */
  openOnly(groups) {
    this.openGroups = new Set(groups);
    this.arrange();
    this.redraw();
  }

  showStart() {
    this.scroller.scrollTop = 0;
    this.redraw();
  }

  changeShown() {
    this.arrange();
    this.redraw();
  }

  openAll() {
    this.openOnly(new Set(this.graph.groups));
  }

  closeAll() {
    this.openOnly(new Set());
  }

  /**
   * Selects another line.
   * @param {number} by how many lines further down
   */
  step(by) {
    const entry = this.selectedEntry;
    const now = entry ? (this.indexOf.get(entry) ?? -1) : -1;
    const next = this.lines[Math.max(0, Math.min(this.lines.length - 1, now + by))];
    if (next) this.app.select(next.item, { move: true });
  }

  /** Opens the selected module; the second time, goes into it. */
  goIn() {
    const item = this.selectedEntry?.item;
    if (item?.kind !== "group") return;
    if (this.openGroups.has(item)) this.step(1);
    else this.toggle(item);
  }

  /** Closes the selected module, or goes to the one around what is selected. */
  goOut() {
    const entry = this.selectedEntry;
    if (!entry) return;
    if (entry.item.kind === "group" && this.openGroups.has(entry.item)) this.toggle(entry.item);
    else if (entry.parent) this.app.select(entry.parent.item, { move: true });
  }

  get selectedEntry() {
    const { selected } = this.app;
    return selected?.graph === this.graph ? this.entryOf(selected) : undefined;
  }
}

/** @param {Item} item */
function labels(item) {
  const name = (/** @type {string} */ text) => nameElement(text.slice(0, LONGEST));
  if (item.kind === "group")
    return [html("b", {}, name(item.name)), " ", html("small", {}, name(className(item.type)))];
  if (item.kind === "node") {
    return [name(operatorName(item.op)), " ", html("small", {}, name(item.source.replace(/^.*[\\/]/, "")))];
  }
  const shape = item.shape ? item.shape.join("×") : "";
  return [name(weightName(item)), " ", html("small", {}, shape)];
}

/**
 * The last part of a weight's name in its module; the whole name of any other value.
 * @param {import("./model.js").Value} value
 */
function weightName({ name, role, graph }) {
  return role === "parameter" && graph.nodes.length ? name.slice(name.lastIndexOf(".") + 1) : name;
}
