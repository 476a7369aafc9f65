// What is drawn of a graph, and where: boxes for nodes, folded and opened groups, inputs and outputs, and the lines
// between them. A container (the whole graph, or an opened group) is laid out by itself, and is one box to the one
// around it; a line that leaves or enters it goes through a port at its bottom or top.

import { measured } from "./boxes.js";
import { layered } from "./layers.js";

export const HEAD = 32; // of an opened group, above what is in it
const PAD = 18;

export class Scene {
  constructor(graph, shown) {
    this.graph = graph;
    this.open = new Set(); // groups
    this.kept = new Map(); // containers that are laid out, by group
    this.show(shown);
  }

  /** What is drawn beside operations: `tensors` between them, `weights` that they read. */
  show(shown) {
    this.shown = shown;
    this.kept.clear();
    this.cells = []; // what is a box of its own and holds no other
    this.cellOf = new Map(); // by node, or by value
    const { graph } = this;
    for (const value of graph.inputs) this.add(value, [], "input");
    for (const node of graph.nodes) if (shown.weights || !node.fixed) this.add(node, node.chain, "node");
    if (shown.weights)
      for (const value of graph.values) if (weightOf(value)) this.add(value, common(value), "parameter");
    for (const value of graph.values)
      if (shown.tensors && this.between(value)) this.add(value, value.producer.chain, value.role);
    for (const value of graph.outputs) this.add(value, [], "output");
    this.wires = graph.values.map((value) => this.wire(value)).filter(Boolean);
    this.content = new Map([[null, []]]);
    for (const group of graph.groups) this.content.set(group, []);
    const holding = new Set(this.cells.flatMap((cell) => cell.chain));
    for (const group of graph.groups) if (holding.has(group)) this.content.get(group.chain.at(-2) || null).push(group);
    for (const cell of this.cells) this.content.get(cell.chain.at(-1) || null).push(cell);
  }

  between(value) {
    return (
      value.producer && this.cellOf.has(value.producer) && (value.role === "intermediate" || value.role === "view")
    );
  }

  add(thing, chain, role) {
    const cell = {
      kind: thing.kind === "node" ? "node" : "value",
      thing,
      chain,
      role,
      ...measured(thing, role, this.shown),
    };
    this.cells.push(cell);
    this.cellOf.set(role === "output" ? `out ${thing.id}` : thing, cell);
  }

  /** From where a value comes to where it goes; null if it is not drawn. */
  wire(value) {
    const { cellOf } = this;
    const own = cellOf.get(value); // a tensor, an input or a weight
    const maker = value.producer && cellOf.get(value.producer);
    const from = own || maker;
    if (!from) return null;
    const to = [...new Set(value.readers)].map((node) => cellOf.get(node)).filter(Boolean);
    if (cellOf.has(`out ${value.id}`)) to.push(cellOf.get(`out ${value.id}`));
    return { value, from, to, maker: own && maker };
  }

  /** Opens or closes a group; what is around it is laid out anew. */
  toggle(group, open = !this.open.has(group)) {
    if (open) this.open.add(group);
    else this.open.delete(group);
    for (const around of [null, ...group.chain]) this.kept.delete(around);
  }

  /** Opens all groups around a node or a group. */
  reveal(thing) {
    const around = thing.kind === "group" ? thing.chain.slice(0, -1) : thing.chain || [];
    const closed = around.filter((group) => !this.open.has(group));
    for (const group of closed) this.toggle(group, true);
    return closed.length > 0;
  }

  /** Lays it out: `boxes` from the outermost on, `edges`, `width` and `height`. */
  arrange() {
    this.join();
    const whole = this.container(null);
    const scene = { boxes: [], edges: [], width: whole.width, height: whole.height, boxOf: new Map() };
    this.flatten(whole, 0, 0, scene);
    makeRoom(scene.edges);
    return scene;
  }

  /** The containers that are there to be seen around a cell, and what of the innermost one stands for it. */
  way(cell) {
    let depth = 0;
    while (depth < cell.chain.length && this.open.has(cell.chain[depth])) depth += 1;
    return [null, ...cell.chain.slice(0, depth), depth < cell.chain.length ? cell.chain[depth] : cell];
  }

  /** For each container, what each wire does there: from which item to which, and whether it comes in or goes out. */
  join() {
    this.ties = new Map();
    const ways = new Map(this.cells.map((cell) => [cell, this.way(cell)]));
    for (const wire of this.wires) {
      if (wire.maker) this.tie(wire, `${wire.value.id} made`, ways.get(wire.maker), ways.get(wire.from));
      for (const cell of wire.to) this.tie(wire, wire.value.id, ways.get(wire.from), ways.get(cell));
    }
  }

  tie(wire, key, from, to) {
    let shared = 0;
    while (shared < from.length - 1 && shared < to.length - 1 && from[shared] === to[shared]) shared += 1;
    if (from[shared] === to[shared]) return; // both are in one folded group
    this.knot(from[shared - 1], wire, key, from[shared], to[shared]);
    for (let at = shared; at < from.length - 1; at++) this.knot(from[at], wire, key, from[at + 1], "bottom");
    for (let at = shared; at < to.length - 1; at++) this.knot(to[at], wire, key, "top", to[at + 1]);
  }

  knot(container, wire, key, from, to) {
    if (!this.ties.has(container)) this.ties.set(container, new Map());
    const knots = this.ties.get(container);
    if (!knots.has(key)) knots.set(key, { key, wire, from, to: new Set() });
    knots.get(key).to.add(to);
  }

  container(group) {
    if (this.kept.has(group)) return this.kept.get(group);
    const items = this.content.get(group).map((thing) => this.item(thing));
    const places = new Map(items.map((item, at) => [item.thing, at]));
    const pinned = (pin, key) => items.push({ pin, key, w: 0, h: 0 }) - 1;
    const links = [...(this.ties.get(group) || new Map()).values()].map(({ key, wire, from, to }) => ({
      ...{ key, wire, from: from === "top" ? pinned("top", key) : places.get(from) },
      to: [...to].map((thing) => (thing === "bottom" ? pinned("bottom", key) : places.get(thing))),
    }));
    const made = { group, items, ...layered(items, links) };
    this.frame(made);
    this.kept.set(group, made);
    return made;
  }

  /** The room around what is in a container, and its ports, from its middle. */
  frame(made) {
    const { group, items } = made;
    const title = group ? measured(group, "open").w + 40 : 0;
    made.shift = { x: PAD + Math.max(0, (title - made.width - 2 * PAD) / 2), y: group ? HEAD : PAD };
    made.inner = made.height;
    made.width = Math.max(made.width + 2 * PAD, title);
    made.height += made.shift.y + (group ? 12 : PAD);
    const of = (pin) => items.filter((item) => item.pin === pin);
    const port = (item) => [item.key, made.shift.x + item.x - made.width / 2];
    made.ports = { into: new Map(of("top").map(port)), out: new Map(of("bottom").map(port)) };
  }

  item(thing) {
    if (thing.kind !== "group") return { thing, w: thing.w, h: thing.h };
    if (!this.open.has(thing)) return { thing, ...measured(thing, "folded") };
    const inside = this.container(thing);
    return { thing, inside, w: inside.width, h: inside.height, ports: inside.ports };
  }

  /** Where all is in the end. */
  flatten(container, x, y, scene) {
    const [left, top] = [x + container.shift.x, y + container.shift.y];
    for (const item of container.items.filter(({ thing }) => thing)) {
      const thing = item.thing.kind === "group" ? item.thing : item.thing.thing;
      const kind = item.inside ? "open" : item.thing.kind;
      const cell = item.thing.kind === "group" ? item : item.thing;
      const box = { kind, thing, cell, x: left + item.x - item.w / 2, y: top + item.y, w: item.w, h: item.h };
      scene.boxes.push(box);
      scene.boxOf.set(cell.role === "output" ? `out ${thing.id}` : thing, box);
      if (item.inside) this.flatten(item.inside, box.x, box.y, scene);
    }
    const lines = new Map(); // how many leave each item: the types of several would lie upon each other
    for (const { link } of container.links) lines.set(link.from, (lines.get(link.from) || 0) + 1);
    for (const { link, runs, ends } of container.links) {
      if (runs.length) scene.edges.push(edge(link, runs, ends, left, top, container, y, lines.get(link.from) === 1));
    }
  }
}

/** How wide the type on a line may be, so that it ends before the next one beside it begins. */
function makeRoom(edges) {
  const labelled = edges.filter((edge) => edge.label);
  labelled.sort((a, b) => a.label[1] - b.label[1] || a.label[0] - b.label[0]);
  labelled.forEach((edge, at) => {
    const [, y] = edge.label;
    edge.room = 130;
    for (let next = at + 1; next < labelled.length && labelled[next].label[1] - y < 12; next++) {
      const [left, right] = [edge, labelled[next]].sort((a, b) => a.label[0] - b.label[0]);
      left.room = Math.min(left.room ?? 130, right.label[0] - left.label[0] - 4);
    }
  });
}

/** A line of one value in one container, where it is in the end. */
function edge(link, runs, ends, left, top, container, y, alone) {
  const last = y + container.height;
  const start = container.items[link.from];
  const from = (at) => (start.pin && at === 0 ? y : at + top); // what comes in does so at the border
  const placed = runs.map(([x1, y1, bend, x2, end, y2]) => [
    x1 + left,
    from(y1),
    bend + top,
    x2 + left,
    end + top,
    y2 + top,
  ]);
  const heads = [];
  for (const [x, at, item] of ends) {
    if (item.pin) placed.push([x + left, at + top, last, x + left, last, last]);
    else if (!item.inside) heads.push([x + left, at + top]);
  }
  const xs = placed.flatMap((run) => [run[0], run[3]]);
  const ys = placed.flatMap((run) => [run[1], run[5]]);
  const box = { x: Math.min(...xs), y: Math.min(...ys), right: Math.max(...xs), bottom: Math.max(...ys) };
  const labelled = alone && !start.pin && !start.inside;
  const low = start.thing && start.thing.kind === "group" ? 4 : 0; // behind a folded group lies another card
  return {
    value: link.wire.value,
    runs: placed,
    heads,
    box,
    label: labelled ? [placed[0][0], placed[0][1] + low] : null,
  };
}

function weightOf(value) {
  return value.role === "parameter" && !value.producer && value.readers.length > 0;
}

/** The groups that all readers of a value are in. */
function common(value) {
  const [first, ...others] = value.readers.map((node) => node.chain);
  return first.filter((group, depth) => others.every((chain) => chain[depth] === group));
}

/** Opens what makes a first look tell something: what stands alone, and then what is small, up to a screen full. */
export function openWell(scene) {
  const boxes = (group) => scene.content.get(group).length;
  let shown = boxes(null);
  let level = scene.content.get(null).filter((thing) => thing.kind === "group");
  while (level.length && shown < 40) {
    const next = [];
    for (const group of level.sort((a, b) => boxes(a) - boxes(b))) {
      const inside = scene.content.get(group);
      if (inside.length === 1 && inside[0].kind !== "group") continue; // one operation: its box says more
      const alone = inside.length === 1 || shown < 10;
      if (shown + boxes(group) - 1 > (alone ? 60 : 40)) continue;
      scene.toggle(group, true);
      shown += boxes(group) - 1;
      next.push(...scene.content.get(group).filter((thing) => thing.kind === "group"));
    }
    level = next;
  }
}
