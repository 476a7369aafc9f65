// The table of all rows. Only the visible rows are elements, so that 20,000 rows scroll as smoothly as 20.

import { statusClass } from "./color.js";
import { html, nameElement, numberElement, oncePerFrame } from "./dom.js";
import { meaning, unit } from "./metrics.js";
import { count } from "./numbers.js";
import { RowFilter, sortRows, tableColumns, tableRows } from "./rows.js";
import { textWidth } from "./text.js";

/** @import { App } from "./app.js" */
/** @import { Item, Numeric } from "./model.js" */
/** @import { Column, Row } from "./rows.js" */

const ROW_HEIGHT = 27; // pixels, as in `page.css`
const EXTRA_ROWS = 8; // above and below what is visible
const LONGEST = 200; // characters of a cell
const WIDEST = 230; // pixels of a text; the whole text is its title
const LONGEST_NUMBER = "−1.23e−100"; // as short numbers are written, except of integers over 2**53
const CELL_FONT = "400 12.5px";

/** The table in the drawer. */
export class Table {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.rows = tableRows(app.data);
    this.columns = tableColumns(app.data);
    this.filter = new RowFilter();
    const [first] = this.columns;
    this.sort = { column: this.columns.find(({ title }) => title === "#") ?? first, descending: false };
    /** The rows that pass the filter, sorted. @type {Row[]} */
    this.shown = [];
    /** The first row that is an element, and the one after the last. */
    this.range = { from: 0, to: 0 };
    this.text = html("input", {
      type: "search",
      placeholder: "Filter rows",
      "aria-label": "Filter rows",
      oninput: () => this.update(),
    });
    const statuses = new Set(app.data.findings.map((finding) => finding.status));
    this.status = html(
      "select",
      { "aria-label": "Status", onchange: () => this.update() },
      html("option", { value: "" }, "any status"),
      [...statuses].map((status) => html("option", { value: status }, status)),
    );
    this.summary = html("span", { class: "muted", role: "status" });
    this.headers = this.columns.map((column) => this.header(column));
    this.above = html("tr", { class: "space", "aria-hidden": "true" });
    this.below = html("tr", { class: "space", "aria-hidden": "true" });
    this.body = html("tbody");
    this.table = html(
      "table",
      { class: "rows", "aria-label": "All rows" },
      html(
        "colgroup",
        {},
        this.columns.map((column) => this.columnElement(column)),
      ),
      html("thead", {}, html("tr", { "aria-rowindex": 1 }, this.headers)),
      this.body,
    );
    this.scroller = html(
      "div",
      {
        class: "scroller",
        tabindex: 0,
        role: "region",
        "aria-label": "Rows: the up and down arrow keys select",
        onscroll: oncePerFrame(() => this.fillIfMoved()),
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
      },
      this.table,
    );
    this.element = html(
      "section",
      { class: "table", "aria-label": "Table" },
      html("div", { class: "bar" }, this.text, statuses.size > 0 && this.status, this.summary),
      this.scroller,
    );
    new ResizeObserver(() => this.fillIfMoved()).observe(this.scroller);
    this.update();
  }

  /** @param {Column} column */
  header(column) {
    const { title, kind } = column;
    const measure = unit(title);
    const text = [title, measure && html("small", {}, ` ${measure}`)];
    const button = html("button", { type: "button", onclick: () => this.sortBy(column) }, text);
    return html("th", { scope: "col", class: kind, title: meaning(title) || title, "data-name": title }, button);
  }

  /**
   * A column as wide as its title, and as its longest text up to a limit; numbers all have room.
   * @param {Column} column
   */
  columnElement({ title, kind, cell }) {
    const isNumber = kind.startsWith("number");
    const longest = isNumber ? LONGEST_NUMBER : this.rows.reduce((a, row) => longer(a, String(cell(row))), "");
    const heading = textWidth(`${title} ${unit(title)} ↑`, CELL_FONT);
    const limit = isNumber ? Infinity : WIDEST;
    const dot = kind === "status" ? 16 : 0;
    const col = html("col");
    col.style.width = `${Math.ceil(Math.max(heading, Math.min(limit, textWidth(longest, CELL_FONT) + dot)) + 24)}px`;
    return col;
  }

  /**
   * Sorts by a column: numbers first from the largest. The second time, in the other direction.
   * @param {Column} column
   */
  sortBy(column) {
    const again = this.sort.column === column;
    this.sort = { column, descending: again ? !this.sort.descending : column.kind === "number" };
    this.update();
  }

  /** Shows the rows that the filter accepts. */
  update() {
    const { column, descending } = this.sort;
    const accepted = this.rows.filter((row) => this.filter.accepts(row, this.text.value, this.status.value));
    this.shown = sortRows(accepted, column, descending);
    const all = count(this.rows.length, "row");
    const some = this.shown.length < this.rows.length;
    this.summary.textContent = some ? `${this.shown.length.toLocaleString("en")} of ${all}` : all;
    this.table.setAttribute("aria-rowcount", String(this.shown.length + 1));
    for (const [index, header] of this.headers.entries()) {
      const order = this.columns[index] !== column ? "none" : descending ? "descending" : "ascending";
      header.setAttribute("aria-sort", order);
    }
    this.scroller.scrollTop = 0;
    this.fill();
  }

  /** The rows that should be elements. */
  visibleRange() {
    const { scrollTop, clientHeight } = this.scroller;
    const from = Math.max(0, Math.floor(scrollTop / ROW_HEIGHT) - EXTRA_ROWS);
    return { from, to: Math.min(this.shown.length, from + Math.ceil(clientHeight / ROW_HEIGHT) + 2 * EXTRA_ROWS) };
  }

  /** Makes the visible rows again, or all rows. */
  fill({ all = false } = {}) {
    this.range = all ? { from: 0, to: this.shown.length } : this.visibleRange();
    const { from, to } = this.range;
    this.above.style.height = `${from * ROW_HEIGHT}px`;
    this.below.style.height = `${(this.shown.length - to) * ROW_HEIGHT}px`;
    const rows = this.shown.slice(from, to).map((row, index) => this.row(row, from + index));
    this.body.replaceChildren(this.above, ...rows, this.below);
  }

  fillIfMoved() {
    const { from, to } = this.visibleRange();
    if (from !== this.range.from || to !== this.range.to) this.fill();
  }

  /**
   * @param {Row} row
   * @param {number} index
   */
  row(row, index) {
    const { finding } = row;
    const selected = isOf(row, this.app.selected);
    const classes = [selected && "selected", finding && statusClass(finding), finding?.diverged && "diverged"];
    return html(
      "tr",
      {
        class: classes.filter(Boolean).join(" "),
        "aria-rowindex": index + 2,
        "aria-selected": String(selected),
        onclick: () => this.pick(row),
      },
      this.columns.map((column) => cellElement(column, row)),
    );
  }

  /** @param {Row} row */
  pick(row) {
    this.app.select(row.node ?? row.value, { move: true, fromTable: true });
  }

  /**
   * Scrolls to the row of an item, unless it is visible.
   * @param {Item} item
   */
  show(item) {
    const index = this.shown.findIndex((row) => isOf(row, item));
    const { scrollTop, clientHeight } = this.scroller;
    const visible = index * ROW_HEIGHT >= scrollTop && (index + 3) * ROW_HEIGHT <= scrollTop + clientHeight;
    if (index >= 0 && !visible) this.scroller.scrollTop = index * ROW_HEIGHT - clientHeight / 2;
    this.fill();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const steps = new Map([
      ["ArrowDown", 1],
      ["ArrowUp", -1],
      ["PageDown", 10],
      ["PageUp", -10],
    ]);
    const step = steps.get(event.key);
    if (!step || !this.shown.length) return;
    event.preventDefault();
    event.stopPropagation();
    const now = this.shown.findIndex((row) => isOf(row, this.app.selected));
    this.pick(this.shown[Math.max(0, Math.min(this.shown.length - 1, now + step))]);
    if (this.app.selected) this.show(this.app.selected);
  }
}

/**
 * @param {string} a
 * @param {string} b
 */
function longer(a, b) {
  return b.length > a.length ? b : a;
}

/**
 * @param {Row} row
 * @param {Item | null} item
 */
function isOf({ node, value }, item) {
  return item !== null && (item === node || item === value);
}

/**
 * @param {Column} column
 * @param {Row} row
 */
function cellElement({ kind, cell }, row) {
  const content = cell(row);
  if (kind.startsWith("number")) {
    return html("td", { class: kind }, numberElement(/** @type {Numeric | null} */ (content)));
  }
  const text = String(content);
  const dot = kind === "status" && html("span", { class: "dot" });
  return html("td", { class: kind, title: text.slice(0, 500) }, dot, nameElement(text.slice(0, LONGEST)));
}
