// The coordinates of ordered layers, and the routes of the links between them.

import { largest } from "../numbers.js";

/** @import { End, LayoutNode, Run, Segment } from "./index.js" */
/** @typedef {[x: number, weight: number]} Wish where a node wants to be, and how much */

const GAP = { box: 24, line: 12 }; // between neighbors in a layer: two boxes, or a line and anything else
const LAYER_GAP = 30; // the least distance between two layers
const LARGE = 4000; // nodes

/**
 * Sets `x` of each node: the weighted median of what it is connected to, as near as its neighbors allow. Sweeps go down
 * and up in turns and end with one down, so that the readers of one value are straight below it.
 * @param {LayoutNode[][]} layers
 */
export function assignX(layers) {
  for (const layer of layers) placeLayer(layer, () => [0, 1e-3]);
  const size = layers.reduce((sum, layer) => sum + layer.length, 0);
  sweep(layers, size > LARGE ? 5 : 13);
  const inner = layers.filter((layer) => !layer.some(isPinned));
  if (!inner.length || inner.length === layers.length) return;
  // Links enter and leave a container in its middle, so that the links between groups in a row are straight.
  const [left, right] = extent(inner);
  for (const layer of layers) if (layer.some(isPinned)) placeLayer(layer, () => [(left + right) / 2, 1]);
  sweep(inner, 3);
}

/**
 * @param {LayoutNode[][]} layers
 * @param {number} times
 */
function sweep(layers, times) {
  // Opened groups align by their middles: aligned by their ports, each of several in a row would be further to the side.
  const out = (/** @type {Segment} */ segment) => (segment.above.item?.ports ? 0 : segment.out);
  const into = (/** @type {Segment} */ segment) => (segment.below.item?.ports ? 0 : segment.into);
  /** @type {(node: LayoutNode) => Wish[]} */
  const fromAbove = (node) => node.up.map((each) => [each.above.x + out(each) - into(each), each.weight]);
  /** @type {(node: LayoutNode) => Wish[]} */
  const fromBelow = (node) => node.down.map((each) => [each.below.x + into(each) - out(each), each.weight]);
  for (let time = 0; time < times; time++) {
    const down = time % 2 === 0;
    const wishes = down ? fromAbove : fromBelow;
    for (const layer of down ? layers : layers.toReversed()) {
      placeLayer(layer, (node) => weightedMedian(wishes(node)) ?? [node.x, 0.05]);
    }
  }
}

/** @param {LayoutNode} node */
function isPinned(node) {
  return Boolean(node.item?.pin);
}

/**
 * The left and the right end of some layers.
 * @param {LayoutNode[][]} layers
 */
function extent(layers) {
  let [left, right] = [Infinity, -Infinity];
  for (const node of layers.flat()) {
    left = Math.min(left, node.x - node.w / 2);
    right = Math.max(right, node.x + node.w / 2);
  }
  return [left, right];
}

/**
 * The weighted median, with the sum of the weights; null of nothing.
 * @param {Wish[]} wishes
 * @returns {Wish | null}
 */
function weightedMedian(wishes) {
  if (!wishes.length) return null;
  wishes.sort((a, b) => a[0] - b[0]);
  const total = wishes.reduce((sum, [, weight]) => sum + weight, 0);
  let sum = 0;
  for (const [index, [x, weight]] of wishes.entries()) {
    sum += weight;
    if (sum === total / 2) return [(x + wishes[index + 1][0]) / 2, total];
    if (sum > total / 2) return [x, total];
  }
  return [wishes[wishes.length - 1][0], total];
}

/**
 * Places the nodes of a layer in their order, far enough apart, as near to their wishes as possible: a least-squares
 * problem, which pooling adjacent violators solves in linear time (Ayer et al. 1955).
 * @param {LayoutNode[]} layer
 * @param {(node: LayoutNode) => Wish} wish
 */
function placeLayer(layer, wish) {
  /** @type {{ x: number, weight: number, nodes: [LayoutNode, number][] }[]} */
  const blocks = [];
  let offset = 0;
  layer.forEach((node, index) => {
    if (index) {
      const left = layer[index - 1];
      offset += (left.w + node.w) / 2 + (left.item && node.item ? GAP.box : GAP.line);
    }
    const [x, weight] = wish(node);
    let block = { x: x - offset, weight, nodes: [/** @type {[LayoutNode, number]} */ ([node, offset])] };
    for (let left = blocks.at(-1); left && left.x >= block.x; left = blocks.at(-1)) {
      blocks.pop();
      const sum = left.weight + block.weight;
      left.x = (left.x * left.weight + block.x * block.weight) / sum;
      left.weight = sum;
      for (const each of block.nodes) left.nodes.push(each);
      block = left;
    }
    blocks.push(block);
  });
  for (const { x, nodes } of blocks) for (const [node, shift] of nodes) node.x = x + shift;
}

/**
 * Sets `y` of each node, and the coordinates of the items. The distance between two layers grows with how far their
 * links go to the side. All coordinates start at 0.
 * @param {LayoutNode[][]} layers
 */
export function assignY(layers) {
  const [left, right] = extent(layers);
  for (const node of layers.flat()) node.x -= left;
  let y = 0;
  let height = 0;
  for (const layer of layers) {
    const tallest = largest(
      layer.map((node) => node.h),
      0,
    );
    height = y + tallest;
    let sideways = 0;
    for (const node of layer) {
      Object.assign(node, { top: y, bottom: height, y: y + (tallest - node.h) / 2 });
      if (node.item) Object.assign(node.item, { x: node.x, y: node.y });
      for (const { out, into, below } of node.down) {
        sideways = Math.max(sideways, Math.abs(node.x + out - below.x - into));
      }
    }
    y = height + LAYER_GAP + Math.min(24, sideways / 16);
  }
  return { width: Math.max(0, right - left), height };
}

/**
 * The route of a link: straight past its own layer, then in a curve to the next one.
 * @param {Segment[]} segments
 * @returns {{ runs: Run[], ends: End[] }}
 */
export function routeLink(segments) {
  /** @type {Run[]} */
  const runs = [];
  /** @type {End[]} */
  const ends = [];
  for (const { above, below, out, into } of segments) {
    const [x1, x2] = [above.x + out, below.x + into];
    const y1 = above.item ? above.y + above.h : above.top;
    const y2 = below.item ? below.y : below.top;
    runs.push([x1, y1, above.bottom, x2, below.top, y2]);
    if (below.item) ends.push([x2, y2, below.item]);
  }
  return { runs, ends };
}
