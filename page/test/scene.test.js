import assert from "node:assert/strict";
import { test } from "node:test";
import { limitLabelWidths, openInitialGroups, Scene } from "../src/scene.js";
import { chain, pageData } from "./graphs.js";

const NOTHING = { tensors: false, weights: false };
const groups = [
  { path: "model", name: "model", type: "Model" },
  { parent: 0, path: "model.a", name: "a", type: "A" },
  { parent: 0, path: "model.b", name: "b", type: "B" },
];
/** Two nodes in each of two modules of a model, and one behind it. */
const layers = { groups, nodes: chain(5, (index) => ({ name: `n${index}`, group: [1, 1, 2, 2, null][index] })) };

const drawn = (scene) => scene.arrange().boxes.map((box) => `${box.kind} ${box.item.name}`);
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
  const edges = [edge(100, 0), edge(50, 5), edge(300, 0), edge(110, 50), { label: null, labelWidth: 130 }];
  limitLabelWidths(edges);
  assert.deepEqual(
    edges.map(({ labelWidth }) => labelWidth),
    [130, 46, 130, 130, 130],
  );
});
