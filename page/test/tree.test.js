import assert from "node:assert/strict";
import { test } from "node:test";
import { notable } from "../src/overview.js";
import { linkedItems, Tree } from "../src/tree.js";
import { pageData } from "./graphs.js";

const SHOWN = { weights: true, unlinked: false };
const nameOf = ({ item }) => (item.kind === "group" ? item.path : item.op || item.name);

/** A has a module `attn` with `attn.qkv` in it; B has `q` and `k` instead, and computes something else at the end. */
const data = pageData(
  {
    role: "graph",
    close: false,
    weights: ["q.weight", "k.weight", "bias"],
    groups: [
      { path: "q", name: "q", type: "Linear" },
      { path: "k", name: "k", type: "Linear" },
    ],
    nodes: [
      { op: "mm", inputs: ["x", "q.weight"], outputs: ["q"], group: 0 },
      { op: "mm", inputs: ["x", "k.weight"], outputs: ["k"], group: 1 },
      { op: "gelu", inputs: ["q", "k"], outputs: ["y"] },
    ],
    findings: [
      { value: "q.weight", status: "found", places: { "attn.qkv.weight": "rows 0 to 3" } },
      { value: "bias", status: "not found" },
      { value: "q", status: "anchored", places: { product: "columns 0 to 3 of A" } },
      { value: "k", status: "anchored", places: { product: "columns 4 to 7 of A" } },
      { value: "y", status: "leaves A", first: true, places: { y: "" } },
    ],
  },
  {
    role: "reference",
    weights: ["attn.qkv.weight"],
    groups: [
      { path: "attn", name: "attn", type: "Attention" },
      { path: "attn.qkv", name: "qkv", type: "Linear", parent: 0 },
    ],
    nodes: [
      { op: "mm", inputs: ["x", "attn.qkv.weight"], outputs: ["product"], group: 1 },
      { op: "view", inputs: ["product"], outputs: ["viewed"], group: 1 },
      { op: "arange", inputs: [], outputs: ["positions"] },
      { op: "relu", inputs: ["viewed", "positions"], outputs: ["y"] },
    ],
    findings: [
      { value: "attn.qkv.weight", status: "found", places: { "q.weight": "rows 0 to 3" } },
      { value: "product", status: "anchored", places: { q: "columns 0 to 3 of A", k: "columns 4 to 7 of A" } },
      { value: "y", status: "not in B" },
    ],
  },
);
const [other, own] = [data.main, data.reference].map((graph) => new Tree(graph));
const all = (tree) => new Set(tree.graph.groups);

test("weights are in their modules, and what is not compared is hidden", () => {
  assert.deepEqual(own.visible(all(own), SHOWN).map(nameOf), ["attn", "attn.qkv", "attn.qkv.weight", "mm", "relu"]);
  assert.deepEqual(own.visible(new Set(), SHOWN).map(nameOf), ["attn", "relu"]);
  const everything = own.visible(all(own), { weights: false, unlinked: true }).map(nameOf);
  assert.deepEqual(everything, ["x", "attn", "attn.qkv", "mm", "view", "arange", "relu"]);
  assert.deepEqual(other.visible(new Set(), SHOWN).map(nameOf), ["bias", "q", "k", "gelu"]);
});

test("a module has the finding of what leaves it, also as a view", () => {
  const findings = own.graph.groups.map((group) => own.entryOf.get(group).finding);
  assert.deepEqual(
    findings.map(({ status, value }) => [status, value.name]),
    [
      ["anchored", "product"],
      ["anchored", "product"],
    ],
  );
});

test("modules are linked with modules, and operations with operations", () => {
  const items = (tree, item, to) => linkedItems(tree.entryOf.get(item), to);
  const [attention, qkv] = own.graph.groups;
  assert.deepEqual(items(own, attention, other), other.graph.groups);
  assert.deepEqual(items(own, qkv, other), other.graph.groups);
  assert.deepEqual(items(own, own.graph.nodes[0], other), other.graph.nodes.slice(0, 2));
  assert.deepEqual(items(other, other.graph.groups[0], own), [attention]);
  assert.deepEqual(items(other, other.graph.nodes[2], own), [own.graph.nodes[3]]);
});

test("closed modules say how much inside of them diverged", () => {
  assert.deepEqual(
    own.top.map(({ diverged }) => diverged),
    [0, 0, 0, 1],
  );
});

test("what needs a look is listed, and the verdict follows it", () => {
  const names = Object.values(notable(data)).map((findings) => findings.map(({ value }) => value.name));
  assert.deepEqual(names, [["y"], ["y"], [], ["bias"], []]);
  assert.equal(data.verdict, "different");
  assert.equal(data.firstDivergence.value, data.main.outputs[0]);
});

test("whole levels are open at first, as long as there are few lines", () => {
  assert.deepEqual(own.initiallyOpen(SHOWN), all(own));
  const group = (index) => ({ path: `l.${index}`, name: `l.${index}`, type: "Layer" });
  const node = (index) => ({ inputs: ["x"], outputs: [`v${index}`], group: index });
  const groups = Array.from({ length: 30 }, (_, index) => group(index));
  const nodes = groups.map((_, index) => node(index));
  const findings = nodes.map(({ outputs: [value] }) => ({ value, status: "uncovered" }));
  const many = new Tree(pageData({ nodes, groups, findings }).main);
  assert.deepEqual(many.initiallyOpen(SHOWN), new Set());
});
