// The layer of each node, and virtual nodes for the links that pass layers.

import { largest, smallest } from "../numbers.js";

/** @import { LayoutNode, Link, Segment } from "./index.js" */

const MOST_VIRTUAL = 40_000; // with more, the longest links are left out: nobody could follow them

/**
 * Sets the `rank` of each node: links go down where the graph has no cycle.
 * @param {LayoutNode[]} nodes
 * @param {Link[]} links
 */
export function assignRanks(nodes, links) {
  const readers = nodes.map(() => /** @type {Set<number>} */ (new Set()));
  const sources = nodes.map(() => /** @type {Set<number>} */ (new Set()));
  const outgoing = nodes.map(() => 0);
  for (const link of links) {
    outgoing[link.from] += 1;
    for (const to of link.to) {
      readers[link.from].add(to);
      sources[to].add(link.from);
    }
  }
  const first = nodes.some((node) => node.item?.pin === "top") ? 1 : 0;
  for (const node of nodes) node.rank = node.item?.pin === "top" ? 0 : first;
  const waiting = sources.map((set) => set.size);
  const ready = [...nodes.keys()].filter((index) => !waiting[index]);
  for (const index of ready) {
    for (const to of readers[index]) {
      nodes[to].rank = Math.max(nodes[to].rank, nodes[index].rank + 1);
      if (!--waiting[to]) ready.push(to);
    }
  }
  // A node with fewer sources than outgoing links moves down to its readers: fewer links then pass layers.
  for (const index of ready.reverse()) {
    if (nodes[index].item?.pin || !readers[index].size || sources[index].size >= outgoing[index]) continue;
    nodes[index].rank = smallest([...readers[index]].map((to) => nodes[to].rank)) - 1;
  }
  const last = largest(
    nodes.filter((node) => node.item?.pin !== "bottom").map((node) => node.rank),
    0,
  );
  for (const node of nodes) if (node.item?.pin === "bottom") node.rank = last + 1;
}

/**
 * Splits each link into segments between neighboring layers. All readers of a link share its virtual nodes.
 * @param {LayoutNode[]} nodes
 * @param {Link[]} links
 * @param {() => LayoutNode} virtualNode
 * @returns {{ virtual: LayoutNode[], segments: Segment[][] }} the segments of each link
 */
export function addVirtualNodes(nodes, links, virtualNode) {
  const limit = [Infinity, 256, 64, 16, 4].find((most) => countVirtual(nodes, links, most) <= MOST_VIRTUAL) ?? 4;
  /** @type {LayoutNode[]} */
  const virtual = [];
  const segments = links.map((link) => {
    /** @type {Segment[]} */
    const made = [];
    let last = nodes[link.from];
    const length = (/** @type {LayoutNode} */ node) => node.rank - nodes[link.from].rank;
    const goals = link.to
      .map((index) => nodes[index])
      .filter((node) => length(node) > 0 && length(node) <= limit) // links of a cycle that go up are left out
      .sort((a, b) => a.rank - b.rank);
    for (const goal of goals) {
      while (goal.rank > last.rank + 1) {
        const next = virtualNode();
        next.rank = last.rank + 1;
        virtual.push(next);
        made.push(connect(link, last, next));
        last = next;
      }
      made.push(connect(link, last, goal));
    }
    return made;
  });
  return { virtual, segments };
}

/**
 * @param {LayoutNode[]} nodes
 * @param {Link[]} links
 * @param {number} limit
 */
function countVirtual(nodes, links, limit) {
  return links.reduce((sum, link) => {
    const lengths = link.to.map((to) => nodes[to].rank - nodes[link.from].rank).filter((length) => length <= limit);
    return sum + Math.max(0, largest(lengths, 0) - 1);
  }, 0);
}

/**
 * @param {Link} link
 * @param {LayoutNode} above
 * @param {LayoutNode} below
 */
function connect(link, above, below) {
  // Straight lines between two boxes matter most by far, and virtual nodes give way to them; next come straight
  // lines between virtual nodes.
  const weight = above.item && below.item ? 1000 : above.item || below.item ? 1 : 4;
  /** @type {Segment} */
  const segment = { link, above, below, out: 0, into: 0, weight };
  above.down.push(segment);
  below.up.push(segment);
  return segment;
}

/**
 * The layers from the top.
 * @param {LayoutNode[]} nodes
 */
export function groupByRank(nodes) {
  /** @type {LayoutNode[][]} */
  const layers = [];
  for (const node of nodes) (layers[node.rank] ??= []).push(node);
  return Array.from(layers, (layer) => layer ?? []);
}
