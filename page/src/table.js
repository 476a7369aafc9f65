// All rows: each finding of each value, or each value of a graph that nothing was found of. Only those in sight are
// elements, so that twenty thousand scroll as smoothly as twenty.

import { STATUSES } from "./colour.js";
import { h, name, numberCell, soon } from "./dom.js";
import { count } from "./numbers.js";
import { typed } from "./model.js";

const ROW = 27; // pixels, as in `page.css`
const TEXT = {
  value: (row) => row.value.name,
  operator: (row) => (row.node ? row.node.op : row.value.role),
  module: (row) => (row.node ? row.node.module || row.node.chain.at(-1)?.path || "" : ""),
  type: (row) => typed(row.value),
};

export class Table {
  constructor(app) {
    this.app = app;
    this.rows = rowsOf(app.data);
    this.columns = columnsOf(app.data);
    this.sort = { column: this.columns[0], down: false };
    this.filter = h("input", {
      type: "search",
      placeholder: "Filter rows",
      "aria-label": "Filter rows",
      oninput: () => this.choose(),
    });
    const statuses = [...new Set(this.rows.map((row) => row.found && row.found.status).filter(Boolean))];
    this.status = h(
      "select",
      { "aria-label": "Status", onchange: () => this.choose() },
      h("option", { value: "" }, "any status"),
      statuses.map((status) => h("option", { value: status }, status)),
    );
    this.number = h("span", { class: "muted", role: "status" });
    this.head = h(
      "tr",
      { "aria-rowindex": 1 },
      this.columns.map((column) => this.header(column)),
    );
    this.above = h("tr", { class: "space", "aria-hidden": "true" });
    this.below = h("tr", { class: "space", "aria-hidden": "true" });
    this.body = h("tbody", {});
    const widths = h(
      "colgroup",
      {},
      this.columns.map((column) => h("col", { class: column.kind })),
    );
    this.table = h("table", { class: "rows", "aria-label": "All rows" }, widths, h("thead", {}, this.head), this.body);
    this.scroller = h(
      "div",
      {
        class: "scroller",
        tabindex: 0,
        role: "region",
        "aria-label": "Rows: up and down select",
        onscroll: soon(() => this.fill()),
        onkeydown: (event) => this.key(event),
      },
      this.table,
    );
    this.element = h(
      "section",
      { class: "table", "aria-label": "Table" },
      h("div", { class: "bar" }, this.filter, statuses.length ? this.status : null, this.number),
      this.scroller,
    );
    new ResizeObserver(() => this.fill()).observe(this.scroller);
    this.choose();
  }

  header(column) {
    const button = h("button", { type: "button", onclick: () => this.order(column) }, column.title);
    return h("th", { scope: "col", class: column.kind, title: column.title }, button);
  }

  order(column) {
    this.sort = { column, down: this.sort.column === column ? !this.sort.down : column.kind === "number" };
    this.choose();
  }

  choose() {
    const wanted = this.filter.value.toLowerCase();
    const status = this.status.value;
    const fits = (row) => (!status || row.found.status === status) && (!wanted || row.words().includes(wanted));
    const { column, down } = this.sort;
    this.shown = this.rows.filter(fits);
    const keys = new Map(this.shown.map((row) => [row, (column.key || column.of)(row)]));
    this.shown.sort((a, b) => compared(keys.get(a), keys.get(b), down) || a.at - b.at);
    this.number.textContent =
      this.shown.length === this.rows.length
        ? count(this.rows.length, "row")
        : `${this.shown.length.toLocaleString("en")} of ${count(this.rows.length, "row")}`;
    this.table.setAttribute("aria-rowcount", this.shown.length + 1);
    for (const [at, header] of [...this.head.children].entries()) {
      const sorted = this.columns[at] === column;
      header.setAttribute("aria-sort", sorted ? (down ? "descending" : "ascending") : "none");
    }
    this.scroller.scrollTop = 0;
    this.fill(true);
  }

  /** Makes the rows in sight, or all for the printer. */
  fill(anew = false, all = false) {
    const from = all ? 0 : Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - 8);
    const to = all
      ? this.shown.length
      : Math.min(this.shown.length, from + Math.ceil(this.scroller.clientHeight / ROW) + 16);
    if (!anew && from === this.from && to === this.to) return;
    Object.assign(this, { from, to });
    this.above.style.height = `${from * ROW}px`;
    this.below.style.height = `${(this.shown.length - to) * ROW}px`;
    const rows = this.shown.slice(from, to).map((row, at) => this.row(row, from + at));
    this.body.replaceChildren(this.above, ...rows, this.below);
  }

  row(row, at) {
    const chosen = this.app.selected && (this.app.selected === row.node || this.app.selected === row.value);
    const classes = [
      chosen && "selected",
      row.found && `status-${STATUSES.indexOf(row.found.status)}`,
      row.found && row.found.diverged && "diverged",
    ];
    const cells = this.columns.map((column) => {
      const held = column.of(row);
      if (column.kind.startsWith("number")) return h("td", { class: column.kind }, numberCell(held));
      return h(
        "td",
        { class: column.kind, title: String(held).slice(0, 500) },
        column.kind === "status" && h("span", { class: "dot" }),
        name(String(held).slice(0, 200)),
      );
    });
    const element = h(
      "tr",
      {
        class: classes.filter(Boolean).join(" "),
        "aria-rowindex": at + 2,
        "aria-selected": chosen ? "true" : "false",
        onclick: () => this.pick(row),
      },
      cells,
    );
    element.dataset.row = row.at;
    return element;
  }

  pick(row) {
    this.app.select(row.node || row.value, { move: true, from: this });
  }

  /** The selected row is shown, if it was not clicked here. */
  show(thing) {
    const at = this.shown.findIndex((row) => row.node === thing || row.value === thing);
    const { scrollTop, clientHeight } = this.scroller;
    if (at >= 0 && (at * ROW < scrollTop || (at + 3) * ROW > scrollTop + clientHeight))
      this.scroller.scrollTop = at * ROW - clientHeight / 2;
    this.fill(true);
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (!step || !this.shown.length) return;
    event.preventDefault();
    event.stopPropagation();
    const now = this.shown.findIndex(
      (row) => this.app.selected && (row.node === this.app.selected || row.value === this.app.selected),
    );
    this.pick(this.shown[Math.max(0, Math.min(this.shown.length - 1, now + step))]);
    this.show(this.app.selected);
  }
}

function rowsOf(data) {
  const values = () => data.graphs.flatMap((graph) => graph.nodes.flatMap((node) => node.outputs.filter(Boolean)));
  const rows = data.findings.length
    ? data.findings.map((found) => ({ found, value: found.value }))
    : values().map((value) => ({ found: null, value }));
  rows.forEach((row, at) => {
    Object.assign(row, { at, node: row.value.producer, graph: row.value.graph });
    row.words = () =>
      (row.kept ||= [
        ...Object.values(TEXT).map((of) => of(row)),
        row.found ? `${row.found.status} ${row.found.text}` : "",
      ]
        .join("\n")
        .toLowerCase());
  });
  return rows;
}

function columnsOf(data) {
  const found = (title, kind, of) => ({ title, kind, of: (row) => of(row.found) });
  const some = (of) => data.findings.some((each) => of(each));
  const measures = [...new Set(data.findings.flatMap((each) => [...each.measures.keys()]))];
  const graphs = { graph: data.before ? "compiled" : "graph", before: "exported", function: "function" };
  return [
    {
      title: "#",
      kind: "number place",
      of: (row) => (row.node ? row.node.id : -1),
      key: (row) => row.graph.place * 1e9 + (row.node ? row.node.id : -1),
    },
    data.graphs.length > 1 && { title: "graph", kind: "word", of: (row) => graphs[row.graph.role] },
    data.findings.length && found("status", "status", (each) => each.status),
    data.findings.length && found("error", "number", (each) => each.error),
    ...Object.keys(TEXT).map((title) => ({ title, kind: title === "operator" ? "word" : "text", of: TEXT[title] })),
    ...measures.map((measure) => found(measure, "number", (each) => each.measures.get(measure) ?? null)),
    some((each) => each.seconds !== null) && found("seconds", "number", (each) => each.seconds),
    some((each) => each.call) && found("call", "number", (each) => each.call),
    data.findings.length && found("kind", "word", (each) => each.stage),
    some((each) => each.evidence) && found("reference", "text", (each) => each.evidence),
    some((each) => each.text) && found("in words", "text", (each) => each.text),
  ].filter(Boolean);
}

/** Numbers by size, NaN as the worst of them, what is not there last in both directions; text as in a dictionary. */
function compared(a, b, down) {
  const [none, other] = [a === null, b === null];
  if (none || other) return none - other;
  const sign = down ? -1 : 1;
  if (typeof a === "string") return sign * (a < b ? -1 : a > b ? 1 : 0);
  const [x, y] = [Number.isNaN(a) ? Infinity : a, Number.isNaN(b) ? Infinity : b];
  return sign * (x < y ? -1 : x > y ? 1 : Number.isNaN(a) - Number.isNaN(b));
}
