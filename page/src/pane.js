// One graph in a frame that the mouse, the wheel, fingers and keys move. What is clicked is reported to the app.

import { html, svg } from "./dom.js";
import { Drawing } from "./drawing.js";
import { Minimap } from "./minimap.js";
import { count } from "./numbers.js";
import { HEADING_HEIGHT, openInitialGroups, outputKey, Scene } from "./scene.js";

/** @import { App } from "./app.js" */
/** @import { View } from "./drawing.js" */
/** @import { Graph, Group, Item } from "./model.js" */
/** @import { Shown } from "./boxes.js" */
/** @import { Box } from "./scene.js" */
/** @typedef {{ k: number, x: number, y: number }} Position scale and shift of a view */

const REDUCED_MOTION = matchMedia("(prefers-reduced-motion: reduce)");
const ANIMATION = 200; // milliseconds
export const DOUBLE_CLICK = 400; // milliseconds
const SCALES = { least: 0.005, most: 4, readable: 0.85 };

/** A frame with one graph. */
export class Pane {
  /**
   * @param {App} app
   * @param {Graph} graph
   */
  constructor(app, graph) {
    this.app = app;
    this.graph = graph;
    /** @type {View} */
    this.view = { k: 1, x: 0, y: 0, width: 0, height: 0 };
    /** The pointers that are down. @type {Map<number, PointerEvent>} */
    this.pointers = new Map();
    this.dragged = false;
    /** @type {{ item: Item, time: number } | null} */
    this.lastClick = null;
    this.animation = 0;
    this.svg = svg("svg", {
      class: "graph",
      tabindex: 0,
      role: "application",
      "aria-label": `Graph ${graph.name}: arrow keys move it, Enter opens a group, ? lists all keys`,
    });
    const button = (/** @type {string} */ title, /** @type {string} */ text, /** @type {() => void} */ onclick) =>
      html("button", { type: "button", title, "aria-label": title, onclick }, text);
    this.tools = html(
      "div",
      { class: "zoom" },
      button("Zoom in (+)", "+", () => this.zoom(1.4)),
      button("Zoom out (−)", "−", () => this.zoom(1 / 1.4)),
      button("Fit (f)", "⤢", () => this.fit()),
    );
    const size = html("small", {}, count(graph.nodes.length, "operation"));
    const title = app.data.titleOf(graph);
    this.heading = html("h2", {}, html("span", {}, title), " ", size);
    this.minimap = new Minimap((x, y) => this.centerAt(x, y));
    const parts = [this.heading, this.svg, this.tools, this.minimap.element];
    this.element = html("section", { class: "pane", "aria-label": title }, parts);
    this.drawing = new Drawing(this.svg);
    this.scene = new Scene(graph, app.shown);
    openInitialGroups(this.scene);
    this.arrangement = this.scene.arrange();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.svg);
  }

  arrange() {
    this.arrangement = this.scene.arrange();
  }

  takeFocus() {
    this.svg.focus({ preventScroll: true });
  }

  get openGroups() {
    return this.scene.open;
  }

  redraw() {
    if (!this.view.width) return;
    this.drawing.draw(this.arrangement, this.view, this.app.look);
    this.minimap.draw(this.arrangement, this.view, this.app.look);
    this.minimap.move(this.view);
  }

  // ---- the view

  /**
   * Takes the size that the page gives it. What was in the middle stays there, unless it is shown for the first time.
   * @param {boolean} again as if it were shown for the first time
   */
  resize(again = false) {
    const { width, height } = this.svg.getBoundingClientRect();
    if (!width) return;
    const { view } = this;
    const first = again || !view.width;
    if (!first) {
      view.x += (width - view.width) / 2;
      view.y += (height - view.height) / 2;
    }
    Object.assign(view, { width, height });
    if (first) this.showStart();
    else this.redraw();
  }

  /** Shows the whole graph if it can be read so, else where it begins, or what is selected. */
  showStart() {
    const { width } = this.arrangement;
    const wholeWidth = (this.view.width - 24) / width;
    const k = Math.max(Math.min(1, this.wholeScale), Math.min(0.8, Math.max(0.45, wholeWidth)));
    Object.assign(this.view, this.centered(k));
    const [input] = this.graph.inputs;
    if (width * k > this.view.width && input) this.center(this.boxOf(input), false, true);
    const { selected } = this.app;
    if (selected?.graph === this.graph) this.show(selected, false);
    this.redraw();
  }

  /** Shows the whole graph. */
  fit() {
    this.moveTo(this.centered(Math.min(1.25, this.wholeScale)));
  }

  /** Where a graph begins: below the heading of the frame, where that is shown. */
  get top() {
    const { offsetTop, offsetHeight } = this.heading;
    return offsetHeight ? offsetTop + offsetHeight + 6 : 8;
  }

  /** Where a graph ends: above the legend, and above the details where these cover the frame. */
  get bottom() {
    const { height } = this.view;
    const frame = this.svg.getBoundingClientRect();
    const covers = [this.app.legend, this.app.panel.element].map((element) => element.getBoundingClientRect());
    const tops = covers
      .filter(
        (cover) => cover.width && cover.left < frame.right && cover.right > frame.left && cover.top < frame.bottom,
      )
      .map((cover) => cover.top - frame.top);
    return Math.max(this.top + height / 4, Math.min(height, ...tops.filter((top) => top > 0)) - 8);
  }

  /** Where a graph ends at the right: beside the buttons. */
  get right() {
    return this.tools.offsetLeft - 8;
  }

  /** The scale at which the whole graph is visible. */
  get wholeScale() {
    const { width, height } = this.arrangement;
    return Math.min((this.right - 12) / width, (this.bottom - this.top) / height);
  }

  /**
   * The graph in the middle, or from its top on if it is too tall.
   * @param {number} k
   * @returns {Position}
   */
  centered(k) {
    const { width, height } = this.arrangement;
    const y = Math.max(this.top, (this.top + this.bottom - height * k) / 2);
    const right = width * k > this.right - 12 ? this.view.width : Math.min(this.view.width, this.right + 12);
    return { k, x: (right - width * k) / 2, y };
  }

  /**
   * Zooms around a point, by default the middle.
   * @param {number} by
   * @param {number} x
   * @param {number} y
   * @param {boolean} animated
   */
  zoom(by, x = this.view.width / 2, y = this.view.height / 2, animated = true) {
    const k = Math.max(SCALES.least, Math.min(SCALES.most, this.view.k * by));
    const change = k / this.view.k;
    this.moveTo({ k, x: x - (x - this.view.x) * change, y: y - (y - this.view.y) * change }, animated);
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {boolean} animated
   */
  pan(x, y, animated = false) {
    this.moveTo({ k: this.view.k, x: this.view.x + x, y: this.view.y + y }, animated);
  }

  /**
   * @param {Position} to
   * @param {boolean} animated
   */
  moveTo(to, animated = true) {
    cancelAnimationFrame(this.animation);
    const from = { ...this.view };
    const begin = performance.now();
    const slow = animated && !REDUCED_MOTION.matches;
    const step = (/** @type {number} */ now) => {
      const part = slow && !document.hidden ? Math.min(1, Math.max(0, now - begin) / ANIMATION) : 1;
      const eased = 1 - (1 - part) ** 3;
      for (const axis of /** @type {const} */ (["k", "x", "y"])) {
        this.view[axis] = from[axis] + (to[axis] - from[axis]) * eased;
      }
      this.drawing.move(this.view);
      this.minimap.move(this.view);
      if (part < 1) this.animation = requestAnimationFrame(step);
    };
    if (slow) this.animation = requestAnimationFrame(step);
    else step(begin);
  }

  // ---- items

  /**
   * The box of an item, if it is drawn.
   * @param {Item} item
   */
  boxOf(item) {
    const { boxOf } = this.arrangement;
    return boxOf.get(item) ?? (item.kind === "value" ? boxOf.get(outputKey(item)) : undefined);
  }

  /**
   * The box of an item, or of the closed group that it is in, or of the node that writes it, or that a constant is part
   * of.
   * @param {Item} item
   * @returns {Box | undefined}
   */
  visibleBox(item) {
    const own = this.boxOf(item);
    if (own) return own;
    const [reader] = this.app.readersOfFolded(item);
    if (reader) return this.visibleBox(reader);
    if (item.kind === "value") return item.producer ? this.visibleBox(item.producer) : undefined;
    return item.groupPath.map((group) => this.boxOf(group)).findLast(Boolean);
  }

  /**
   * Opens the groups around an item, and moves to it.
   * @param {Item} item
   * @param {boolean} animated
   */
  show(item, animated = true) {
    this.reveal(this.app.readersOfFolded(item)[0] ?? item);
    this.redraw();
    this.center(this.visibleBox(item), animated);
  }

  /** @param {Item} item */
  reveal(item) {
    if (this.scene.reveal(item)) this.arrange();
  }

  /**
   * Opens these groups, and closes all others.
   * @param {Set<Group>} groups
   */
  openOnly(groups) {
    for (const group of this.scene.graph.groups) this.scene.toggle(group, groups.has(group));
    this.arrange();
    this.redraw();
  }

  /**
   * @param {Box | undefined} box
   * @param {boolean} animated
   * @param {boolean} atTop at the top of the frame, not in its middle
   */
  center(box, animated = true, atTop = false) {
    if (!box) return;
    const { width, height } = this.view;
    const k = Math.max(this.view.k, Math.min(width / (box.w + 40), SCALES.readable));
    const x = width / 2 - (box.x + box.w / 2) * k;
    const middle = (this.top + this.bottom) / 2;
    const y = atTop ? this.top - box.y * k : middle - (box.y + Math.min(box.h, height / k) / 2) * k;
    this.moveTo({ k, x, y }, animated);
  }

  /**
   * Moves a point of the graph to the middle.
   * @param {number} x
   * @param {number} y
   */
  centerAt(x, y) {
    const { k, width, height } = this.view;
    this.moveTo({ k, x: width / 2 - x * k, y: height / 2 - y * k }, false);
  }

  /**
   * Marks an item for a moment.
   * @param {Item} item
   */
  flash(item) {
    const box = this.visibleBox(item);
    if (!box) return;
    const frame = { x: box.x - 6, y: box.y - 6, width: box.w + 12, height: box.h + 12, rx: 12 };
    const ring = svg("rect", { class: "flash", ...frame });
    this.drawing.world.append(ring);
    setTimeout(() => ring.remove(), 1200);
  }

  /**
   * Opens or closes a group, which stays where it is on the screen.
   * @param {Group} group
   */
  toggle(group) {
    this.change(() => this.scene.toggle(group), group);
    this.app.announce(`${group.name} ${this.scene.open.has(group) ? "opened" : "closed"}`);
    this.app.history.note();
  }

  /**
   * Draws other things beside operations. What was visible as a whole stays so; else what the reader looks at stays
   * where it is.
   * @param {Shown} shown
   */
  changeShown(shown) {
    const { focus } = this;
    const whole = this.showsWhole;
    this.change(() => this.scene.show(shown), focus);
    if (whole || !focus || !this.visibleBox(focus))
      Object.assign(this.view, this.centered(Math.min(1.25, this.wholeScale)));
  }

  /** Whether the whole graph is visible. */
  get showsWhole() {
    const { view, arrangement } = this;
    const [right, bottom] = [view.x + arrangement.width * view.k, view.y + arrangement.height * view.k];
    return view.x >= 0 && view.y >= 0 && right <= view.width && bottom <= view.height;
  }

  /**
   * Changes the scene; an item stays where it is on the screen.
   * @param {() => void} act
   * @param {Item | null} kept
   */
  change(act, kept) {
    const before = kept && this.visibleBox(kept);
    act();
    this.arrange();
    const after = kept && this.visibleBox(kept);
    if (before && after) {
      this.view.x += (before.x - after.x) * this.view.k;
      this.view.y += (before.y - after.y) * this.view.k;
    }
    this.redraw();
  }

  /** What the reader looks at: what is selected, if it is visible, else what is nearest to the middle. */
  get focus() {
    const { x, y, k, width, height } = this.view;
    /** How far a box is from the middle. @type {(box: Box) => [number, number]} */
    const distance = (box) => [box.x + box.w / 2 - (width / 2 - x) / k, box.y + box.h / 2 - (height / 2 - y) / k];
    const { selected } = this.app;
    const box = selected && this.visibleBox(selected);
    if (box) {
      const [right, down] = distance(box);
      if (Math.abs(right) * k < width / 2 && Math.abs(down) * k < height / 2) return selected;
    }
    const length = (/** @type {Box} */ each) => Math.hypot(...distance(each));
    // Not values: they may be about to go.
    const boxes = this.arrangement.boxes.filter((each) => each.kind === "node" || each.kind === "group");
    return boxes.length ? boxes.reduce((a, b) => (length(b) < length(a) ? b : a)).item : null;
  }

  /** Opens all groups that are drawn. */
  openAll() {
    for (const { kind, item } of this.arrangement.boxes) {
      if (kind === "group" && item.kind === "group") this.scene.toggle(item, true);
    }
    this.arrange();
    this.showStart();
    this.app.history.note();
  }

  closeAll() {
    this.openOnly(new Set());
    this.showStart();
    this.app.history.note();
  }

  // ---- mouse and fingers

  /**
   * Where an event is, in pixels of the frame.
   * @param {MouseEvent} event
   * @returns {[number, number]}
   */
  position(event) {
    const frame = this.svg.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  }

  /**
   * What is under the mouse, and whether it is the sign that opens or closes a group. Of an opened group, only the
   * heading counts.
   * @param {MouseEvent} event
   */
  hit(event) {
    const [left, top] = this.position(event);
    const { k } = this.view;
    const [x, y] = [(left - this.view.x) / k, (top - this.view.y) / k];
    const box = this.arrangement.boxes.findLast((each) => {
      const height = each.kind === "open" ? Math.max(HEADING_HEIGHT, 14 / k) : each.h;
      return x >= each.x && x <= each.x + each.w && y >= each.y && y <= each.y + height;
    });
    if (!box) return null;
    const onSign = box.item.kind === "group" && x - box.x < 30 && y - box.y < HEADING_HEIGHT;
    return { item: box.item, onSign };
  }

  listen() {
    const element = this.svg;
    element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    element.addEventListener("pointerdown", (event) => {
      this.pointers.set(event.pointerId, event);
      this.dragged = false;
      this.app.activate(this);
    });
    element.addEventListener("pointermove", (event) => {
      if (this.pointers.size) this.drag(event);
      else this.hover(event);
    });
    element.addEventListener("pointerup", (event) => this.pointers.delete(event.pointerId));
    element.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    element.addEventListener("pointerleave", () => this.app.tooltip.hide());
    element.addEventListener("click", (event) => this.click(event));
    element.addEventListener("focus", () => this.app.activate(this));
  }

  /** @param {PointerEvent} event */
  hover(event) {
    const hit = event.pointerType === "touch" ? null : this.hit(event);
    this.svg.style.cursor = hit ? "pointer" : "";
    if (hit) this.app.tooltip.show(hit.item, event);
    else this.app.tooltip.hide();
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    event.preventDefault();
    const pixels = event.deltaY * (event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1);
    const speed = event.ctrlKey ? 0.01 : 0.0022; // pinching a touchpad comes as small steps with ctrlKey
    const by = Math.exp(-Math.max(-120, Math.min(120, pixels)) * speed);
    this.zoom(by, ...this.position(event), false);
  }

  /**
   * One pointer moves the graph; two move and zoom it.
   * @param {PointerEvent} event
   */
  drag(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const other = [...this.pointers.values()].find((each) => each.pointerId !== event.pointerId);
    const [x, y] = [event.clientX - before.clientX, event.clientY - before.clientY];
    if (!this.dragged && Math.hypot(x, y) < 4) return;
    if (!this.dragged) this.svg.setPointerCapture(event.pointerId);
    this.dragged = true;
    this.pointers.set(event.pointerId, event);
    if (!other) {
      this.pan(x, y);
      return;
    }
    this.pan(x / 2, y / 2);
    const distance = (/** @type {PointerEvent} */ each) =>
      Math.hypot(each.clientX - other.clientX, each.clientY - other.clientY);
    const [one, two] = [this.position(event), this.position(other)];
    const by = distance(event) / Math.max(1, distance(before));
    this.zoom(by, (one[0] + two[0]) / 2, (one[1] + two[1]) / 2, false);
  }

  /** @param {MouseEvent} event */
  click(event) {
    if (this.dragged) return;
    const hit = this.hit(event);
    // Not `dblclick`: the first click draws the box again, and browsers then see clicks on two elements. And not all
    // browsers count taps in `detail`, as they count clicks.
    const last = this.lastClick;
    const second = hit && last && last.item === hit.item && event.timeStamp - last.time < DOUBLE_CLICK;
    this.lastClick = hit && !second ? { item: hit.item, time: event.timeStamp } : null;
    if (hit?.item.kind === "group" && (hit.onSign || second || event.detail === 2)) this.toggle(hit.item);
    else this.app.select(hit?.item ?? null);
  }
}
