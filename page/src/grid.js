// A grid of positions against layers: how far what each computes is from its reference at each position of a sequence.

import { html, oncePerFrame, svg } from "./dom.js";
import { shortNumber, smallest } from "./numbers.js";
import { labelStep, PositionColors, positionRows } from "./positions.js";
import { truncate } from "./text.js";
import { legendElements } from "./toolbar.js";

/** @import { App } from "./app.js" */
/** @import { Finding, Item } from "./model.js" */
/** @import { PositionRow, RowKind } from "./positions.js" */
/** @typedef {{ row: number, at: number }} Cell */

const TOP = 20; // pixels for the numbers of positions
const ROW_HEIGHT = 18;
const NARROWEST = 6; // pixels of a column: then the grid scrolls
const WIDEST = 34;
const LABEL_FONT = "400 11px";
const LABEL_ROOM = 24; // pixels of a number of up to four digits
const NARROW = 10; // pixels of a cell with a small dot

/** The grid beside the table. */
export class PositionGrid {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    /** @type {Record<RowKind, PositionRow[]>} */
    this.rowsOf = { module: positionRows(app.data, "module"), value: positionRows(app.data, "value") };
    this.kind = html(
      "select",
      { "aria-label": "Rows", onchange: () => this.changeKind() },
      html("option", { value: "module" }, "by module"),
      html("option", { value: "value" }, "by value"),
    );
    this.colors = new PositionColors(this.rowsOf.value);
    /** @type {Cell | null} */
    this.chosen = null;
    this.svg = svg("svg", { role: "img", class: "cells" });
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => app.tooltip.hide());
    this.svg.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell) this.choose(cell);
    });
    this.room = html("div", { class: "room" }, this.svg);
    this.scroller = html(
      "div",
      {
        class: "scroller",
        tabindex: 0,
        role: "region",
        "aria-label": "Positions: the arrow keys select",
        onscroll: oncePerFrame(() => this.draw()),
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
      },
      this.room,
    );
    const title = "The largest difference at each position, relative to the root mean square of the value";
    const legend = html("div", { class: "legend", "aria-label": "Colors of positions" }, legendElements(this.colors));
    this.element = html(
      "section",
      { class: "positions", "aria-label": "Positions" },
      html("div", { class: "bar" }, html("h2", { title }, "Position"), this.kind, legend),
      this.scroller,
    );
    new ResizeObserver(oncePerFrame(() => this.reveal())).observe(this.scroller);
  }

  get rows() {
    return this.rowsOf[/** @type {RowKind} */ (this.kind.value)];
  }

  /** The widths of names, of a column and of what is visible. */
  get measures() {
    const { clientWidth: width, clientHeight: height } = this.scroller;
    const columns = this.rowsOf.value.reduce((most, row) => Math.max(most, row.errors.length), 1);
    const names = Math.min(230, Math.max(90, width * 0.34));
    const column = Math.min(WIDEST, Math.max(NARROWEST, (width - names - 8) / columns));
    return { width, height, columns, names, column };
  }

  /** @param {MouseEvent} event @returns {Cell | null} */
  cellAt(event) {
    const { columns, names, column } = this.measures;
    const frame = this.svg.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left - names, event.clientY - frame.top - TOP];
    if (x < 0 || y < 0) return null;
    const at = Math.floor((x + this.scroller.scrollLeft) / column);
    const row = Math.floor((y + this.scroller.scrollTop) / ROW_HEIGHT);
    return at < columns && row < this.rows.length ? { row, at } : null;
  }

  draw() {
    const { width, height, columns, names, column } = this.measures;
    if (!width) return;
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) {
      this.svg.setAttribute(name, String(value));
    }
    const wrong = this.rows.filter((row) => row.wrong.size).length;
    const rows = `${this.rows.length} ${this.kind.value}s and outputs, of which ${wrong} are wrong`;
    this.svg.setAttribute("aria-label", `Errors at ${columns} positions of ${rows} at some`);
    const { scrollLeft, scrollTop } = this.scroller;
    const from = { row: Math.floor(scrollTop / ROW_HEIGHT), at: Math.floor(scrollLeft / column) };
    const to = {
      row: Math.min(this.rows.length, from.row + Math.ceil(height / ROW_HEIGHT) + 1),
      at: Math.min(columns, from.at + Math.ceil((width - names) / column) + 1),
    };
    const left = (/** @type {number} */ at) => names + at * column - scrollLeft;
    const top = (/** @type {number} */ row) => TOP + row * ROW_HEIGHT - scrollTop;
    /** The cells of each color, and the dots of those that are wrong. @type {Map<string, string>} */
    const paths = new Map();
    const add = (/** @type {string} */ classes, /** @type {string} */ d) =>
      paths.set(classes, `${paths.get(classes) ?? ""}${d}`);
    const gap = column > 2 * NARROWEST ? 1 : 0.5;
    /** @type {SVGElement[]} */
    const labels = [];
    for (let index = from.row; index < to.row; index += 1) {
      const row = this.rows[index];
      const y = top(index);
      for (let at = from.at; at < to.at; at += 1) {
        const x = left(at);
        const color = this.colors.classOf(row, at);
        add(color, `M${x.toFixed(2)} ${y + 1}h${(column - gap).toFixed(2)}v${ROW_HEIGHT - 2}h-${column - gap}z`);
        if (!row.wrong.has(at)) continue;
        add(
          `wrong ${column < NARROW ? "narrow " : ""}${color}`,
          `M${(x + (column - gap) / 2).toFixed(2)} ${y + ROW_HEIGHT / 2}h0`,
        );
      }
      const chosen = this.chosen?.row === index ? " chosen" : "";
      const text = truncate(ending(row.name), names - 12, LABEL_FONT);
      labels.push(svg("text", { class: `small${chosen}`, x: 8, y: y + 12.5 }, svg("title", {}, row.name), text));
    }
    const step = labelStep(column, LABEL_ROOM);
    const numbers = Array.from({ length: columns }, (_, at) => at)
      .filter((at) => at % step === 0 && left(at) >= names)
      .map((at) =>
        svg("text", { class: "tiny", x: left(at) + column / 2, y: 14, "text-anchor": "middle" }, String(at)),
      );
    const ring = (/** @type {Cell} */ cell, /** @type {string} */ kind) =>
      svg("rect", { class: kind, x: left(cell.at) - 1, y: top(cell.row), width: column + 1, height: ROW_HEIGHT });
    const first = this.first;
    this.svg.replaceChildren(
      ...[...paths].sort(([a], [b]) => Number(a.startsWith("wrong")) - Number(b.startsWith("wrong"))).map(cellsElement),
      ...(first ? [ring(first, "first-ring")] : []),
      ...(this.chosen ? [ring(this.chosen, "chosen-ring")] : []),
      svg("rect", { class: "cover", x: 0, y: 0, width: names - 2, height }),
      ...labels,
      svg("rect", { class: "cover", x: 0, y: 0, width, height: TOP }),
      ...numbers,
    );
  }

  /** The first cell that is wrong: that of the first divergence. @returns {Cell | null} */
  get first() {
    const finding = this.app.data.firstDivergence;
    const row = this.rows.findIndex(({ findings }) => findings.some((each) => each === finding));
    const at = smallest([...(finding?.positions?.wrong ?? [])]);
    return row >= 0 && Number.isFinite(at) ? { row, at } : null;
  }

  changeKind() {
    this.chosen = null;
    this.show(this.app.selected);
  }

  /**
   * Selects what a cell shows.
   * @param {Cell} cell
   */
  choose(cell) {
    const { app } = this;
    const row = this.rows[cell.row];
    const { node, value } = row.findingAt(cell.at);
    this.chosen = cell;
    app.select(node ?? value, { move: true });
    app.announce(`${row.name}, ${this.noteOf(cell)}`);
  }

  /** @param {Cell} cell */
  noteOf({ row, at }) {
    const { errors, wrong } = this.rows[row];
    return `position ${at}: ${wrong.has(at) ? "wrong" : "right"}, off by ${shortNumber(errors[at])} of a typical number`;
  }

  /**
   * Goes to the row of an item: to the chosen cell if that is of the item, else to the first cell that is wrong.
   * @param {Item | null} item null for none
   */
  show(item) {
    const ofItem = (/** @type {Finding} */ { node, value }) => item !== null && (node === item || value === item);
    const isOf = (/** @type {Cell} */ { row }) => this.rows[row].findings.some(ofItem);
    if (!this.chosen || !isOf(this.chosen)) {
      const row = this.rows.findIndex(({ findings }) => findings.some(ofItem));
      const own = row < 0 ? [] : this.rows[row].findings.filter(ofItem);
      const at = smallest(own.flatMap(({ positions }) => [...positions.wrong]));
      this.chosen = row < 0 ? null : { row, at: Number.isFinite(at) ? at : 0 };
    }
    this.reveal();
  }

  /** Draws the grid with the chosen cell in sight. */
  reveal() {
    const { width, columns, names, column } = this.measures;
    if (!width) return;
    this.room.style.width = `${names + columns * column}px`;
    this.room.style.height = `${TOP + this.rows.length * ROW_HEIGHT}px`;
    if (this.chosen) this.scrollTo(this.chosen);
    this.draw();
  }

  /**
   * Scrolls to a cell, unless it is visible.
   * @param {Cell} cell
   */
  scrollTo({ row, at }) {
    const { width, height, names, column } = this.measures;
    const [x, y] = [at * column, row * ROW_HEIGHT];
    const { scrollLeft, scrollTop } = this.scroller;
    const seenX = x >= scrollLeft && x + column <= scrollLeft + width - names;
    const seenY = y >= scrollTop && y + ROW_HEIGHT <= scrollTop + height - TOP;
    if (!seenX) this.scroller.scrollLeft = x - (width - names) / 2;
    if (!seenY) this.scroller.scrollTop = y - (height - TOP) / 3;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const steps = new Map([
      ["ArrowDown", [1, 0]],
      ["ArrowUp", [-1, 0]],
      ["ArrowRight", [0, 1]],
      ["ArrowLeft", [0, -1]],
    ]);
    const step = steps.get(event.key);
    if (!step || !this.rows.length) return;
    event.preventDefault();
    event.stopPropagation();
    const { row, at } = this.chosen ?? this.first ?? { row: 0, at: 0 };
    const within = (/** @type {number} */ place, /** @type {number} */ count) =>
      Math.max(0, Math.min(count - 1, place));
    const next = { row: within(row + step[0], this.rows.length), at: within(at + step[1], this.measures.columns) };
    this.choose(next);
  }

  /** @param {MouseEvent} event */
  hover(event) {
    const { app } = this;
    const cell = this.cellAt(event);
    this.svg.classList.toggle("on-dot", Boolean(cell));
    if (!cell) return app.tooltip.hide();
    const { node, value } = this.rows[cell.row].findingAt(cell.at);
    app.tooltip.show(node ?? value, event, this.noteOf(cell));
  }
}

/** @param {[classes: string, d: string]} cells */
function cellsElement([classes, d]) {
  return svg("path", { class: classes, d });
}

/**
 * The end of a long path of modules, which says most.
 * @param {string} name
 */
function ending(name) {
  return name.length > 34 ? `…${name.slice(-33)}` : name;
}
