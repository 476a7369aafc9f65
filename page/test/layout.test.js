import assert from "node:assert/strict";
import { test } from "node:test";
import { layoutContainer } from "../src/layout/index.js";
import { crossingsBelow, orderLayers } from "../src/layout/ordering.js";
import { addVirtualNodes, assignRanks, groupByRank } from "../src/layout/ranks.js";

const item = (more = {}) => ({ w: 100, h: 40, ...more });
const items = (size) => Array.from({ length: size }, () => item());
const link = (from, ...to) => ({ key: `${from}`, from, to });
const layoutNode = (of = null) => ({
  item: of,
  w: of?.w ?? 0,
  h: of?.h ?? 0,
  rank: 0,
  index: 0,
  up: [],
  down: [],
  x: 0,
});

function ranked(boxes, links) {
  const nodes = boxes.map(layoutNode);
  assignRanks(nodes, links);
  return nodes;
}

/** The layers of virtual and other nodes, before they are ordered. */
function layered(boxes, links) {
  const nodes = ranked(boxes, links);
  const { virtual, segments } = addVirtualNodes(nodes, links, () => layoutNode());
  const layers = groupByRank([...nodes, ...virtual]);
  for (const layer of layers) layer.forEach((node, index) => (node.index = index));
  return { nodes, virtual, segments, layers };
}

const ranks = (boxes, links) => ranked(boxes, links).map((node) => node.rank);

test("what reads a box is below it", () => {
  assert.deepEqual(ranks(items(4), [link(0, 1, 3), link(1, 2), link(2, 3)]), [0, 1, 2, 3]);
});

test("a box that only gives moves down to what reads it", () => {
  assert.deepEqual(ranks(items(4), [link(0, 1), link(1, 2), link(3, 2)]), [0, 1, 2, 1]);
});

test("pins are in the first and in the last layer", () => {
  const boxes = [item(), item({ pin: "bottom" }), item({ pin: "top" }), item()];
  assert.deepEqual(ranks(boxes, [link(2, 0), link(0, 1), link(0, 3)]), [1, 3, 0, 2]);
});

test("boxes of a cycle are laid out, and so is what is before it", () => {
  const boxes = items(4);
  const { routes } = layoutContainer(boxes, [link(0, 1), link(1, 2), link(2, 1), link(2, 3)]);
  assert.equal(routes.length, 4);
  for (const { x, y } of boxes) assert.ok(Number.isFinite(x) && Number.isFinite(y));
});

test("all readers of a link share its virtual nodes", () => {
  const links = [link(0, 1, 3, 4), link(1, 2), link(2, 3), link(3, 4)];
  const { virtual, segments, nodes } = layered(items(5), links);
  assert.equal(virtual.length, 3);
  assert.deepEqual(
    segments[0].map(({ above, below }) => [above.rank, below.rank, nodes.indexOf(below)]),
    [
      [0, 1, 1],
      [0, 1, -1],
      [1, 2, -1],
      [2, 3, 3],
      [2, 3, -1],
      [3, 4, 4],
    ],
  );
});

test("with too many virtual nodes, the longest links are left out", () => {
  const size = 1000;
  const links = Array.from({ length: size - 1 }, (_, index) => link(index, index + 1, size - 1));
  const { virtual, segments } = layered(items(size), links);
  assert.ok(virtual.length > 0 && virtual.length <= 40_000, `${virtual.length}`);
  assert.equal(segments[0].length, 1);
  assert.ok(segments[size - 20].length > 2);
});

test("crossings are counted", () => {
  const complete = [0, 1, 2].map((from) => link(from, 3, 4, 5));
  assert.equal(crossingsBelow(layered(items(6), complete).layers[0]), 9);
  const straight = [link(0, 3), link(1, 4), link(2, 5)];
  assert.equal(crossingsBelow(layered(items(6), straight).layers[0]), 0);
  const reversed = [link(0, 5), link(1, 4), link(2, 3)];
  assert.equal(crossingsBelow(layered(items(6), reversed).layers[0]), 3);
});

test("crossings that an order avoids are avoided", () => {
  const links = [link(0, 5), link(1, 4), link(2, 3), link(3, 8), link(4, 7), link(5, 6)];
  const { layers } = layered(items(9), links);
  assert.ok(layers.reduce((sum, layer) => sum + crossingsBelow(layer), 0) > 0);
  const ordered = orderLayers(layers);
  assert.equal(
    ordered.reduce((sum, layer) => sum + crossingsBelow(layer), 0),
    0,
  );
});

/** Boxes and links at random, the same each time: most links are short. */
function random(size) {
  let seed = 1;
  const next = (below) => (seed = (seed * 48271) % 2147483647) % below;
  const boxes = Array.from({ length: size }, () => item({ w: 60 + next(120), h: 30 + next(30) }));
  const links = boxes.slice(1).map((_, index) => {
    const to = Math.min(size - 1, index + 1 + next(4));
    return next(5) ? link(index, to) : link(index, to, index + 1 + next(size - index - 1));
  });
  return [boxes, links];
}

test("boxes do not overlap, and lie in the width and height of the container", () => {
  const [boxes, links] = random(120);
  const { width, height } = layoutContainer(boxes, links);
  for (const [index, one] of boxes.entries()) {
    assert.ok(one.x - one.w / 2 > -1e-6 && one.x + one.w / 2 < width + 1e-6, "x");
    assert.ok(one.y >= 0 && one.y + one.h < height + 1e-6, "y");
    for (const other of boxes.slice(0, index)) {
      const beside = Math.abs(one.x - other.x) > (one.w + other.w) / 2 + 10;
      const above = one.y + one.h <= other.y || other.y + other.h <= one.y;
      assert.ok(beside || above);
    }
  }
});

test("a graph at random is drawn no worse than when this test was written", () => {
  const [boxes, links] = random(120);
  const ordered = orderLayers(layered(boxes, links).layers);
  const crossings = ordered.reduce((sum, layer) => sum + crossingsBelow(layer), 0);
  const { routes, width } = layoutContainer(boxes, links);
  const sideways = routes.flatMap(({ runs }) => runs).reduce((sum, [x1, , , x2]) => sum + Math.abs(x1 - x2), 0);
  assert.ok(crossings <= 56, `${crossings} crossings`);
  assert.ok(sideways < 24_220, `${sideways} to the side`);
  assert.ok(width < 1790, `${width} wide`);
});

test("a chain is straight beside a link that passes it", () => {
  const boxes = items(5);
  layoutContainer(boxes, [link(0, 1, 3), link(1, 2), link(2, 3), link(3, 4)]);
  assert.deepEqual(new Set(boxes.slice(1, 3).map((box) => box.x)).size, 1);
  for (const box of boxes) assert.ok(Math.abs(box.x - boxes[1].x) < 40);
});

test("what two boxes read, or give, is in their middle", () => {
  const boxes = items(4);
  layoutContainer(boxes, [link(0, 1, 2), link(1, 3), link(2, 3)]);
  const middle = (boxes[1].x + boxes[2].x) / 2;
  assert.ok(Math.abs(boxes[0].x - middle) < 1 && Math.abs(boxes[3].x - middle) < 15);
});

test("links enter and leave a container in its middle", () => {
  const boxes = [item({ w: 0, h: 0, pin: "top" }), item(), item({ w: 300 }), item({ w: 0, h: 0, pin: "bottom" })];
  const { width } = layoutContainer(boxes, [link(0, 1, 2), link(1, 3)]);
  assert.equal(boxes[0].x, boxes[3].x);
  assert.ok(Math.abs(boxes[0].x - width / 2) < width / 4, `${boxes[0].x} of ${width}`);
});

test("the same graph is always laid out in the same way", () => {
  const [one, other] = [random(80), random(80)];
  assert.deepEqual(layoutContainer(...one).routes, layoutContainer(...other).routes);
  assert.deepEqual(one, other);
});

test("routes go from box to box without a gap", () => {
  const [boxes, links] = random(60);
  for (const { link: given, runs, ends } of layoutContainer(boxes, links).routes) {
    const source = boxes[given.from];
    assert.equal(runs[0][1], source.y + source.h);
    for (const [x, y, reached] of ends) {
      assert.ok(given.to.includes(boxes.indexOf(reached)));
      assert.equal(y, reached.y);
      assert.ok(Math.abs(x - reached.x) <= reached.w / 2);
    }
    const starts = new Set([`${runs[0][0]} ${runs[0][1]}`, ...runs.map((run) => `${run[3]} ${run[5]}`)]);
    for (const run of runs) assert.ok(starts.has(`${run[0]} ${run[1]}`));
  }
});

test("a chain is a straight line", () => {
  const boxes = [item(), item({ w: 160 }), item({ w: 70 })];
  layoutContainer(boxes, [link(0, 1), link(1, 2)]);
  assert.deepEqual(new Set(boxes.map((box) => box.x)), new Set([80]));
});

test("links leave a box side by side, and enter an opened group at its ports", () => {
  const ports = { into: new Map([["0", -30]]), out: new Map() };
  const boxes = [item(), item({ ports }), item()];
  const links = [
    { key: "0", from: 0, to: [1] },
    { key: "1", from: 0, to: [2] },
  ];
  const { routes } = layoutContainer(boxes, links);
  assert.notEqual(routes[0].runs[0][0], routes[1].runs[0][0]);
  assert.equal(routes[0].ends[0][0], boxes[1].x - 30);
});

test("nothing is laid out as nothing", () => {
  assert.deepEqual(layoutContainer([], []), { width: 0, height: 0, routes: [] });
});

test("2,000 boxes are laid out within two seconds", () => {
  const [boxes, links] = random(2000);
  const begin = performance.now();
  layoutContainer(boxes, links);
  assert.ok(performance.now() - begin < 2000);
});
