// The modules of an implementation with their weights and operations, in the order of execution: the lines of an outline.

/** @import { Finding, Graph, GraphNode, Group, Item, Link, Value } from "./model.js" */
/** @import { Shown } from "./boxes.js" */
/**
 * @typedef {object} Entry
 * @property {Item} item
 * @property {Entry | null} parent
 * @property {Entry[]} children
 * @property {number} depth
 * @property {Finding | null} finding of a module, that of the last value that leaves it
 * @property {number} diverged how many findings of it and inside of it diverged
 * @property {boolean} linked whether it or anything inside of it has a finding
 */

const MOST_OPENED = 48; // lines that are visible at first

/** The tree of one graph. */
export class Tree {
  /** @param {Graph} graph */
  constructor(graph) {
    this.graph = graph;
    /** @type {Map<Item, Entry>} */
    this.entryOf = new Map();
    /** @type {Entry[]} */
    this.top = [];
    for (const value of graph.inputs) this.add(value, null, value.findings);
    for (const node of graph.nodes) {
      for (const group of node.groupPath) if (!this.entryOf.has(group)) this.add(group, group.parent, []);
      this.add(node, node.group, node.findings);
    }
    this.addWeights();
    /** @type {Map<Group, GraphNode[]>} */
    const inside = new Map(graph.groups.map((group) => [group, []]));
    for (const node of graph.nodes) for (const group of node.groupPath) inside.get(group)?.push(node);
    for (const [group, nodes] of inside) this.setResult(group, nodes);
    for (const entry of this.top) summarize(entry);
  }

  /**
   * @param {Item} item
   * @param {Group | null} group
   * @param {Finding[]} findings
   */
  add(item, group, findings) {
    const parent = (group && this.entryOf.get(group)) ?? null;
    const finding = findings.find(({ diverged }) => diverged) ?? findings[0] ?? null;
    const depth = parent ? parent.depth + 1 : 0;
    /** @type {Entry} */
    const entry = { item, parent, children: [], depth, finding, diverged: 0, linked: false };
    this.entryOf.set(item, entry);
    (parent?.children ?? this.top).push(entry);
  }

  /** Adds weights, each before what else is in the module that it belongs to by its name. */
  addWeights() {
    /** The first call of each module, by its path. @type {Map<string, Group>} */
    const modules = new Map();
    for (const group of this.graph.groups) if (!modules.has(group.path)) modules.set(group.path, group);
    /** @type {Map<Entry[], number>} */
    const counts = new Map();
    for (const value of this.graph.values) {
      if (value.role !== "parameter") continue;
      let path = value.name;
      do path = path.slice(0, Math.max(0, path.lastIndexOf(".")));
      while (path && !modules.has(path));
      this.add(value, modules.get(path) ?? null, value.findings);
      const entry = /** @type {Entry} */ (this.entryOf.get(value));
      const siblings = entry.parent?.children ?? this.top;
      const count = counts.get(siblings) ?? 0;
      siblings.splice(count, 0, ...siblings.splice(-1));
      counts.set(siblings, count + 1);
    }
  }

  /**
   * Gives a module the finding of the last value that leaves it. Views and the like have none: what they are made of
   * leaves it with them.
   * @param {Group} group
   * @param {GraphNode[]} inside in order
   */
  setResult(group, inside) {
    const entry = this.entryOf.get(group);
    if (!entry) return;
    /** @type {Set<Value>} */
    const leaving = new Set();
    for (const node of inside.toReversed()) {
      for (const value of node.written) {
        const passed = value.readers.some(
          (reader) =>
            !reader.groupPath.includes(group) ||
            (!reader.findings.length && reader.written.some((other) => leaving.has(other))),
        );
        if (!passed && value.role !== "output") continue;
        leaving.add(value);
        entry.finding ??= value.findings[0] ?? null;
      }
    }
  }

  /**
   * The entries that are visible, in order.
   * @param {Set<Item>} open
   * @param {Pick<Shown, "weights" | "unlinked">} shown
   * @returns {Entry[]}
   */
  visible(open, { weights, unlinked }) {
    /** @type {Entry[]} */
    const found = [];
    /** @param {Entry} entry */
    const visit = (entry) => {
      if (!(unlinked || entry.linked) || (isWeight(entry) && !weights)) return;
      found.push(entry);
      if (open.has(entry.item)) entry.children.forEach(visit);
    };
    this.top.forEach(visit);
    return found;
  }

  /**
   * The modules to open at first: whole levels, as long as there are few lines.
   * @param {Pick<Shown, "weights" | "unlinked">} shown
   * @returns {Set<Item>}
   */
  initiallyOpen(shown) {
    /** @type {Set<Item>} */
    let open = new Set();
    for (;;) {
      const lines = this.visible(open, shown);
      const more = lines.filter(({ item, children }) => children.length && !open.has(item)).map(({ item }) => item);
      const next = new Set([...open, ...more]);
      if (!more.length || this.visible(next, shown).length > MOST_OPENED) return open;
      open = next;
    }
  }

  /**
   * The entry of a value: of the operation that computes it, or its own.
   * @param {Value} value
   * @returns {Entry | undefined}
   */
  entryOfValue(value) {
    return this.entryOf.get(value.producer ?? value);
  }

  /**
   * The outermost module whose result a value is, else the entry of the value.
   * @param {Value} value
   * @returns {Entry | undefined}
   */
  moduleOfValue(value) {
    const entry = this.entryOfValue(value);
    let found = entry;
    for (let at = entry?.parent; at; at = at.parent) if (at.finding?.value === value) found = at;
    return found;
  }
}

/**
 * Whether an entry is a weight of a model; of weights alone, none is hidden.
 * @param {Entry} entry
 */
export function isWeight({ item }) {
  return item.kind === "value" && item.role === "parameter" && item.graph.nodes.length > 0;
}

/** @param {Entry} entry */
function summarize(entry) {
  for (const child of entry.children) summarize(child);
  const own = entry.item.kind === "group" ? 0 : Number(entry.finding?.diverged ?? false);
  entry.diverged = entry.children.reduce((sum, child) => sum + child.diverged, own);
  entry.linked = Boolean(entry.finding) || entry.children.some((child) => child.linked);
}

/**
 * The links of what a value is computed from, apart from weights: where to look if it has none itself.
 * @param {Finding} finding
 * @returns {Link[]}
 */
export function linksOfOperands({ node }) {
  const seen = new Set(node?.reads ?? []);
  /** @type {Map<Value, Link>} */
  const found = new Map();
  for (const value of seen) {
    if (value.role === "parameter") continue;
    const links = value.findings.flatMap((finding) => finding.links);
    for (const link of links) found.set(link.value, link);
    if (!value.findings.length) for (const read of value.producer?.reads ?? []) seen.add(read);
  }
  return [...found.values()];
}

/**
 * The items of the other implementation that an item is linked to: modules to modules, where there are any. What
 * diverges and has no counterpart is linked to what it is computed from.
 * @param {Entry} entry
 * @param {Tree} other
 * @returns {Item[]}
 */
export function linkedItems({ item, finding }, other) {
  if (!finding) return [];
  const links = finding.diverged && !finding.links.length ? linksOfOperands(finding) : finding.links;
  const entries = links.map(({ value }) =>
    item.kind === "group" ? other.moduleOfValue(value) : other.entryOfValue(value),
  );
  return [...new Set(entries.flatMap((entry) => entry?.item ?? []))];
}
