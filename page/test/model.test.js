import assert from "node:assert/strict";
import { test } from "node:test";
import { affectedNodes, parseNumber, readersOfConstant, typeLabel, worseOf } from "../src/model.js";
import { chain, pageData } from "./graphs.js";

const names = (items) => [...items].map((item) => item.name);

test("nodes know what they read and write, and values who reads and writes them", () => {
  const { main } = pageData({ nodes: chain(2) });
  const [first, second] = main.nodes;
  const [x, between] = main.values;
  assert.deepEqual(first.reads, [x]);
  assert.deepEqual(first.written, [between]);
  assert.equal(between.producer, first);
  assert.deepEqual(between.readers, [second]);
  assert.equal(x.producer, null);
  assert.deepEqual([first.depth, second.depth], [1, 2]);
});

test("inputs and outputs that are left out are null", () => {
  const { main } = pageData({ nodes: [{ inputs: ["x", null], outputs: [null, "y"] }] });
  assert.equal(main.nodes[0].inputs[1], null);
  assert.deepEqual(names(main.nodes[0].written), ["y"]);
});

test("the calls around a node and its attributes come in threes and pairs", () => {
  const stack = ["layers.0", "Layer", "model.py:1", "layers.0.norm", "Norm", ""];
  const { main } = pageData({ nodes: chain(1, () => ({ stack, attributes: ["axis", "1", "eps", "0.1"] })) });
  assert.deepEqual(main.nodes[0].stack, [stack.slice(0, 3), stack.slice(3)]);
  assert.deepEqual(main.nodes[0].attributes, [
    ["axis", "1"],
    ["eps", "0.1"],
  ]);
});

test("groups know their nodes' size, worst finding and time", () => {
  const groups = [
    { path: "model", name: "model", type: "Model" },
    { parent: 0, path: "model.a", name: "a", type: "A" },
  ];
  const findings = [
    { value: "v1", status: "same", error: 1e-9, seconds: 0.5 },
    { value: "y", status: "different", error: 0.1, seconds: 0.25 },
  ];
  const { main } = pageData({ groups, findings, nodes: chain(2, (index) => ({ group: 1 - index })) });
  const [model, inner] = main.groups;
  assert.deepEqual(main.topGroups, [model]);
  assert.deepEqual(model.groups, [inner]);
  assert.deepEqual(inner.groupPath, [model, inner]);
  assert.deepEqual([model.size, inner.size], [2, 1]);
  assert.deepEqual([model.seconds, inner.seconds], [0.75, 0.5]);
  assert.deepEqual([model.worst.error, inner.worst.error], [0.1, 1e-9]);
});

test("a node takes as long as the slowest of its findings", () => {
  const findings = [0.5, 2, null].map((seconds) => ({ value: "y", status: "same", error: 0, seconds }));
  assert.equal(pageData({ nodes: chain(1), findings }).main.nodes[0].seconds, 2);
});

test("a node is constant if it depends on nothing but weights", () => {
  const nodes = [
    { inputs: ["w"], outputs: ["t"], op: "Transpose" },
    { inputs: ["t"], outputs: ["u"], op: "Cast" },
    { inputs: [], outputs: ["c"], op: "Constant" },
    { inputs: [], outputs: ["r"], op: "RandomNormal" },
    { inputs: ["x", "u", "c", "r"], outputs: ["y"] },
    { inputs: ["w"], outputs: ["z"], op: "Identity" },
  ];
  const { main } = pageData({ weights: ["w"], outputs: ["y", "z"], nodes });
  assert.deepEqual(
    main.nodes.map((node) => node.constant),
    [true, true, true, false, false, false],
  );
});

test("a fused node has all its origins as counterparts", () => {
  const before = { role: "before", nodes: chain(3, (index) => ({ name: `n${index}` })) };
  const nodes = [
    { name: "fused", inputs: ["x"], outputs: ["v"], origins: ["n0", "n1", "gone"] },
    { name: "n2", inputs: ["v"], outputs: ["y"] },
  ];
  const data = pageData({ nodes }, before);
  assert.deepEqual(
    data.main.nodes.map((node) => names(node.counterparts)),
    [["n0", "n1"], ["n2"]],
  );
  assert.deepEqual(
    data.before.nodes.map((node) => names(node.counterparts)),
    [["fused"], ["fused"], ["n2"]],
  );
});

test("groups with the same path are counterparts", () => {
  const groups = [{ path: "model", name: "model", type: "Model" }];
  const nodes = chain(1, () => ({ group: 0 }));
  const data = pageData({ groups, nodes }, { role: "before", groups, nodes });
  assert.deepEqual(data.main.groups[0].counterparts, data.before.groups);
});

test("the first divergence is the one that is marked, else the first in the order of execution", () => {
  const nodes = chain(3);
  const diverged = (value, first) => ({ value, status: "different", error: 1, first });
  const marked = pageData({ nodes, findings: [diverged("v1", false), diverged("v2", true)] });
  const unmarked = pageData({ nodes, findings: [diverged("y", false), diverged("v1", false)] });
  assert.equal(marked.firstDivergence.value.name, "v2");
  assert.equal(unmarked.firstDivergence.value.name, "v1");
  assert.equal(pageData({ nodes }).firstDivergence, null);
});

test("a divergence is worse than a value that was not compared, and that is worse than an error", () => {
  const findings = [
    { value: "v1", status: "same", error: 0.5 },
    { value: "v2", status: "no value" },
    { value: "v3", status: "different", error: 1e-9 },
    { value: "v4", status: "different", error: 1e9 },
    { value: "y", status: "different", error: "NaN" },
  ];
  const rising = pageData({ nodes: chain(5), findings }).findings;
  for (const [index, finding] of rising.entries()) {
    assert.equal(worseOf(finding, null), finding);
    for (const other of rising.slice(index + 1)) {
      assert.equal(worseOf(finding, other), other);
      assert.equal(worseOf(other, finding), other);
    }
  }
});

test("numbers that JSON does not have are texts", () => {
  assert.equal(parseNumber("9223372036854775809"), 9223372036854775809n);
  assert.equal(parseNumber("-Infinity"), -Infinity);
  assert.ok(Number.isNaN(parseNumber("NaN")));
  assert.equal(parseNumber(0.5), 0.5);
  assert.equal(parseNumber(undefined), null);
});

test("the type of a value says what is known", () => {
  assert.equal(typeLabel({ dtype: "float32", shape: ["1", "n"] }), "float32[1, n]");
  assert.equal(typeLabel({ dtype: "", shape: ["2"] }), "?[2]");
  assert.equal(typeLabel({ dtype: "int8", shape: null }), "int8[?]");
  assert.equal(typeLabel({ dtype: "", shape: null }), "");
});

test("a divergence affects what diverges after it, through values that were not compared", () => {
  const nodes = [
    ...chain(4, (index) => ({ name: `n${index}` })).slice(0, 3),
    { name: "unknown", inputs: ["v3"], outputs: ["u"] },
    { name: "late", inputs: ["u"], outputs: ["y"] },
    { name: "right", inputs: ["v1"], outputs: ["r"] },
    { name: "behind", inputs: ["r"], outputs: ["b"] },
    { name: "blind", inputs: ["v1"], outputs: ["nowhere"] },
  ];
  const different = (value) => ({ value, status: "different", error: 1 });
  const findings = [
    ...["v1", "v2", "v3", "y", "b"].map(different),
    { value: "r", status: "same", error: 0 },
    { value: "nowhere", status: "no value" },
  ];
  const { main } = pageData({ nodes, findings });
  const affected = names(affectedNodes(main.nodes[0])).sort();
  assert.deepEqual(affected, ["late", "n0", "n1", "n2", "unknown"]);
});

test("the verdict is different if any value differs, else what the comparison says", () => {
  const verdict = (close, status) =>
    pageData({ nodes: chain(1), close, findings: status ? [{ value: "y", status }] : [] }).verdict;
  assert.equal(verdict(true, "same"), "close");
  assert.equal(verdict(false, "different"), "different");
  assert.equal(verdict(undefined, "shape or dtype differs"), "different");
  assert.equal(verdict(false, "no value"), "not close");
  assert.equal(verdict(undefined, "same"), null);
});

test("constants are told apart from what is computed from weights, and know the operations that read them", () => {
  const nodes = [
    { name: "two", op: "Constant", inputs: [], outputs: ["a"] },
    { name: "cast", inputs: ["a"], outputs: ["b"] },
    { name: "transposed", inputs: ["w", "b"], outputs: ["t"] },
    { name: "last", inputs: ["x", "t", "b"], outputs: ["y"] },
  ];
  const { main } = pageData({ weights: ["w"], nodes });
  const kinds = main.nodes.map((node) => node.constant && node.constantKind);
  assert.deepEqual(kinds, ["constants", "constants", "weights", false]);
  assert.deepEqual(names(readersOfConstant(main.nodes[0])), ["last"]);
});
