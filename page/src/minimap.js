// A small picture of the whole graph, with a frame around what is visible: a click or a drag moves there.

import { html } from "./dom.js";

/** @import { Look, View } from "./drawing.js" */
/** @import { Box, Arrangement } from "./scene.js" */

const LARGEST = { width: 150, height: 190 }; // pixels
const SHOWN_PART = 2 / 3; // of the graph's width and height: with so much in view, the map would add nothing
const SMALLEST = 56; // pixels: a long and narrow graph is drawn wider than it is

/**
 * The size of the picture of a graph, and its scale in each direction.
 * @param {{ width: number, height: number }} graph
 */
export function minimapScale({ width, height }) {
  const k = Math.min(LARGEST.width / width, LARGEST.height / height);
  const size = (/** @type {number} */ length, /** @type {number} */ most) =>
    Math.round(Math.min(most, Math.max(SMALLEST, length * k)));
  const [w, h] = [size(width, LARGEST.width), size(height, LARGEST.height)];
  return { width: w, height: h, x: w / width, y: h / height };
}

/** The minimap of one pane. */
export class Minimap {
  /** @param {(x: number, y: number) => void} moveTo moves the middle of the view to a point of the graph */
  constructor(moveTo) {
    this.moveTo = moveTo;
    this.canvas = html("canvas", { role: "img", "aria-label": "The whole graph; click to move there" });
    this.frame = html("div", { class: "frame" });
    /** Has the color of a class, as the style sheet and the theme give it. */
    this.probe = html("i", { hidden: true });
    this.element = html("div", { class: "minimap" }, this.canvas, this.frame, this.probe);
    this.scale = minimapScale({ width: 1, height: 1 });
    this.drawn = "";
    /** Left, top, width and height of the frame, in pixels. @type {number[]} */
    this.framePlace = [];
    this.arrangement = /** @type {Arrangement | null} */ (null);
    this.element.addEventListener("pointerdown", (event) => {
      this.element.setPointerCapture(event.pointerId);
      this.point(event);
    });
    this.element.addEventListener("pointermove", (event) => {
      if (this.element.hasPointerCapture(event.pointerId)) this.point(event);
    });
  }

  /** @param {PointerEvent} event */
  point(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    this.moveTo((event.clientX - left) / this.scale.x, (event.clientY - top) / this.scale.y);
  }

  /**
   * Draws a graph again if it, its colors or the theme have changed.
   * @param {Arrangement} arrangement
   * @param {Look} look
   */
  draw(arrangement, { colors, first }) {
    if (getComputedStyle(this.element).display === "none") return;
    const state = `${colors.mode} ${getComputedStyle(this.element).color}`;
    if (this.arrangement === arrangement && this.drawn === state) return;
    [this.arrangement, this.drawn] = [arrangement, state];
    const { canvas } = this;
    const { width, height, x, y } = (this.scale = minimapScale(arrangement));
    const density = devicePixelRatio || 1;
    Object.assign(canvas, { width: width * density, height: height * density });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.scale(density, density);
    /** @type {Map<string, string>} */
    const fills = new Map();
    const fillOf = (/** @type {Box} */ box) => {
      const name = box.kind === "open" ? "open" : colors.classOf(box.item);
      let fill = fills.get(name);
      if (!fill) fills.set(name, (fill = this.colorOf(name)));
      return fill;
    };
    for (const box of arrangement.boxes) {
      context.fillStyle = fillOf(box);
      context.fillRect(box.x * x, box.y * y, Math.max(1, box.w * x), Math.max(0.8, box.h * y));
    }
    const found = arrangement.boxes.find(({ item, kind }) => kind !== "open" && first.has(item));
    if (!found) return;
    context.strokeStyle = this.colorOf("first");
    context.lineWidth = 2;
    context.strokeRect(found.x * x - 2, found.y * y - 2, Math.max(1, found.w * x) + 4, Math.max(1, found.h * y) + 4);
  }

  /** @param {string} cssClass */
  colorOf(cssClass) {
    this.probe.className = cssClass;
    return getComputedStyle(this.probe).backgroundColor;
  }

  /**
   * Moves the frame. The map is hidden while most of the graph is visible.
   * @param {View} view
   */
  move(view) {
    if (!this.arrangement) return;
    const { k } = view;
    const [left, top, right, bottom] = [-view.x, -view.y, view.width - view.x, view.height - view.y].map(
      (at) => at / k,
    );
    const { width, height } = this.arrangement;
    const shown = (/** @type {number} */ low, /** @type {number} */ high, /** @type {number} */ length) =>
      (Math.min(high, length) - Math.max(low, 0)) / length >= SHOWN_PART;
    const mostly = shown(left, right, width) && shown(top, bottom, height);
    this.element.classList.toggle("unneeded", mostly);
    if (mostly) return;
    const { x, y } = this.scale;
    const within = (/** @type {number} */ at, /** @type {number} */ most) =>
      Math.round(Math.max(0, Math.min(most, at)));
    const [x1, x2] = [within(left * x, this.scale.width), within(right * x, this.scale.width)];
    const [y1, y2] = [within(top * y, this.scale.height), within(bottom * y, this.scale.height)];
    const place = [x1, y1, Math.max(4, x2 - x1), Math.max(4, y2 - y1)];
    if (place.every((at, index) => at === this.framePlace[index])) return; // a change of style costs more than all of this
    this.framePlace = place;
    const { style } = this.frame;
    style.transform = `translate(${x1}px, ${y1}px)`;
    style.width = `${place[2]}px`;
    style.height = `${place[3]}px`;
  }
}
