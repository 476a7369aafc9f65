import assert from "node:assert/strict";
import { test } from "node:test";
import { SearchIndex } from "../src/search.js";
import { pageData } from "./graphs.js";

const groups = [
  { path: "model", name: "model", type: "pkg.Net" },
  { parent: 0, path: "model.norm", name: "norm", type: "pkg.RMSNorm" },
];
const nodes = [
  { name: "a_norm", op: "Mul", inputs: ["x"], outputs: ["v1"], group: 0 },
  { name: "norm_b", op: "Add", inputs: ["v1"], outputs: ["v2"], group: 1 },
  { name: "other", op: "LayerNormalization", inputs: ["v2"], outputs: ["y"] },
];
const data = pageData({ groups, nodes });
const index = new SearchIndex(data);
const found = (text) => index.find(text, data.main).map((item) => item.name);

test("names that begin with the text come first, then names that contain it, then all else", () => {
  assert.deepEqual(found("norm"), ["norm_b", "norm", "a_norm", "other"]);
});

test("case and spaces around the text do not matter", () => {
  assert.deepEqual(found("  NORM_B "), ["norm_b"]);
});

test("nodes are found by their operators, modules and values", () => {
  assert.deepEqual(found("layernorm"), ["other"]);
  assert.deepEqual(found("model.norm"), ["norm", "norm_b"]);
  assert.deepEqual(found("v2"), ["norm_b", "other"]);
});

test("groups are found by their classes, and inputs and outputs by their names", () => {
  assert.deepEqual(found("rmsnorm"), ["norm"]);
  assert.deepEqual(found("y"), ["y", "other"]);
});

test("nothing is found for no text, or for text that is nowhere", () => {
  assert.deepEqual(found("  "), []);
  assert.deepEqual(found("nowhere"), []);
});

test("of equally good names, those of the preferred graph come first", () => {
  const both = pageData({ nodes }, { role: "before", nodes });
  const roles = (graph) => new SearchIndex(both).find("a_norm", graph).map((item) => item.graph.role);
  assert.deepEqual(roles(both.main), ["graph", "before"]);
  assert.deepEqual(roles(both.before), ["before", "graph"]);
});

test("constants are found, although they are drawn as a part of what reads them", () => {
  const constant = { name: "two", op: "Constant", inputs: [], outputs: ["a"] };
  const small = pageData({ nodes: [constant, { inputs: ["x", "a"], outputs: ["y"] }] });
  assert.deepEqual(new SearchIndex(small).find("constant", small.main), [small.main.nodes[0]]);
});
