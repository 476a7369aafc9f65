// A plot of all errors against depth or order: one dot for each finding.

import { statusClass } from "./color.js";
import { html, oncePerFrame, svg } from "./dom.js";
import { count, largest, smallest } from "./numbers.js";

/** @import { App } from "./app.js" */
/** @import { Finding } from "./model.js" */
/** @typedef {{ finding: Finding, x: number, y: number }} Dot */

const MARGIN = { left: 52, right: 14, top: 10, bottom: 26 };
const LANE = 15; // the height of a line for what has no place on a logarithmic scale
const REACH = 18; // how near to a dot the mouse has to be

/** The vertical scale: logarithmic, with lines for zero, for NaN and infinity, and for what was not compared. */
export class ErrorScale {
  /**
   * @param {Finding[]} findings
   * @param {number} height of the picture
   */
  constructor(findings, height) {
    const decades = findings.map(({ error }) => Math.log10(error ?? NaN)).filter(Number.isFinite);
    /** The exponents at the bottom and at the top. */
    this.low = Math.floor(smallest(decades, 0));
    this.high = Math.max(this.low + 1, Math.ceil(largest(decades)));
    this.hasNonFinite = findings.some(({ error }) => error !== null && !Number.isFinite(error));
    const base = height - MARGIN.bottom - 6;
    this.lines = { none: base, zero: base - LANE, nonFinite: MARGIN.top + 4 };
    this.top = MARGIN.top + (this.hasNonFinite ? LANE + 6 : 0);
    this.bottom = base - 2 * LANE;
  }

  /** @param {Finding} finding */
  y({ compared, error }) {
    if (!compared || error === null) return this.lines.none;
    if (!Number.isFinite(error)) return this.lines.nonFinite;
    return error === 0 ? this.lines.zero : this.decade(Math.log10(error));
  }

  /** @param {number} exponent */
  decade(exponent) {
    return this.bottom - ((exponent - this.low) / (this.high - this.low)) * (this.bottom - this.top);
  }

  /** The exponents that have a line, as many as there is room for. */
  get decades() {
    const step = Math.ceil((this.high - this.low) / Math.max(1, Math.floor((this.bottom - this.top) / 22)));
    return Array.from({ length: Math.floor((this.high - this.low) / step) + 1 }, (_, index) => this.low + index * step);
  }
}

/** The plot beside the table. */
export class Plot {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    /** @type {Dot[]} */
    this.dots = [];
    this.axis = html(
      "select",
      { "aria-label": "Against", onchange: () => this.draw() },
      html("option", { value: "depth" }, "against depth"),
      html("option", { value: "order" }, "against order"),
    );
    this.svg = svg("svg", { role: "img", class: "errors" });
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => app.tooltip.hide());
    this.svg.addEventListener("click", (event) => {
      const finding = this.nearest(event);
      if (finding) app.select(finding.node ?? finding.value, { move: true });
    });
    this.element = html(
      "section",
      { class: "plot", "aria-label": "Errors" },
      html("div", { class: "bar" }, html("h2", {}, "Error"), this.axis),
      this.svg,
    );
    new ResizeObserver(oncePerFrame(() => this.draw())).observe(this.svg);
  }

  /** @param {Finding} finding */
  position(finding) {
    return this.axis.value === "order" ? Math.max(0, finding.order) : (finding.node?.depth ?? 0);
  }

  draw() {
    const { width, height } = this.svg.getBoundingClientRect();
    if (!width) return;
    const { findings } = this.app.data;
    const scale = new ErrorScale(findings, height);
    const last = largest(
      findings.map((finding) => this.position(finding)),
      1,
    );
    const right = width - MARGIN.right;
    this.dots = findings.map((finding) => ({
      finding,
      x: MARGIN.left + (this.position(finding) / last) * (right - MARGIN.left),
      y: scale.y(finding),
    }));
    const against = this.axis.value === "order" ? "in the order of execution" : "against depth";
    const range = `errors from 1e${scale.low} to 1e${scale.high}`;
    this.svg.setAttribute("aria-label", `Error ${against}: ${count(findings.length, "value")}, ${range}`);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const text = (/** @type {number} */ x, /** @type {string} */ label, /** @type {string} */ anchor) =>
      svg("text", { class: "tiny", x, y: height - 8, "text-anchor": anchor }, label);
    this.svg.replaceChildren(
      ...gridElements(scale, right),
      text(MARGIN.left, "inputs", "start"),
      text((MARGIN.left + width) / 2, this.axis.value, "middle"),
      text(right, last.toLocaleString("en"), "end"),
      ...this.dotElements(),
    );
  }

  /** All dots of a kind are one path: a line without length and with round ends is a dot. */
  dotElements() {
    /** @type {Map<string, string>} */
    const paths = new Map();
    for (const { finding, x, y } of this.dots) {
      const classes = `dots ${finding.graph.role} ${statusClass(finding)}`;
      paths.set(classes, `${paths.get(classes) ?? ""}M${x.toFixed(1)} ${y.toFixed(1)}h0`);
    }
    const sorted = [...paths].sort((a, b) => (a[0] < b[0] ? 1 : -1)); // "same" is drawn first
    const ring = (/** @type {Dot} */ { x, y }, /** @type {string} */ kind, /** @type {number} */ r) =>
      svg("circle", { class: kind, cx: x, cy: y, r });
    const { data, selected } = this.app;
    const first = this.dots.filter(({ finding }) => finding === data.firstDivergence);
    const chosen = this.dots.filter(
      ({ finding: { node, value } }) => selected && (selected === node || selected === value),
    );
    return [
      ...sorted.map(([classes, d]) => svg("path", { class: classes, d })),
      ...first.map((dot) => ring(dot, "first-ring", 7)),
      ...chosen.map((dot) => ring(dot, "chosen-ring", 5)),
    ];
  }

  /**
   * The finding whose dot is nearest to the mouse, if any is near.
   * @param {MouseEvent} event
   */
  nearest(event) {
    const frame = this.svg.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    /** @type {Finding | null} */
    let nearest = null;
    let least = REACH;
    for (const dot of this.dots) {
      const distance = Math.hypot(dot.x - x, dot.y - y);
      if (distance < least) [nearest, least] = [dot.finding, distance];
    }
    return nearest;
  }

  /** @param {MouseEvent} event */
  hover(event) {
    const finding = this.nearest(event);
    this.svg.classList.toggle("on-dot", Boolean(finding));
    if (finding) this.app.tooltip.show(finding.node ?? finding.value, event);
    else this.app.tooltip.hide();
  }
}

/**
 * @param {ErrorScale} scale
 * @param {number} right
 */
function gridElements(scale, right) {
  const line = (/** @type {number} */ y, /** @type {string} */ label, kind = "") => [
    svg("path", { class: `grid ${kind}`, d: `M${MARGIN.left} ${Math.round(y) + 0.5}H${right}` }),
    svg("text", { class: "tiny", x: MARGIN.left - 8, y: y + 3.5, "text-anchor": "end" }, label),
  ];
  return [
    ...scale.decades.flatMap((exponent) => line(scale.decade(exponent), `1e${exponent}`)),
    ...line(scale.lines.zero, "0", "lane"),
    ...line(scale.lines.none, "none", "lane"),
    ...(scale.hasNonFinite ? line(scale.lines.nonFinite, "NaN, ∞", "lane") : []),
  ];
}
