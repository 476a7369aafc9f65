import assert from "node:assert/strict";
import { test } from "node:test";
import { limitLabelWidths, openInitialGroups, Scene } from "../src/scene.js";
import { chain, pageData } from "./graphs.js";

const NOTHING = { tensors: false, weights: false, constants: false };
const groups = [
  { path: "model", name: "model", type: "Model" },
  { parent: 0, path: "model.a", name: "a", type: "A" },
  { parent: 0, path: "model.b", name: "b", type: "B" },
];
/** Two nodes in each of two modules of a model, and one behind it. */
const layers = { groups, nodes: chain(5, (index) => ({ name: `n${index}`, group: [1, 1, 2, 2, null][index] })) };

const drawn = (scene) => scene.arrange().boxes.map((box) => `${box.kind} ${box.item.name}`);
const near = (one, other) => Math.hypot(one[0] - other[0], one[1] - other[1]) < 1e-6;
const inside = (a, b) => a.x > b.x && a.y > b.y && a.x + a.w < b.x + b.w && a.y + a.h < b.y + b.h;

test("a closed group is one box for all that it holds", () => {
  const scene = new Scene(pageData(layers).main, NOTHING);
  assert.deepEqual(drawn(scene), ["group model", "value x", "node n4", "value y"]);
  assert.equal(scene.arrange().edges.length, 3);
});

test("an opened group holds its boxes, below its heading", () => {
  const { main } = pageData(layers);
  const scene = new Scene(main, NOTHING);
  scene.toggle(main.groups[0]);
  scene.toggle(main.groups[1]);
  const { boxes, boxOf } = scene.arrange();
  assert.deepEqual(
    boxes.map((box) => `${box.kind} ${box.item.name}`),
    ["open model", "open a", "node n0", "node n1", "group b", "value x", "node n4", "value y"],
  );
  const [model, a, n0, n1, b] = boxes;
  assert.ok(inside(a, model) && inside(b, model) && inside(n0, a) && inside(n1, a));
  assert.ok(n0.y >= a.y + 32);
  assert.equal(boxOf.get(main.nodes[0]), n0);
  scene.toggle(main.groups[0], false);
  assert.deepEqual(drawn(scene), ["group model", "value x", "node n4", "value y"]);
});

test("an edge into an opened group is continued inside from where it enters", () => {
  const { main } = pageData(layers);
  const scene = new Scene(main, NOTHING);
  scene.toggle(main.groups[0]);
  const { edges, boxOf } = scene.arrange();
  const model = boxOf.get(main.groups[0]);
  const [inner, outer] = edges.filter((edge) => edge.value.name === "x");
  const [x, y] = [outer.runs.at(-1)[3], outer.runs.at(-1)[5]];
  assert.deepEqual(outer.heads, []);
  assert.equal(y, model.y);
  assert.ok(Math.abs(inner.runs[0][0] - x) < 1e-6);
  assert.equal(inner.runs[0][1], y);
  assert.equal(inner.heads.length, 1);
  const leaving = edges.filter((edge) => edge.value.name === "v4");
  assert.ok(leaving.some((edge) => Math.abs(edge.runs.at(-1)[5] - (model.y + model.h)) < 1e-6));
});

/** A node whose two outputs two others read, in groups with long and with short names, and one that reads both. */
const fork = {
  groups: [{ path: "a", name: "a".repeat(40), type: "A" }, groups[1], groups[2]].map((group) => ({
    ...group,
    parent: null,
  })),
  weights: ["w"],
  nodes: [
    { name: "source", inputs: ["x"], outputs: ["p", "q"], group: 0 },
    { name: "left", inputs: ["p", "w"], outputs: ["l"], group: 1 },
    { name: "right", inputs: ["q"], outputs: ["r"], group: 1 },
    { name: "sum", inputs: ["l", "r"], outputs: ["y"], group: 2 },
  ],
};

test("edges lead from below their sources to the tops of what reads them, through borders only", () => {
  const { main } = pageData(fork);
  const scene = new Scene(main, { tensors: true, weights: true });
  const cases = [
    { open: [], reads: 6 },
    { open: [0], reads: 8 },
    { open: [1], reads: 9 },
    { open: [0, 1, 2], reads: 11 },
  ];
  for (const { open, reads } of cases) {
    for (const group of main.groups) scene.toggle(group, open.includes(group.id));
    const { boxes, edges, width, height } = scene.arrange();
    const solid = boxes.filter((box) => box.kind !== "open");
    const opened = boxes.filter((box) => box.kind === "open");
    for (const box of boxes) assert.ok(inside(box, { x: 0, y: 0, w: width, h: height }), `${box.item.name} is outside`);
    const within = (x, box) => x >= box.x && x <= box.x + box.w;
    for (const { runs, heads, bounds } of edges) {
      const [[x, y]] = runs;
      const starts = solid.some((box) => within(x, box) && Math.abs(box.y + box.h - y) < 1e-6);
      const continues = edges.some(({ runs: others }) => others.some((run) => near([run[3], run[5]], [x, y])));
      assert.ok(starts || continues, "an edge begins nowhere");
      for (const [headX, headY] of heads) {
        assert.ok(solid.some((box) => within(headX, box) && Math.abs(box.y - headY) < 1e-6));
      }
      const corners = runs.flatMap((run) => [
        [run[0], run[1]],
        [run[3], run[5]],
      ]);
      for (const [cornerX, cornerY] of corners) {
        assert.ok(
          cornerX >= bounds.left && cornerX <= bounds.right && cornerY >= bounds.top && cornerY <= bounds.bottom,
        );
      }
      assert.ok(
        corners.some(([cornerX]) => cornerX === bounds.left) && corners.some(([cornerX]) => cornerX === bounds.right),
      );
    }
    assert.equal(edges.flatMap((edge) => edge.heads).length, reads);
    assert.equal(opened.length, open.length);
  }
});

test("a type is written where one value leaves a box, and not where several do", () => {
  const { main } = pageData(fork);
  const scene = new Scene(main, NOTHING);
  scene.toggle(main.groups[0]);
  scene.toggle(main.groups[1]);
  const { edges, boxOf } = scene.arrange();
  const labels = new Map(edges.filter((edge) => edge.label).map((edge) => [edge.value.name, edge.label]));
  assert.deepEqual([...labels.keys()].sort(), ["l", "r", "x", "y"]);
  const left = boxOf.get(main.nodes[1]);
  assert.equal(labels.get("l")[1], left.y + left.h);
  const sum = boxOf.get(main.groups[2]);
  assert.equal(labels.get("y")[1], sum.y + sum.h + 4); // below the second card of a closed group
});

test("a weight is in the group that all its readers are in", () => {
  const nodes = chain(5, (index) => ({ group: [1, 1, 2, 2, null][index] }));
  nodes[0].inputs.push("only in a");
  nodes[1].inputs.push("only in a", "in both");
  nodes[3].inputs.push("in both", "everywhere");
  nodes[4].inputs.push("everywhere");
  const { main } = pageData({ groups, nodes, weights: ["only in a", "in both", "everywhere", "unused"] });
  const scene = new Scene(main, { tensors: false, weights: true });
  const places = [...scene.leafOf.values()]
    .filter((leaf) => leaf.role === "parameter")
    .map((leaf) => [leaf.item.name, leaf.groupPath.map((group) => group.name).join(" ")]);
  assert.deepEqual(places, [
    ["only in a", "model a"],
    ["in both", "model"],
    ["everywhere", ""],
  ]);
});

test("an item is revealed by opening the groups around it, and only these", () => {
  const { main } = pageData(layers);
  const scene = new Scene(main, NOTHING);
  assert.equal(scene.reveal(main.groups[2]), true);
  assert.deepEqual([...scene.open], [main.groups[0]]);
  assert.equal(scene.reveal(main.values.find((value) => value.name === "v3")), true);
  assert.deepEqual([...scene.open], [main.groups[0], main.groups[2]]);
  assert.equal(scene.reveal(main.nodes[2]), false);
});

test("values and weights are drawn on request", () => {
  const nodes = [
    { name: "n", inputs: ["x", "t"], outputs: ["v"] },
    { name: "transposed", inputs: ["w"], outputs: ["t"] },
    { name: "last", inputs: ["v"], outputs: ["y"] },
  ];
  const scene = new Scene(pageData({ weights: ["w"], nodes }).main, NOTHING);
  assert.deepEqual(drawn(scene), ["value x", "node n", "node last", "value y"]);
  scene.show({ tensors: true, weights: false });
  assert.deepEqual(drawn(scene), ["value x", "node n", "node last", "value v", "value y"]);
  scene.show({ tensors: false, weights: true });
  assert.deepEqual(drawn(scene), ["value x", "node n", "node transposed", "node last", "value w", "value y"]);
});

test("constants are boxes on request only, whatever else is shown", () => {
  const nodes = [
    { name: "two", op: "Constant", inputs: [], outputs: ["a"] },
    { name: "power", inputs: ["x", "a"], outputs: ["y"] },
  ];
  const scene = new Scene(pageData({ nodes }).main, NOTHING);
  const without = ["value x", "node power", "value y"];
  assert.deepEqual(drawn(scene), without);
  scene.show({ tensors: true, weights: true, constants: false });
  assert.deepEqual(drawn(scene), without);
  scene.show({ tensors: false, weights: false, constants: true });
  assert.deepEqual(drawn(scene), ["value x", "node two", "node power", "value y"]);
  assert.equal(scene.arrange().edges.length, 3);
});

test("a box names the weights that it reads, unless they are drawn", () => {
  const nodes = [
    { inputs: ["model.proj.weight"], outputs: ["t"], op: "Transpose" },
    { inputs: ["x", "t", "model.proj.bias"], outputs: ["y"], op: "Gemm" },
  ];
  const scene = new Scene(pageData({ weights: ["model.proj.weight", "model.proj.bias"], nodes }).main, NOTHING);
  const lines = () => {
    const box = scene.arrange().boxes.find(({ item }) => item.op === "Gemm");
    return box.lines.map(([text]) => text);
  };
  assert.deepEqual(lines(), ["Gemm", "node of y", "weight 1×8  ·  bias 1×8"]);
  scene.show({ tensors: false, weights: true });
  assert.deepEqual(lines(), ["Gemm", "node of y"]);
});

test("an input that is an output has two boxes", () => {
  const { boxes, edges } = new Scene(pageData({ outputs: ["x"], nodes: [] }).main, NOTHING).arrange();
  assert.deepEqual(
    boxes.map((box) => box.role),
    ["input", "output"],
  );
  assert.equal(edges.length, 1);
});

test("the first view opens what is alone, then what is small", () => {
  const scene = new Scene(pageData(layers).main, NOTHING);
  openInitialGroups(scene);
  assert.equal(scene.open.size, 3);

  const few = groups.concat({ parent: 0, path: "model.c", name: "c", type: "C" });
  const sizes = new Scene(
    pageData({ groups: few, nodes: chain(60, (index) => ({ group: index < 12 ? 1 : index < 14 ? 2 : 3 })) }).main,
    NOTHING,
  );
  openInitialGroups(sizes);
  assert.deepEqual([...sizes.open].map((group) => group.name).sort(), ["a", "b", "model"]);

  const large = Array.from({ length: 100 }, (_, index) => ({
    path: `l.${index}`,
    name: `l.${index}`,
    type: "L",
    parent: 0,
  }));
  const nodes = chain(200, (index) => ({ group: 1 + (index >> 1) }));
  const wide = new Scene(pageData({ groups: [groups[0], ...large], nodes }).main, NOTHING);
  openInitialGroups(wide);
  assert.equal(wide.open.size, 0);
});

test("a group with one operation stays closed", () => {
  const nodes = chain(1, () => ({ group: 0 }));
  const scene = new Scene(pageData({ groups: groups.slice(0, 1), nodes }).main, NOTHING);
  openInitialGroups(scene);
  assert.equal(scene.open.size, 0);
});

test("labels side by side end before the next one begins", () => {
  const edge = (x, y) => ({ label: [x, y], labelWidth: 130 });
  const edges = [edge(100, 0), edge(50, 5), edge(180, 0), edge(110, 50), { label: null, labelWidth: 130 }];
  limitLabelWidths(edges);
  assert.deepEqual(
    edges.map(({ labelWidth }) => labelWidth),
    [76, 46, 130, 130, 130],
  );
});

test("20,000 labels side by side are limited within two seconds", () => {
  const edges = Array.from({ length: 20_000 }, (_, index) => ({ label: [index * 100, index % 7], labelWidth: 130 }));
  const begin = performance.now();
  limitLabelWidths(edges);
  assert.ok(performance.now() - begin < 2000);
  assert.deepEqual(new Set(edges.slice(0, -1).map(({ labelWidth }) => labelWidth)), new Set([96]));
});
