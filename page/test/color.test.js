import assert from "node:assert/strict";
import { test } from "node:test";
import { Colors, operatorFamily, operatorName, Scale } from "../src/color.js";
import { chain, pageData } from "./graphs.js";

test("operators have families, whatever their domain is", () => {
  const families = {
    LayerNormalization: "norm",
    "com.microsoft::FusedMatMul": "compute",
    Conv: "compute",
    "aten::convert_element_type": "cast",
    Gelu: "activation",
    Transpose: "layout",
    ReduceSum: "reduce",
    Add: "arithmetic",
    Loop: "other",
  };
  for (const [op, family] of Object.entries(families)) assert.equal(operatorFamily(op), family, op);
  assert.equal(operatorName("pkg::inner::Gelu"), "Gelu");
});

test("a scale is logarithmic, and its legend says where it begins and ends", () => {
  const scale = new Scale("error", 4, [1e-4, 1e-2, 1]);
  assert.deepEqual(
    [1e-4, 5e-4, 2e-3, 0.05, 0.5, 1, NaN, Infinity].map((error) => scale.classOf(error)),
    ["error-0", "error-0", "error-1", "error-2", "error-3", "error-3", "error-3", "error-3"],
  );
  assert.deepEqual(scale.legend(), [
    ["error-0", "1e-4"],
    ["error-1", ""],
    ["error-2", ""],
    ["error-3", "1"],
  ]);
});

test("a scale of one error has one step, of no errors none", () => {
  assert.deepEqual(new Scale("error", 4, [0.5]).legend(), [["error-3", "0.5"]]);
  assert.deepEqual(new Scale("error", 4, []).legend(), []);
});

test("errors below a hundred-millionth of the largest share the first step", () => {
  const scale = new Scale("error", 2, [1e-300, 1]);
  assert.equal(scale.low, 1e-8);
  assert.equal(scale.classOf(1e-300), "error-0");
  assert.equal(scale.classOf(1e-3), "error-1");
});

test("the first mode is the one that says most", () => {
  const nodes = chain(1);
  const modes = (findings) => new Colors(pageData({ nodes, findings }));
  assert.equal(modes([]).mode, "operator");
  assert.deepEqual(modes([]).modes, ["operator", "module"]);
  assert.equal(modes([{ value: "y", status: "no value" }]).mode, "status");
  const timed = modes([{ value: "y", status: "same", error: 0, seconds: 1 }]);
  assert.equal(timed.mode, "error");
  assert.deepEqual(timed.modes, ["operator", "module", "error", "status", "time"]);
});

test("errors of values that are the same and of different ones have scales of their own", () => {
  const findings = [
    { value: "v1", status: "same", error: 0 },
    { value: "v2", status: "same", error: 1e-7 },
    { value: "v3", status: "different", error: 1e-3 },
    { value: "v4", status: "not mapped" },
  ];
  const data = pageData({ nodes: chain(5), findings });
  const colors = new Colors(data);
  assert.deepEqual(
    data.main.nodes.map((node) => colors.classOf(node)),
    ["zero", "calm-3", "error-6", "status-4", "plain"],
  );
  assert.equal(colors.sameScale.high, 1e-7);
  assert.equal(colors.differentScale.high, 1e-3);
  const titles = colors.legend().filter(([kind]) => kind === "words");
  assert.deepEqual(titles, [
    ["words", "same"],
    ["words", "different"],
  ]);
  colors.mode = "status";
  assert.deepEqual(
    data.main.nodes.map((node) => colors.classOf(node)),
    ["status-0", "status-0", "status-1", "status-4", "plain"],
  );
});

test("by operator, nodes and values have the colors of their families and roles", () => {
  const groups = [{ path: "m", name: "m", type: "M" }];
  const { main, findings } = pageData({ groups, nodes: chain(1, () => ({ op: "Conv", group: 0 })) });
  const colors = new Colors({ findings, graphs: [main] });
  const items = [main.nodes[0], main.inputs[0], main.outputs[0], main.groups[0]];
  assert.deepEqual(
    items.map((item) => colors.classOf(item)),
    ["family-compute", "role-input", "role-output", "plain"],
  );
  for (const mode of ["operator", "status", "time"]) {
    colors.mode = mode;
    assert.ok(colors.legend().length >= 4, mode);
  }
});

test("modules have colors at the outermost level with several of them", () => {
  const groups = [
    { path: "model", name: "model", type: "M" },
    { parent: 0, path: "model.a", name: "a", type: "A" },
    { parent: 0, path: "model.b", name: "b", type: "B" },
    { parent: 2, path: "model.b.c", name: "c", type: "C" },
  ];
  const data = pageData({ groups, nodes: chain(4, (index) => ({ group: index })) });
  const colors = new Colors(data);
  colors.mode = "module";
  assert.deepEqual(
    data.main.nodes.map((node) => colors.classOf(node)),
    ["plain", "module-0", "module-1", "module-1"],
  );
});

test("slow nodes stand out from the 70th percentile on, and a group is as slow as its slowest node", () => {
  const size = 101;
  const groups = [{ path: "m", name: "m", type: "M" }];
  const nodes = chain(size, (index) => ({ group: index < 95 ? 0 : null }));
  const findings = nodes.map(({ outputs: [value] }, index) => ({
    value,
    status: "same",
    error: 0,
    seconds: index + 1,
  }));
  const data = pageData({ groups, nodes, findings });
  const colors = new Colors(data);
  colors.mode = "time";
  const counts = {};
  for (const node of data.main.nodes) counts[colors.classOf(node)] = (counts[colors.classOf(node)] ?? 0) + 1;
  assert.deepEqual(counts, { "time-0": 70, "time-1": 20, "time-2": 5, "time-3": 6 });
  assert.equal(colors.classOf(data.main.groups[0]), "time-2");
});
