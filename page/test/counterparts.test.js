import assert from "node:assert/strict";
import { test } from "node:test";
import { follow } from "../src/counterparts.js";
import { pageData } from "./graphs.js";

const groups = [{ path: "attention", name: "attention", type: "A" }];
const exported = [
  { name: "shape", op: "Constant", inputs: [], outputs: ["s"], group: 0 },
  { name: "cast", inputs: ["s"], outputs: ["c"] },
  { name: "reshape", inputs: ["x", "c"], outputs: ["r"], group: 0 },
  { name: "gelu", inputs: ["r"], outputs: ["y"] },
  { name: "unused", inputs: ["x"], outputs: ["u"] },
];
const compiled = [
  { name: "inserted", inputs: ["x"], outputs: ["t"], origins: ["elsewhere"] },
  { name: "fused", inputs: ["t"], outputs: ["y"], origins: ["reshape", "gelu"] },
];
const { main, before } = pageData({ nodes: compiled }, { role: "before", groups, nodes: exported });
const names = ({ items, folded }) => [items.map(({ name }) => name), folded];
const node = (graph, name) => graph.nodeByName.get(name);

test("a fused node is followed to all nodes that it was made of, and each of these to it", () => {
  assert.deepEqual(names(follow(node(main, "fused"))), [["reshape", "gelu"], false]);
  assert.deepEqual(names(follow(node(before, "gelu"))), [["fused"], false]);
});

test("a folded node is followed to the nearest node that reads its result", () => {
  assert.deepEqual(names(follow(node(before, "shape"))), [["fused"], true]);
  assert.deepEqual(names(follow(node(main, "inserted"))), [["reshape", "gelu"], true]);
});

test("what nothing reads is followed nowhere", () => {
  assert.deepEqual(names(follow(node(before, "unused"))), [[], true]);
});

test("a group without a counterpart is followed to those of its nodes, and a value to that of its node", () => {
  assert.deepEqual(names(follow(before.groups[0])), [["fused"], false]);
  assert.deepEqual(names(follow(before.values.find(({ name }) => name === "c"))), [["fused"], true]);
});
