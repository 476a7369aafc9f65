import assert from "node:assert/strict";
import { test } from "node:test";
import { RowFilter, sortRows, tableColumns, tableRows } from "../src/rows.js";
import { chain, pageData } from "./graphs.js";

const findings = [
  { value: "v1", status: "same", error: 2, text: "Fine" },
  { value: "v2", status: "no value" },
  { value: "v3", status: "different", error: "NaN", measures: { snr: 1 } },
  { value: "v4", status: "same", error: 2 },
  { value: "y", status: "different", error: 10, seconds: 0.5 },
];
const data = pageData({ nodes: chain(5, (index) => ({ op: `Op${index}` })), findings });
const rows = tableRows(data);
const columns = tableColumns(data);
const column = (title) => columns.find((each) => each.title === title);
const sorted = (title, descending) => sortRows(rows, column(title), descending).map((row) => row.value.name);

test("each finding is a row", () => {
  assert.deepEqual(
    rows.map((row) => [row.value.name, row.node.op, row.finding.status]),
    [
      ["v1", "Op0", "same"],
      ["v2", "Op1", "no value"],
      ["v3", "Op2", "different"],
      ["v4", "Op3", "same"],
      ["y", "Op4", "different"],
    ],
  );
});

test("without findings, each value of each graph is a row", () => {
  const plain = pageData({ nodes: chain(2) }, { role: "before", nodes: chain(1) });
  assert.deepEqual(
    tableRows(plain).map((row) => row.value.name),
    ["v1", "y", "y"],
  );
  const titles = tableColumns(plain).map((each) => each.title);
  assert.deepEqual(titles, ["module", "operator", "value", "graph", "#", "type"]);
});

test("there are columns for what there is, and no others", () => {
  const titles = columns.map((each) => each.title);
  const expected = [
    "error",
    "module",
    "operator",
    "status",
    "value",
    "#",
    "type",
    "snr",
    "seconds",
    "kind",
    "in words",
  ];
  assert.deepEqual(titles, expected);
});

test("numbers sort in both directions, NaN as the largest, empty cells last", () => {
  assert.deepEqual(sorted("error", false), ["v1", "v4", "y", "v3", "v2"]);
  assert.deepEqual(sorted("error", true), ["v3", "y", "v1", "v4", "v2"]);
});

test("cells say which graph and module a value is of", () => {
  const groups = [{ path: "model.a", name: "a", type: "A" }];
  const nodes = chain(2, (index) => ({ group: index ? null : 0 }));
  const both = pageData({ groups, nodes }, { role: "before", nodes: chain(1) }, { role: "function", nodes: chain(1) });
  const [graph, module] = ["graph", "module"].map((title) => tableColumns(both).find((each) => each.title === title));
  const cells = tableRows(both).map((row) => [graph.cell(row), module.cell(row)]);
  assert.deepEqual(cells, [
    ["compiled", "model.a"],
    ["compiled", ""],
    ["exported", ""],
    ["function", ""],
  ]);
});

test("text sorts in both directions", () => {
  assert.deepEqual(sorted("operator", false), ["v1", "v2", "v3", "v4", "y"]);
  assert.deepEqual(sorted("operator", true), ["y", "v4", "v3", "v2", "v1"]);
});

test("by position, one graph comes after the other", () => {
  const both = pageData({ nodes: chain(2) }, { role: "before", nodes: chain(2) });
  const place = tableColumns(both).find((each) => each.title === "#");
  const order = sortRows(tableRows(both), place, true).map((row) => [row.value.graph.role, place.cell(row)]);
  assert.deepEqual(order, [
    ["before", 1],
    ["before", 0],
    ["graph", 1],
    ["graph", 0],
  ]);
});

test("rows are filtered by text in any case and by status", () => {
  const filter = new RowFilter();
  const accepted = (text, status) =>
    rows.filter((row) => filter.accepts(row, text, status)).map((row) => row.value.name);
  assert.deepEqual(accepted("", ""), ["v1", "v2", "v3", "v4", "y"]);
  assert.deepEqual(accepted("OP3", ""), ["v4"]);
  assert.deepEqual(accepted("fine", ""), ["v1"]);
  assert.deepEqual(accepted("", "different"), ["v3", "y"]);
  assert.deepEqual(accepted("v3", "same"), []);
});
