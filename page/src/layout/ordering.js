// The order of the nodes in each layer, so that few segments cross.

import { largest } from "../numbers.js";

/** @import { LayoutNode, Segment } from "./index.js" */

const LARGE = 4000; // nodes

/**
 * The layers in the order with the fewest crossings that some sweeps down and up find. Each sweep sorts a layer by the
 * mean position of what its nodes are connected to in the layer before.
 * @param {LayoutNode[][]} layers
 */
export function orderLayers(layers) {
  const size = layers.reduce((sum, layer) => sum + layer.length, 0);
  layers.forEach(setIndices);
  let best = layers;
  let least = Infinity;
  for (let sweep = 0; sweep < (size > LARGE ? 4 : 12) && least > 0; sweep++) {
    const down = sweep % 2 === 0;
    for (const layer of down ? layers : layers.toReversed()) sortByMean(layer, down);
    const crossings = layers.reduce((sum, layer) => sum + crossingsBelow(layer), 0);
    if (crossings < least) [best, least] = [layers.map((layer) => [...layer]), crossings];
  }
  best.forEach(setIndices);
  return best;
}

/** @param {LayoutNode[]} layer */
function setIndices(layer) {
  layer.forEach((node, index) => (node.index = index));
}

/**
 * @param {LayoutNode[]} layer
 * @param {boolean} down
 */
function sortByMean(layer, down) {
  const mean = (/** @type {LayoutNode} */ node) => {
    const segments = down ? node.up : node.down;
    if (!segments.length) return node.index;
    return segments.reduce((sum, segment) => sum + farEnd(segment, down), 0) / segments.length;
  };
  const means = new Map(layer.map((node) => [node, mean(node)]));
  const meanOf = (/** @type {LayoutNode} */ node) => /** @type {number} */ (means.get(node));
  layer.sort((a, b) => meanOf(a) - meanOf(b) || a.index - b.index);
  setIndices(layer);
}

/**
 * The position of a segment's upper end, or of its lower end, in units of nodes. The ports of an opened group count as
 * positions inside that node.
 * @param {Segment} segment
 * @param {boolean} upper
 */
function farEnd(segment, upper) {
  const node = upper ? segment.above : segment.below;
  return node.index + (node.w ? portOffset(node, segment, upper ? "out" : "into") / node.w : 0) * 0.9;
}

/**
 * How far from a node's middle a segment leaves or enters it. The ports of an opened group are given.
 * @param {LayoutNode} node
 * @param {Segment} segment
 * @param {"into" | "out"} side
 */
function portOffset(node, segment, side) {
  return node.item?.ports ? (node.item.ports[side].get(segment.link.key) ?? 0) : segment[side];
}

/**
 * The number of crossings between a layer and the next one (Barth, Jünger and Mutzel 2002).
 * @param {LayoutNode[]} layer
 */
export function crossingsBelow(layer) {
  const segments = layer.flatMap((node) => node.down);
  if (segments.length < 2) return 0;
  segments.sort((a, b) => farEnd(a, true) - farEnd(b, true) || farEnd(a, false) - farEnd(b, false));
  const size = largest(segments.map((segment) => segment.below.index)) + 2;
  const tree = new Int32Array(size + 1); // a Fenwick tree: how many segments end at or before each place
  let crossings = 0;
  segments.forEach((segment, before) => {
    let notRight = 0;
    for (let at = segment.below.index + 1; at > 0; at -= at & -at) notRight += tree[at];
    crossings += before - notRight;
    for (let at = segment.below.index + 1; at <= size; at += at & -at) tree[at] += 1;
  });
  return crossings;
}

/**
 * Sets where segments leave and enter each node: side by side, in the order of their other ends.
 * @param {LayoutNode[]} nodes
 */
export function assignPorts(nodes) {
  for (const node of nodes) {
    for (const side of /** @type {const} */ (["into", "out"])) {
      const up = side === "into";
      const segments = up ? node.up : node.down;
      /** One port for each link: several readers share it. @type {Map<object, number>} */
      const ports = new Map();
      for (const { link } of segments.toSorted((a, b) => farEnd(a, up) - farEnd(b, up))) {
        if (!ports.has(link)) ports.set(link, ports.size);
      }
      const width = Math.min(node.w * 0.7, 22 * (ports.size - 1));
      const step = ports.size > 1 ? width / (ports.size - 1) : 0;
      for (const segment of segments) {
        const port = /** @type {number} */ (ports.get(segment.link));
        segment[side] = node.item?.ports ? portOffset(node, segment, side) : port * step - width / 2;
      }
    }
  }
}
