// What is drawn of a graph and where: boxes for nodes, closed and opened groups, inputs and outputs, and edges. Each
// container (the whole graph, or an opened group) is laid out on its own and is one box in the container around it. An
// edge that enters or leaves a container goes through a port at its top or bottom.

import { measureBox } from "./boxes.js";
import { layoutContainer } from "./layout/index.js";
import { largest, smallest } from "./numbers.js";

/** @import { Line, Shown } from "./boxes.js" */
/** @import { LayoutItem, Link, Ports, Run } from "./layout/index.js" */
/** @import { Graph, GraphNode, Group, Item, Value } from "./model.js" */
/**
 * @typedef {object} Leaf what is a box and holds no other
 * @property {"node" | "value"} kind
 * @property {GraphNode | Value} item
 * @property {Group[]} groupPath the groups around it
 * @property {string} role "node", or the value's
 * @property {Line[]} lines
 * @property {number} w
 * @property {number} h
 */
/**
 * @typedef {object} Wire a value from where it comes to where it goes
 * @property {Value} value
 * @property {Leaf} from the value's own box, if it has one, else its producer's
 * @property {Leaf[]} to
 * @property {Leaf | undefined} producer if the value has a box of its own
 */
/** @typedef {{ key: string, value: Value, from: Leaf | Group | "top", to: Set<Leaf | Group | "bottom"> }} Crossing what a
 * wire does in one container */
/** @typedef {LayoutItem & { content: Leaf | Group | null, key?: string, lines?: Line[], inside?: Container, x: number,
 * y: number }} ContainerItem without content, it is a point that edges go through */
/** @typedef {Link & { value: Value }} ContainerLink */
/**
 * @typedef {object} Container
 * @property {ContainerItem[]} items
 * @property {ReturnType<typeof layoutContainer<ContainerItem, ContainerLink>>["routes"]} routes
 * @property {number} width
 * @property {number} height
 * @property {{ x: number, y: number }} origin of what is inside
 * @property {Ports} ports
 */
/**
 * @typedef {object} Box
 * @property {"node" | "value" | "group" | "open"} kind
 * @property {Item} item
 * @property {string} role
 * @property {Line[]} lines
 * @property {number} x
 * @property {number} y
 * @property {number} w
 * @property {number} h
 */
/**
 * @typedef {object} Edge a value in one container
 * @property {Value} value
 * @property {Run[]} runs
 * @property {[number, number][]} heads
 * @property {{ left: number, top: number, right: number, bottom: number }} bounds
 * @property {[number, number] | null} label where its type is written, if it is
 * @property {number} labelWidth
 * @property {string} [path] kept by the drawing
 */
/** @typedef {{ boxes: Box[], edges: Edge[], width: number, height: number, boxOf: Map<Item | string, Box> }} Arrangement
 * boxes from the outermost; an output's is under its `outputKey` */

export const HEADING_HEIGHT = 32; // of an opened group
const PADDING = 18;
const WIDEST_LABEL = 130;
const LABEL_HEIGHT = 12;

/**
 * The key of a value's box as an output of the graph: it may have another one, as an input.
 * @param {Item} value
 */
export function outputKey(value) {
  return `output ${value.id}`;
}

/** One graph as it is drawn. */
export class Scene {
  /**
   * @param {Graph} graph
   * @param {Shown} shown
   */
  constructor(graph, shown) {
    this.graph = graph;
    /** @type {Set<Group>} */
    this.open = new Set();
    /** What is laid out already, by group; the whole graph is under null. @type {Map<Group | null, Container>} */
    this.containers = new Map();
    this.show(shown);
  }

  /**
   * Sets what is drawn beside operations.
   * @param {Shown} shown
   */
  show(shown) {
    const { graph } = this;
    this.shown = shown;
    this.containers.clear();
    /** @type {Map<Item | string, Leaf>} */
    this.leafOf = new Map();
    for (const value of graph.inputs) this.add(value, [], "input");
    for (const node of graph.nodes) if (isShown(node, shown)) this.add(node, node.groupPath, "node");
    for (const value of graph.values) {
      if (shown.weights && isWeight(value)) this.add(value, commonGroups(value.readers), "parameter");
    }
    for (const value of graph.values) {
      const { producer, role } = value;
      const between = role === "intermediate" || role === "view";
      if (shown.tensors && between && producer && this.leafOf.has(producer)) this.add(value, producer.groupPath, role);
    }
    for (const value of graph.outputs) this.add(value, [], "output");
    /** @type {Wire[]} */
    this.wires = graph.values.map((value) => this.wire(value)).filter((wire) => wire !== null);

    const leaves = [...this.leafOf.values()];
    const used = new Set(leaves.flatMap((leaf) => leaf.groupPath));
    /** What each container holds. @type {Map<Group | null, (Leaf | Group)[]>} */
    this.contents = new Map([null, ...graph.groups].map((group) => [group, []]));
    for (const group of graph.groups) if (used.has(group)) this.contentsOf(group.parent).push(group);
    for (const leaf of leaves) this.contentsOf(leaf.groupPath.at(-1) ?? null).push(leaf);
  }

  /** @param {Group | null} group */
  contentsOf(group) {
    return /** @type {(Leaf | Group)[]} */ (this.contents.get(group));
  }

  /**
   * @param {GraphNode | Value} item
   * @param {Group[]} groupPath
   * @param {string} role
   */
  add(item, groupPath, role) {
    const { lines, w, h } = measureBox(item, role, this.shown);
    this.leafOf.set(role === "output" ? outputKey(item) : item, {
      kind: item.kind,
      item,
      groupPath,
      role,
      lines,
      w,
      h,
    });
  }

  /**
   * @param {Value} value
   * @returns {Wire | null} null if the value is not drawn
   */
  wire(value) {
    const own = this.leafOf.get(value);
    const producer = value.producer ? this.leafOf.get(value.producer) : undefined;
    const from = own ?? producer;
    if (!from) return null;
    const goals = [...new Set(value.readers), outputKey(value)].map((key) => this.leafOf.get(key));
    const to = goals.filter((leaf) => leaf !== undefined);
    return { value, from, to, producer: own && producer };
  }

  /**
   * Opens or closes a group. The containers around it have to be laid out again.
   * @param {Group} group
   */
  toggle(group, open = !this.open.has(group)) {
    if (open) this.open.add(group);
    else this.open.delete(group);
    for (const around of [null, ...group.groupPath]) this.containers.delete(around);
  }

  /**
   * Opens all groups around an item; says whether any was closed.
   * @param {Item} item
   */
  reveal(item) {
    const around = item.kind === "value" ? (item.producer?.groupPath ?? []) : item.groupPath;
    const closed = around.filter((group) => group !== item && !this.open.has(group));
    for (const group of closed) this.toggle(group, true);
    return closed.length > 0;
  }

  /**
   * Lays out what has changed.
   * @returns {Arrangement}
   */
  arrange() {
    const crossings = this.crossings();
    const whole = this.container(null, crossings);
    /** @type {Arrangement} */
    const arrangement = { boxes: [], edges: [], width: whole.width, height: whole.height, boxOf: new Map() };
    collect(whole, 0, 0, arrangement);
    limitLabelWidths(arrangement.edges);
    return arrangement;
  }

  /**
   * The opened containers around a leaf, and what stands for it in the innermost one.
   * @param {Leaf} leaf
   * @returns {{ containers: (Group | null)[], content: Leaf | Group }}
   */
  visiblePath(leaf) {
    const closed = leaf.groupPath.findIndex((group) => !this.open.has(group));
    if (closed < 0) return { containers: [null, ...leaf.groupPath], content: leaf };
    return { containers: [null, ...leaf.groupPath.slice(0, closed)], content: leaf.groupPath[closed] };
  }

  /** What each wire does in each container. */
  crossings() {
    /** @type {Map<Group | null, Map<string, Crossing>>} */
    const crossings = new Map();
    const paths = new Map([...this.leafOf.values()].map((leaf) => [leaf, this.visiblePath(leaf)]));
    /** @type {(value: Value, key: string, source: Leaf, goal: Leaf) => void} */
    const connect = (value, key, source, goal) => {
      const from = /** @type {ReturnType<Scene["visiblePath"]>} */ (paths.get(source));
      const to = /** @type {ReturnType<Scene["visiblePath"]>} */ (paths.get(goal));
      if (from.content === to.content) return; // both are in one closed group
      /** @type {(container: Group | null, start: Crossing["from"], end: Leaf | Group | "bottom") => void} */
      const add = (container, start, end) => {
        let inside = crossings.get(container);
        if (!inside) crossings.set(container, (inside = new Map()));
        let crossing = inside.get(key);
        if (!crossing) inside.set(key, (crossing = { key, value, from: start, to: new Set() }));
        crossing.to.add(end);
      };
      const up = from.containers;
      const down = to.containers;
      let common = 0;
      while (common + 1 < up.length && up[common + 1] === down[common + 1]) common += 1;
      const next = (/** @type {typeof from} */ path, /** @type {number} */ depth) =>
        path.containers[depth + 1] ?? path.content;
      add(up[common], next(from, common), next(to, common));
      for (let depth = common + 1; depth < up.length; depth++) add(up[depth], next(from, depth), "bottom");
      for (let depth = common + 1; depth < down.length; depth++) add(down[depth], "top", next(to, depth));
    };
    for (const { value, from, to, producer } of this.wires) {
      if (producer) connect(value, `${value.id} produced`, producer, from);
      for (const leaf of to) connect(value, `${value.id}`, from, leaf);
    }
    return crossings;
  }

  /**
   * A container as it is laid out.
   * @param {Group | null} group
   * @param {Map<Group | null, Map<string, Crossing>>} crossings
   * @returns {Container}
   */
  container(group, crossings) {
    const kept = this.containers.get(group);
    if (kept) return kept;
    const items = this.contentsOf(group).map((content) => this.containerItem(content, crossings));
    const indices = new Map(items.map((item, index) => [item.content, index]));
    const indexOf = (/** @type {Leaf | Group} */ content) => /** @type {number} */ (indices.get(content));
    const pin = (/** @type {"top" | "bottom"} */ border, /** @type {string} */ key) =>
      items.push({ content: null, pin: border, key, w: 0, h: 0, x: 0, y: 0 }) - 1;
    /** @type {ContainerLink[]} */
    const links = [...(crossings.get(group)?.values() ?? [])].map(({ key, value, from, to }) => ({
      key,
      value,
      from: from === "top" ? pin("top", key) : indexOf(from),
      to: [...to].map((content) => (content === "bottom" ? pin("bottom", key) : indexOf(content))),
    }));
    const container = addFrame(group, items, layoutContainer(items, links));
    this.containers.set(group, container);
    return container;
  }

  /**
   * @param {Leaf | Group} content
   * @param {Map<Group | null, Map<string, Crossing>>} crossings
   * @returns {ContainerItem}
   */
  containerItem(content, crossings) {
    const place = { x: 0, y: 0 };
    if (content.kind !== "group") return { content, lines: content.lines, w: content.w, h: content.h, ...place };
    if (!this.open.has(content)) return { content, ...measureBox(content, "closed"), ...place };
    const inside = this.container(content, crossings);
    return { content, inside, w: inside.width, h: inside.height, ports: inside.ports, ...place };
  }
}

/**
 * The container around laid-out items: with room at its borders, and for the heading of a group.
 * @param {Group | null} group
 * @param {ContainerItem[]} items
 * @param {ReturnType<typeof layoutContainer<ContainerItem, ContainerLink>>} layout
 * @returns {Container}
 */
function addFrame(group, items, layout) {
  const heading = group ? measureBox(group, "open").w + 40 : 0;
  const width = Math.max(layout.width + 2 * PADDING, heading);
  const origin = {
    x: PADDING + Math.max(0, (heading - layout.width - 2 * PADDING) / 2),
    y: group ? HEADING_HEIGHT : PADDING,
  };
  const ports = (/** @type {"top" | "bottom"} */ pin) =>
    new Map(items.filter((item) => item.pin === pin).map((item) => [item.key ?? "", origin.x + item.x - width / 2]));
  return {
    items,
    routes: layout.routes,
    width,
    height: layout.height + origin.y + (group ? 12 : PADDING),
    origin,
    ports: { into: ports("top"), out: ports("bottom") },
  };
}

/**
 * Adds the boxes and edges of a container, and of those inside it, to an arrangement.
 * @param {Container} container
 * @param {number} x
 * @param {number} y
 * @param {Arrangement} arrangement
 */
function collect(container, x, y, arrangement) {
  const [left, top] = [x + container.origin.x, y + container.origin.y];
  for (const { content, lines = [], inside, w, h, ...place } of container.items) {
    if (!content) continue;
    const isGroup = content.kind === "group";
    const item = isGroup ? content : content.item;
    const role = isGroup ? "" : content.role;
    const kind = inside ? "open" : content.kind;
    /** @type {Box} */
    const box = { kind, item, role, lines, x: left + place.x - w / 2, y: top + place.y, w, h };
    arrangement.boxes.push(box);
    arrangement.boxOf.set(role === "output" ? outputKey(item) : item, box);
    if (inside) collect(inside, box.x, box.y, arrangement);
  }
  /** How many links leave each item: the types of several would overlap. @type {Map<number, number>} */
  const leaving = new Map();
  for (const { link } of container.routes) leaving.set(link.from, (leaving.get(link.from) ?? 0) + 1);
  for (const route of container.routes) {
    const labeled = leaving.get(route.link.from) === 1;
    if (route.runs.length) arrangement.edges.push(edgeOf(route, container, left, top, y, labeled));
  }
}

/**
 * @param {Container["routes"][number]} route
 * @param {Container} container
 * @param {number} left of what is in the container
 * @param {number} top likewise
 * @param {number} border the container's own top
 * @param {boolean} labeled
 * @returns {Edge}
 */
function edgeOf({ link, runs, ends }, container, left, top, border, labeled) {
  const source = container.items[link.from];
  const bottom = border + container.height;
  // What enters the container does so at its border.
  const start = (/** @type {number} */ y) => (source.pin && y === 0 ? border : y + top);
  const placed = runs.map(
    ([x1, y1, bend, x2, end, y2]) =>
      /** @type {Run} */ ([x1 + left, start(y1), bend + top, x2 + left, end + top, y2 + top]),
  );
  /** @type {[number, number][]} */
  const heads = [];
  for (const [x, y, item] of ends) {
    if (item.pin) placed.push([x + left, y + top, bottom, x + left, bottom, bottom]);
    else if (!item.inside) heads.push([x + left, y + top]);
  }
  const xs = placed.flatMap((run) => [run[0], run[3]]);
  const ys = placed.flatMap((run) => [run[1], run[5]]);
  const below = source.content?.kind === "group" ? 4 : 0; // the second card of a closed group
  return {
    value: link.value,
    runs: placed,
    heads,
    bounds: { left: smallest(xs), top: smallest(ys), right: largest(xs), bottom: largest(ys) },
    label: labeled && !source.pin && !source.inside ? [placed[0][0], placed[0][1] + below] : null,
    labelWidth: WIDEST_LABEL,
  };
}

/**
 * Sets how wide the type beside an edge may be: it ends before the next one on the same height begins.
 * @param {Edge[]} edges
 */
export function limitLabelWidths(edges) {
  /** @type {{ edge: Edge, x: number, y: number }[]} */
  const labels = edges.flatMap((edge) => (edge.label ? [{ edge, x: edge.label[0], y: edge.label[1] }] : []));
  labels.sort((a, b) => a.x - b.x);
  /** By height, the labels that none to the right limits so far. @type {Map<number, typeof labels>} */
  const unlimited = new Map();
  for (const label of labels) {
    const row = Math.floor(label.y / LABEL_HEIGHT);
    for (const near of [row - 1, row, row + 1]) {
      const left = (unlimited.get(near) ?? []).filter(({ edge, x, y }) => {
        if (Math.abs(y - label.y) >= LABEL_HEIGHT) return label.x - x < WIDEST_LABEL + 4;
        edge.labelWidth = Math.min(WIDEST_LABEL, label.x - x - 4);
        return false;
      });
      unlimited.set(near, near === row ? [...left, label] : left);
    }
  }
}

/**
 * Whether a node has a box of its own: constants are part of what reads them, unless they are shown.
 * @param {GraphNode} node
 * @param {Shown} shown
 */
export function isShown(node, shown) {
  return !node.constant || shown[node.constantKind];
}

/** @param {Value} value */
function isWeight(value) {
  return value.role === "parameter" && !value.producer && value.readers.length > 0;
}

/**
 * The groups that all of some nodes are in.
 * @param {GraphNode[]} nodes
 */
function commonGroups([first, ...others]) {
  return first.groupPath.filter((group, depth) => others.every((node) => node.groupPath[depth] === group));
}

/**
 * Opens the groups of the first view: those that are alone in their container, and then small ones, up to a screenful.
 * @param {Scene} scene
 */
export function openInitialGroups(scene) {
  const isGroup = (/** @type {Leaf | Group} */ content) => content.kind === "group";
  let shown = scene.contentsOf(null).length;
  let level = scene.contentsOf(null).filter(isGroup);
  while (level.length && shown < 40) {
    /** @type {Group[]} */
    const next = [];
    for (const group of level.sort((a, b) => scene.contentsOf(a).length - scene.contentsOf(b).length)) {
      const contents = scene.contentsOf(group);
      if (contents.length === 1 && !isGroup(contents[0])) continue; // the group's box says more than its one operation
      const small = contents.length === 1 || shown < 10;
      if (shown + contents.length - 1 > (small ? 60 : 40)) continue;
      scene.toggle(group, true);
      shown += contents.length - 1;
      next.push(...contents.filter(isGroup));
    }
    level = next;
  }
}
