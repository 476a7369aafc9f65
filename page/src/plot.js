// Error against depth: where it comes up, and how it grows. One dot for each finding.

import { STATUSES } from "./colour.js";
import { h, s, soon } from "./dom.js";
import { count } from "./numbers.js";

const MARGIN = { left: 52, right: 14, top: 10, bottom: 26, lane: 15 };

export class Plot {
  constructor(app) {
    this.app = app;
    this.axis = h(
      "select",
      { "aria-label": "Against", onchange: () => this.draw() },
      h("option", { value: "depth" }, "against depth"),
      h("option", { value: "order" }, "against order"),
    );
    this.svg = s("svg", { role: "img", class: "errors" });
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => app.tip.show(null));
    this.svg.addEventListener("click", (event) => this.pick(event));
    this.element = h(
      "section",
      { class: "plot", "aria-label": "Error against depth" },
      h("div", { class: "bar" }, h("h2", {}, "Error"), this.axis),
      this.svg,
    );
    new ResizeObserver(soon(() => this.draw())).observe(this.svg);
  }

  at(found) {
    if (this.axis.value === "order") return Math.max(0, found.order);
    return found.node ? found.node.depth : 0;
  }

  /** Lines for what has no place on a logarithmic scale: NaN and infinities, zero, and what was not judged. */
  height(found) {
    const { error } = found;
    if (!found.judged || error === null) return this.lanes.none;
    if (!Number.isFinite(error)) return this.lanes.bad;
    if (error === 0) return this.lanes.zero;
    return this.bottom - ((Math.log10(error) - this.low) / (this.high - this.low)) * (this.bottom - this.top);
  }

  draw() {
    const { width, height } = this.svg.getBoundingClientRect();
    if (!width) return;
    const { findings } = this.app.data;
    const errors = findings.map((found) => Math.log10(found.error)).filter(Number.isFinite);
    this.low = Math.floor(errors.reduce((a, b) => Math.min(a, b), 0));
    this.high = Math.max(this.low + 1, Math.ceil(errors.reduce((a, b) => Math.max(a, b), -Infinity)));
    const bad = findings.some((found) => found.error !== null && !Number.isFinite(found.error));
    const low = height - MARGIN.bottom;
    this.lanes = { none: low - 6, zero: low - 6 - MARGIN.lane, bad: MARGIN.top + 4 };
    [this.top, this.bottom] = [MARGIN.top + (bad ? MARGIN.lane + 6 : 0), low - 2 * MARGIN.lane - 6];
    const most = findings.reduce((far, found) => Math.max(far, this.at(found)), 1);
    this.spots = findings.map((found) => ({
      found,
      x: MARGIN.left + (this.at(found) / most) * (width - MARGIN.left - MARGIN.right),
      y: this.height(found),
    }));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute(
      "aria-label",
      `Error ${this.axis.value === "order" ? "in the order of the run" : "against depth"}: ${count(findings.length, "value")}, errors from 1e${this.low} to 1e${this.high}`,
    );
    this.svg.replaceChildren(...this.grid(width, bad), ...this.axisText(width, height, most), ...this.dots());
  }

  grid(width, bad) {
    const line = (y, text, kind = "") => [
      s("path", { class: `grid ${kind}`, d: `M${MARGIN.left} ${Math.round(y) + 0.5}H${width - MARGIN.right}` }),
      s("text", { class: "tiny", x: MARGIN.left - 8, y: y + 3.5, "text-anchor": "end" }, text),
    ];
    const step = Math.ceil((this.high - this.low) / Math.max(1, Math.floor((this.bottom - this.top) / 22)));
    const decades = [];
    for (let at = this.low; at <= this.high; at += step) {
      decades.push(
        ...line(this.bottom - ((at - this.low) / (this.high - this.low)) * (this.bottom - this.top), `1e${at}`),
      );
    }
    return [
      ...decades,
      ...line(this.lanes.zero, "0", "lane"),
      ...line(this.lanes.none, "none", "lane"),
      ...(bad ? line(this.lanes.bad, "NaN, ∞", "lane") : []),
    ];
  }

  axisText(width, height, most) {
    const text = (x, words, anchor) => s("text", { class: "tiny", x, y: height - 8, "text-anchor": anchor }, words);
    return [
      text(MARGIN.left, "inputs", "start"),
      text((MARGIN.left + width) / 2, this.axis.value, "middle"),
      text(width - MARGIN.right, most.toLocaleString("en"), "end"),
    ];
  }

  /** One path for all dots of a kind: a line of no length with round ends is one. */
  dots() {
    const kinds = new Map();
    for (const { found, x, y } of this.spots) {
      const kind = `dots ${found.graph.role} status-${STATUSES.indexOf(found.status)}`;
      kinds.set(kind, `${kinds.get(kind) || ""}M${x.toFixed(1)} ${y.toFixed(1)}h0`);
    }
    const dots = [...kinds].sort((a, b) => (a[0] < b[0] ? 1 : -1)).map(([kind, d]) => s("path", { class: kind, d }));
    const first = this.spots.find((spot) => spot.found === this.app.data.first);
    if (first) dots.push(s("circle", { class: "first-ring", cx: first.x, cy: first.y, r: 7 }));
    const chosen = this.spots.filter(
      ({ found }) => this.app.selected && (found.node === this.app.selected || found.value === this.app.selected),
    );
    return [...dots, ...chosen.map(({ x, y }) => s("circle", { class: "chosen-ring", cx: x, cy: y, r: 5 }))];
  }

  near(event) {
    const frame = this.svg.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    let [best, least] = [null, 18];
    for (const spot of this.spots || []) {
      const far = Math.hypot(spot.x - x, spot.y - y);
      if (far < least) [best, least] = [spot, far];
    }
    return best && best.found;
  }

  hover(event) {
    const found = this.near(event);
    this.svg.classList.toggle("on-dot", Boolean(found));
    this.app.tip.show(found ? found.node || found.value : null, event);
  }

  pick(event) {
    const found = this.near(event);
    if (found) this.app.select(found.node || found.value, { move: true });
  }
}
