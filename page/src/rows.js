// The rows and columns of the table: each finding, or each value of a graph without findings.

import { typeLabel } from "./model.js";

/** @import { Finding, Graph, GraphNode, Numeric, PageData, Value } from "./model.js" */
/**
 * @typedef {object} Row
 * @property {number} index
 * @property {Finding | null} finding
 * @property {Value} value
 * @property {GraphNode | null} node
 */
/** @typedef {string | Numeric | null} Cell */
/**
 * @typedef {object} Column
 * @property {string} title
 * @property {string} kind its CSS class; one that begins with "number" has numbers
 * @property {(row: Row) => Cell} cell
 * @property {(row: Row) => Cell} [key] what it is sorted by, if not by its cells
 */

/** @type {Column[]} */
const TEXT_COLUMNS = [
  { title: "module", kind: "text", cell: ({ node }) => node?.module || node?.groupPath.at(-1)?.path || "" },
  { title: "operator", kind: "word", cell: ({ node, value }) => node?.op ?? value.role },
  { title: "value", kind: "text", cell: ({ value }) => value.name },
  { title: "type", kind: "text", cell: ({ value }) => typeLabel(value) },
];

/**
 * @param {PageData} data
 * @returns {Row[]}
 */
export function tableRows({ findings, graphs }) {
  if (findings.length) {
    return findings.map((finding, index) => ({ index, finding, value: finding.value, node: finding.node }));
  }
  const values = graphs.flatMap((graph) => graph.nodes.flatMap((node) => node.written));
  return values.map((value, index) => ({ index, finding: null, value, node: value.producer }));
}

/**
 * The columns that have anything in them.
 * @param {PageData} data
 * @returns {Column[]}
 */
export function tableColumns({ findings, graphs, before, reference }) {
  const position = (/** @type {Row} */ { node }) => node?.id ?? -1;
  const graphName = (/** @type {Graph} */ { role }) => {
    if (reference) return role === "reference" ? "A" : "B";
    return role === "graph" && before ? "compiled" : role === "before" ? "exported" : role;
  };
  /** @type {(title: string, kind: string, cell: (finding: Finding) => Cell, shown?: boolean) => Column[]} */
  const ofFinding = (title, kind, cell, shown = findings.some((finding) => cell(finding) !== null)) =>
    shown ? [{ title, kind, cell: ({ finding }) => finding && cell(finding) }] : [];
  const any = findings.length > 0;
  const measures = new Set(findings.flatMap((finding) => [...finding.measures.keys()]));
  /** @type {Column} */
  const place = {
    title: "#",
    kind: "number place",
    cell: (row) => (reference && !row.node ? null : position(row)),
    key: (row) => row.value.graph.index * 1e9 + position(row),
  };
  /** @type {Column} */
  const graph = { title: "graph", kind: "word", cell: ({ value }) => graphName(value.graph) };
  const [module, operator, value, type] = TEXT_COLUMNS;
  return [
    ...ofFinding("error", "number", ({ error }) => error, any && !reference),
    module,
    operator,
    ...ofFinding("status", "status", ({ status }) => status, any),
    value,
    ...(graphs.length > 1 ? [graph] : []),
    place,
    type,
    ...[...measures].flatMap((name) =>
      ofFinding(name, "number", (finding) => finding.measures.get(name) ?? null, true),
    ),
    ...ofFinding("seconds", "number", ({ seconds }) => seconds),
    ...ofFinding(
      "call",
      "number",
      ({ call }) => call,
      findings.some(({ call }) => call),
    ),
    ...ofFinding("kind", "word", ({ stage }) => stage, any && !reference),
    ...ofFinding("in the other", "text", ({ places }) => places.map(([name]) => name).join(", "), reference !== null),
    ...ofFinding(
      "reference",
      "text",
      ({ evidence }) => evidence,
      !reference && findings.some(({ evidence }) => evidence),
    ),
    ...ofFinding(
      "in words",
      "text",
      ({ text }) => text,
      findings.some(({ text }) => text),
    ),
  ];
}

/** Selects rows by text and by status. */
export class RowFilter {
  constructor() {
    /** The text of each row. @type {WeakMap<Row, string>} */
    this.texts = new WeakMap();
  }

  /**
   * Whether a row has a status and contains a text; "" is any.
   * @param {Row} row
   * @param {string} text
   * @param {string} status
   */
  accepts(row, text, status) {
    return (!status || row.finding?.status === status) && (!text || this.textOf(row).includes(text.toLowerCase()));
  }

  /** @param {Row} row */
  textOf(row) {
    let text = this.texts.get(row);
    if (text === undefined) {
      const cells = TEXT_COLUMNS.map((column) => column.cell(row));
      const finding = row.finding ? `${row.finding.status} ${row.finding.text}` : "";
      text = [...cells, finding].join("\n").toLowerCase();
      this.texts.set(row, text);
    }
    return text;
  }
}

/**
 * Rows in the order of a column. Empty cells are last in both directions; NaN is larger than any number; equal rows keep
 * the order of the table.
 * @param {Row[]} rows
 * @param {Column} column
 * @param {boolean} descending
 */
export function sortRows(rows, column, descending) {
  const key = column.key ?? column.cell;
  const keyed = rows.map((row) => ({ row, key: key(row) }));
  keyed.sort((a, b) => compareCells(a.key, b.key, descending) || a.row.index - b.row.index);
  return keyed.map(({ row }) => row);
}

/**
 * @param {Cell} a
 * @param {Cell} b
 * @param {boolean} descending
 */
function compareCells(a, b, descending) {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  const [x, y] = [a, b].map((cell) => (Number.isNaN(cell) ? Infinity : cell));
  const ascending = x < y ? -1 : x > y ? 1 : Number(Number.isNaN(a)) - Number(Number.isNaN(b));
  return descending ? -ascending : ascending;
}
