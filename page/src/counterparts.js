// What an item became in the compiled graph, or was in the exported one; or where it is in another implementation.

/** @import { Graph, GraphNode, Group, Item } from "./model.js" */
/**
 * @typedef {object} Followed
 * @property {(GraphNode | Group)[]} items of the other graph; empty if nothing is known
 * @property {boolean} folded whether the other graph has no such node, and these compute what reads its result
 */

/**
 * Links the nodes and groups of a graph with those that they were made of.
 * @param {Graph} graph
 * @param {Graph} before
 */
export function linkCounterparts(graph, before) {
  for (const node of graph.nodes) {
    for (const origin of node.origins.length ? node.origins : [node.name]) {
      const other = before.nodeByName.get(origin);
      if (!other) continue;
      node.counterparts.push(other);
      other.counterparts.push(node);
    }
  }
  const groups = new Map(before.groups.map((group) => [group.path + group.name, group]));
  for (const group of graph.groups) {
    const other = groups.get(group.path + group.name);
    if (!other) continue;
    group.counterparts.push(other);
    other.counterparts.push(group);
  }
}

/**
 * Finds the values of another implementation that the findings of either name.
 * @param {Graph} graph
 * @param {Graph} reference
 */
export function linkPlaces(graph, reference) {
  for (const [own, other] of [
    [graph, reference],
    [reference, graph],
  ]) {
    const values = new Map(other.values.map((value) => [value.name, value]));
    for (const finding of own.findings) {
      for (const [name, order] of finding.places) {
        const value = values.get(name);
        if (value) finding.links.push({ value, order });
      }
    }
  }
}

/**
 * What stands for an item in the other graph. For a node that is not there, because it was folded into a constant or
 * removed, these are the next nodes that read its result.
 * @param {Item} item
 * @returns {Followed}
 */
export function follow(item) {
  if (item.kind === "value") return item.producer ? follow(item.producer) : followReaders(item.readers);
  if (item.counterparts.length) return { items: item.counterparts, folded: false };
  if (item.kind === "node") return followReaders(readersOf(item));
  const inside = item.graph.nodes.filter((node) => node.groupPath.includes(item));
  return { items: [...new Set(inside.flatMap((node) => node.counterparts))], folded: false };
}

/**
 * The counterparts of some nodes, else of the nearest ones that depend on them.
 * @param {GraphNode[]} nodes
 * @returns {Followed}
 */
function followReaders(nodes) {
  const seen = new Set(nodes);
  let level = [...seen];
  while (level.length) {
    const items = new Set(level.flatMap((node) => node.counterparts));
    if (items.size) return { items: [...items], folded: true };
    level = [...new Set(level.flatMap(readersOf))].filter((node) => !seen.has(node));
    for (const node of level) seen.add(node);
  }
  return { items: [], folded: true };
}

/** @param {GraphNode} node */
function readersOf(node) {
  return node.written.flatMap((value) => value.readers);
}
