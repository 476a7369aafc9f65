// Draws what is visible of a scene as SVG. From afar, all boxes of one color are one path: moving thousands of elements
// would be slow.

import { cornerLabel, className, FONTS } from "./boxes.js";
import { operatorFamily } from "./color.js";
import { svg } from "./dom.js";
import { typeLabel } from "./model.js";
import { textWidth, truncate } from "./text.js";

/** @import { Colors } from "./color.js" */
/** @import { Item } from "./model.js" */
/** @import { Arrangement, Box, Edge } from "./scene.js" */
/** @import { Run } from "./layout/index.js" */
/** @typedef {{ k: number, x: number, y: number, width: number, height: number }} View scale, shift, and size on the screen */
/**
 * @typedef {object} Look
 * @property {Colors} colors
 * @property {Item | null} selected
 * @property {Set<Item>} first the first divergence, and the groups around it
 * @property {Set<Item>} marked the counterparts of what is selected
 * @property {Set<Item> | null} lit all others are dim; null if none is
 */

/** From these scales on, boxes have text, small text too, and edges have types. */
const LEVELS = [0.4, 0.62, 0.8];
const OVERVIEW = 0;
const MOST_GROUP_NAMES = 60;
const MARGIN = 60; // pixels around the screen, in which things are drawn before they are visible

/** The drawing of one scene. */
export class Drawing {
  /** @param {SVGSVGElement} element */
  constructor(element) {
    this.element = element;
    this.world = svg("g", { class: "world" });
    this.groupNames = svg("g", { class: "far-labels" });
    element.append(this.world, this.groupNames);
    /** The elements of what is visible. @type {Map<Box | Edge | string, SVGGElement>} */
    this.drawn = new Map();
    this.layers = { opened: svg("g"), edges: svg("g"), boxes: svg("g") };
    /** @type {Arrangement | null} */
    this.arrangement = null;
    this.level = OVERVIEW;
    /** For which view things were drawn last. @type {View | null} */
    this.drawnView = null;
  }

  /**
   * Draws everything again.
   * @param {Arrangement} arrangement
   * @param {View} view
   * @param {Look} look
   */
  draw(arrangement, view, look) {
    this.arrangement = arrangement;
    this.look = look;
    this.level = detailLevel(view.k);
    this.drawn.clear();
    this.drawnView = null;
    const layer = (/** @type {string} */ name) => svg("g", { class: name });
    this.layers = { opened: layer("opened"), edges: layer("edges"), boxes: layer("boxes") };
    this.world.replaceChildren(...Object.values(this.layers));
    this.element.dataset.level = String(this.level);
    if (this.level === OVERVIEW) this.drawOverview(arrangement, look);
    this.move(view);
  }

  /**
   * Shows another part. Near the part that was shown before, it only moves what is drawn; else it adds what has become
   * visible and removes what no longer is.
   * @param {View} view
   */
  move(view) {
    if (!this.arrangement || !this.look) return;
    if (detailLevel(view.k) !== this.level) {
      this.draw(this.arrangement, view, this.look);
      return;
    }
    this.world.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.k})`);
    const overview = this.level === OVERVIEW;
    if (!this.drawnView || (overview && this.drawnView.k !== view.k) || !isNear(view, this.drawnView)) {
      this.drawnView = { ...view };
      this.groupNames.replaceChildren(...(overview ? groupNames(this.arrangement, view) : []));
      if (!overview) this.drawVisible(this.arrangement, view, this.look);
    }
    if (!overview) return;
    const { x, y } = this.drawnView;
    const shift = `translate(${view.x - x} ${view.y - y})`;
    if (this.groupNames.getAttribute("transform") !== shift) this.groupNames.setAttribute("transform", shift);
  }

  /**
   * @param {Arrangement} arrangement
   * @param {View} view
   * @param {Look} look
   */
  drawVisible({ boxes, edges }, view, look) {
    const { left, top, right, bottom } = visiblePart(view, MARGIN);
    /** @type {Map<Box | Edge | string, [keyof Drawing["layers"], () => SVGGElement]>} */
    const visible = new Map();
    boxes.forEach((box, index) => {
      if (!(box.x < right && box.x + box.w > left && box.y < bottom && box.y + box.h > top)) return;
      visible.set(box, [box.kind === "open" ? "opened" : "boxes", () => boxElement(box, look)]);
      // A heading is above the edges that come in through it.
      if (box.kind === "open") visible.set(`heading ${index}`, ["boxes", () => headingElement(box, look)]);
    });
    for (const edge of edges) {
      const { bounds } = edge;
      if (bounds.left < right && bounds.right > left && bounds.top < bottom && bounds.bottom > top) {
        visible.set(edge, ["edges", () => edgeElement(edge, look, this.level === LEVELS.length)]);
      }
    }
    for (const [key, element] of this.drawn) {
      if (visible.has(key)) continue;
      element.remove();
      this.drawn.delete(key);
    }
    for (const [key, [layer, make]] of visible) {
      if (this.drawn.has(key)) continue;
      const element = make();
      this.drawn.set(key, element);
      this.layers[layer].append(element);
    }
  }

  /**
   * Draws everything in a few paths.
   * @param {Arrangement} arrangement
   * @param {Look} look
   */
  drawOverview({ boxes, edges }, look) {
    const paths = { opened: new Map(), boxes: new Map() };
    for (const box of boxes) {
      const color = box.kind === "open" ? "plain" : look.colors.classOf(box.item);
      const classes = ["box far", box.kind, color, roleClass(box), stateClasses(box.item, look)].join(" ");
      const layer = paths[box.kind === "open" ? "opened" : "boxes"];
      layer.set(classes, `${layer.get(classes) ?? ""}M${box.x} ${box.y}h${box.w}v${box.h}h${-box.w}z`);
    }
    for (const layer of /** @type {const} */ (["opened", "boxes"])) {
      for (const [classes, d] of paths[layer]) {
        this.layers[layer].append(svg("g", { class: classes }, svg("path", { class: "card", d })));
      }
    }
    const d = edges.map(edgePath).join("");
    this.layers.edges.append(svg("g", { class: `edge ${look.lit ? "dim" : ""}` }, svg("path", { class: "line", d })));
  }
}

/**
 * The part of the graph that a view shows.
 * @param {View} view
 * @param {number} margin around it, in pixels
 */
function visiblePart({ k, x, y, width, height }, margin = 0) {
  return {
    left: (-x - margin) / k,
    top: (-y - margin) / k,
    right: (width - x + margin) / k,
    bottom: (height - y + margin) / k,
  };
}

/**
 * Whether all that a view shows has been drawn for another one.
 * @param {View} view
 * @param {View} other
 */
function isNear(view, other) {
  const shown = visiblePart(view);
  const { left, top, right, bottom } = visiblePart(other, MARGIN);
  return shown.left >= left && shown.top >= top && shown.right <= right && shown.bottom <= bottom;
}

/**
 * @param {Item} item
 * @param {Look} look
 */
function stateClasses(item, { selected, first, marked, lit }) {
  const dim = lit && !lit.has(item);
  return [selected === item && "selected", marked.has(item) && "marked", dim && "dim", first.has(item) && "first"]
    .filter(Boolean)
    .join(" ");
}

/**
 * @param {Box} box
 * @param {Look} look
 */
function boxElement(box, look) {
  const { item, kind, w, h } = box;
  const depth = kind === "open" && item.kind === "group" ? `nested-${item.groupPath.length % 2}` : "";
  const classes = ["box", kind, depth, look.colors.classOf(item), roleClass(box), stateClasses(item, look)].join(" ");
  const element = svg("g", { class: classes, transform: `translate(${box.x} ${box.y})` });
  element.dataset[item.kind] = String(item.id);
  if (kind === "group") element.append(svg("rect", { class: "stack", x: 4, y: 4, width: w, height: h, rx: 8 }));
  const radius = kind === "value" ? h / 2 : kind === "node" ? 6 : 9;
  element.append(svg("rect", { class: "card", width: w, height: h, rx: radius }));
  if (item.kind === "node") {
    const d = `M6 0.5H5.5A5 5 0 0 0 .5 5.5V${h - 5.5}A5 5 0 0 0 5.5 ${h - 0.5}H6Z`;
    element.append(svg("path", { class: `strip family-${operatorFamily(item.op)}`, d }));
  }
  if (kind === "group") element.append(...foldSign(false));
  if (kind !== "open") element.append(...textElements(box, look));
  return element;
}

/**
 * The heading of an opened group.
 * @param {Box} box
 * @param {Look} look
 */
function headingElement({ item, x, y, w }, look) {
  const name = truncate(item.name, w - 60, FONTS.title);
  const element = svg("g", { class: `heading ${stateClasses(item, look)}`, transform: `translate(${x} ${y})` });
  element.append(...foldSign(true), svg("text", { class: "op", x: 34, y: 20.5 }, name));
  const type = item.kind === "group" ? className(item.type) : "";
  const left = 34 + textWidth(name, FONTS.title) + 10;
  if (type && w - left > 50) {
    element.append(svg("text", { class: "small", x: left, y: 20.5 }, truncate(type, w - left - 16, FONTS.small)));
  }
  return element;
}

/**
 * @param {Box} box
 * @param {Look} look
 */
function textElements({ item, lines, w }, look) {
  const group = item.kind === "group";
  const centered = item.kind === "value";
  const label = centered ? "" : cornerLabel(item, look.colors.mode);
  const labelWidth = label ? textWidth(label, FONTS.small) + 10 : 0;
  const left = centered ? w / 2 : group ? 34 : 15;
  const baseline = group ? 20.5 : 18.5;
  const elements = lines.map(([text, font], index) => {
    const kind = font === FONTS.title ? "op" : font === FONTS.small ? "small" : "tiny";
    const width = w - (centered ? 18 : left + 10) - (index === 0 ? labelWidth : 0);
    const place = { x: left, y: baseline + 15 * index, "text-anchor": centered ? "middle" : "start" };
    return svg("text", { class: kind, ...place }, truncate(text, width, font));
  });
  if (label) elements.push(svg("text", { class: "small error", x: w - 9, y: baseline, "text-anchor": "end" }, label));
  return elements;
}

/**
 * @param {Edge} edge
 * @param {Look} look
 * @param {boolean} detailed whether its type is written beside it
 */
function edgeElement(edge, { selected, lit }, detailed) {
  const { value } = edge;
  /** @type {(Item | null)[]} */
  const ends = [value, value.producer, ...value.readers];
  const near = selected && ends.includes(selected);
  const goesOn = value.role === "output" || value.readers.some((node) => lit?.has(node));
  const dim = lit && !(value.producer && lit.has(value.producer) && goesOn);
  const element = svg("g", { class: `edge ${near ? "near" : ""} ${dim ? "dim" : lit ? "on-path" : ""}` });
  element.append(svg("path", { class: "line", d: edgePath(edge) }));
  if (edge.heads.length) {
    element.append(svg("path", { class: "head", d: edge.heads.map(([x, y]) => `M${x} ${y}l-3.5-6.5h7z`).join("") }));
  }
  if (detailed && edge.label && edge.labelWidth > 24 && typeLabel(value)) {
    const [x, y] = edge.label;
    const text = `${value.dtype || "?"} ${value.shape ? value.shape.join("×") || "scalar" : ""}`;
    const shown = truncate(text, edge.labelWidth, FONTS.tiny);
    element.append(svg("text", { class: "tiny type", x: x + 5, y: y + 12 }, shown));
  }
  return element;
}

/**
 * The names of groups, as large as on a map, where there is room for them; outer groups come first.
 * @param {Arrangement} arrangement
 * @param {View} view
 */
function groupNames({ boxes }, view) {
  const font = "600 11px";
  /** @type {{ left: number, top: number, right: number, bottom: number }[]} */
  const taken = [];
  const names = [];
  for (const box of boxes) {
    if (box.item.kind !== "group") continue;
    if (names.length > MOST_GROUP_NAMES) break;
    const [width, height] = [box.w * view.k, box.h * view.k];
    const [left, top] = [box.x * view.k + view.x + 4, box.y * view.k + view.y + Math.min(2, (height - 14) / 2)];
    if (width < 34 || height < 13) continue;
    const across = left < view.width + MARGIN && left + width > -MARGIN;
    const visible = across && top < view.height + MARGIN && top > -20 - MARGIN;
    if (!visible) continue;
    const text = truncate(box.item.name, width - 6, font);
    if (text.length < 2) continue;
    const place = { left, top, right: left + textWidth(text, font) + 6, bottom: top + 15 };
    const overlaps = (/** @type {typeof place} */ other) =>
      left < other.right && place.right > other.left && top < other.bottom && place.bottom > other.top;
    if (taken.some(overlaps)) continue;
    taken.push(place);
    names.push(svg("text", { class: "sign", x: left, y: top + 11 }, text));
  }
  return names;
}

/** @param {Box} box */
function roleClass({ role }) {
  return role && role !== "node" ? `role-${role}` : "";
}

/** @param {number} scale */
function detailLevel(scale) {
  return LEVELS.filter((least) => scale >= least).length;
}

/** @param {Edge} edge */
function edgePath(edge) {
  return (edge.path ??= edge.runs.map(runPath).join(""));
}

/** @param {Run} run */
export function runPath([x1, y1, bend, x2, end, y2]) {
  if (Math.abs(x1 - x2) < 0.6) return `M${x1} ${y1}V${y2}`;
  const middle = (bend + end) / 2;
  return `M${x1} ${y1}V${bend}C${x1} ${middle} ${x2} ${middle} ${x2} ${end}V${y2}`;
}

/**
 * The sign that opens and closes a group.
 * @param {boolean} open
 */
function foldSign(open) {
  return [
    svg("rect", { class: "fold", x: 10, y: 9, width: 14, height: 14, rx: 4 }),
    svg("path", { class: "fold-sign", d: open ? "M13 16h8" : "M13 16h8M17 12v8" }),
  ];
}
