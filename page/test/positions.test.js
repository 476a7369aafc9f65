import assert from "node:assert/strict";
import { test } from "node:test";
import { chain, pageData } from "./graphs.js";
import { labelStep, PositionColors, positionRows } from "../src/positions.js";

const groups = [
  { path: "model.norm", name: "norm", type: "RMSNorm" },
  { path: "model.mlp", name: "mlp", type: "MLP" },
];
/** Four operations, the first and the third of the norm, with errors at three positions. */
const page = (...positions) => {
  const findings = ["v1", "v2", "v3", "y"].map((value, at) => ({ value, status: "same", positions: positions[at] }));
  findings.push({ value: "y", status: "same", kind: "output", positions: positions[3] });
  return pageData({ nodes: chain(4, (at) => ({ group: at % 2 })), groups, findings });
};
const right = [[1e-7, 0, 2e-7], []];

test("modules are in the order of what they compute last, and outputs come at the end", () => {
  const data = page(right, right, right, right);
  assert.deepEqual(
    positionRows(data, "module").map(({ name }) => name),
    ["model.norm", "model.mlp", "y"],
  );
  assert.deepEqual(
    positionRows(data, "value").map(({ name }) => name),
    ["v1", "v2", "v3", "y", "y"],
  );
});

test("a module has the largest error of its values, and is wrong where one of them is", () => {
  const [norm] = positionRows(page(right, right, [[1e-8, 0.5, 3e-7], [1]], right), "module");
  assert.deepEqual(norm.errors, [1e-7, 0.5, 3e-7]);
  assert.deepEqual([...norm.wrong], [1]);
});

test("a cell shows the first value that is wrong there, else the one that is farthest off", () => {
  const wrong = [
    [0.1, 0.1, 0.2],
    [1, 2],
  ];
  const [norm] = positionRows(page([[0.5, 0.1, 0.1], [2]], right, wrong, right), "module");
  assert.deepEqual(
    [0, 1, 2].map((at) => norm.findingAt(at).value.name),
    ["v1", "v3", "v1"],
  );
});

test("values that were not compared by position have no row", () => {
  assert.deepEqual(
    positionRows(page(null, right, null, null), "module").map(({ name }) => name),
    ["model.mlp"],
  );
  assert.deepEqual(positionRows(page(null, null, null, null), "value"), []);
});

test("what is right and what is wrong have scales of their own; NaN is the worst", () => {
  const wrong = [
    ["NaN", 1e-3, 0],
    [0, 1, 2],
  ];
  const rows = positionRows(page([[1e-8, 1e-5, 0], []], wrong, right, right), "value");
  const colors = new PositionColors(rows);
  assert.deepEqual(
    [0, 1, 2].map((at) => colors.classOf(rows[0], at)),
    ["calm-0", "calm-3", "zero"],
  );
  assert.deepEqual(
    [0, 1, 2].map((at) => colors.classOf(rows[1], at)),
    ["error-6", "error-6", "error-6"],
  );
  assert.deepEqual(
    colors
      .legend()
      .map(([, text]) => text)
      .filter((text) => /[a-z]{4}/.test(text)),
    ["right", "wrong"],
  );
});

test("numbers of positions do not touch", () => {
  assert.deepEqual(
    [34, 13, 6, 1, 0.1].map((width) => labelStep(width, 24)),
    [1, 2, 5, 50, 500],
  );
});
