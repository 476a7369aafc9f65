// The graphs as the page uses them, made of the JSON that `_page.py` writes.

import { linkCounterparts, linkPlaces } from "./counterparts.js";
import { largest } from "./numbers.js";

/** @typedef {GraphNode | Group | Value} Item what can be selected */
/** @typedef {{ value: Value, order: string }} Link a value of the other implementation; how its elements are arranged */
/** @typedef {number | bigint} Numeric an integer over 2**53 is a bigint */
/** @typedef {"close" | "different" | "not close"} Verdict "not close": nothing differs, but something was not compared */
/** @typedef {[low: number | string, high: number | string, expected: number[], actual: number[]]} RawHistogram */

const ROLES = ["intermediate", "view", "input", "output", "parameter"];
const COMPARED = ["same", "different", "shape or dtype differs"];
const DIVERGED = ["different", "shape or dtype differs", "leaves A", "not in B", "contradicted"];

/** Everything in the page. */
export class PageData {
  /** @param {any} raw */
  constructor(raw) {
    /** @type {string[]} */
    this.strings = raw.strings;
    /** @type {number[][]} */
    this.lists = raw.lists;
    /** @type {string[]} */
    this.remarks = raw.remarks;
    /** Whether a comparison found the graph close to its reference; null if there was none. @type {boolean | null} */
    this.close = raw.close ?? null;
    /** @type {Graph[]} */
    this.graphs = raw.graphs.map(
      (/** @type {any} */ graph, /** @type {number} */ index) => new Graph(this, graph, index),
    );
    /** The graph that was drawn. */
    this.main = this.graphs[0];
    /** The graph that `main` was made of, or null. */
    this.before = this.graphs.find((graph) => graph.role === "before") ?? null;
    /** Implementation A, if `main` is implementation B of the same model; or null. */
    this.reference = this.graphs.find((graph) => graph.role === "reference") ?? null;
    this.findings = this.graphs.flatMap((graph) => graph.findings);
    /** The finding that is marked as the first divergence, else the first one that diverged, or null. */
    this.firstDivergence = this.findings.find((finding) => finding.first) ?? firstDiverged(this.findings);
    if (this.before) linkCounterparts(this.main, this.before);
    if (this.reference) linkPlaces(this.main, this.reference);
  }

  /** The result of the comparison; null if nothing was compared. @returns {Verdict | null} */
  get verdict() {
    if (this.findings.some((finding) => finding.diverged)) return "different";
    if (this.reference) return this.close ? "close" : "different";
    return this.close === null ? null : this.close ? "close" : "not close";
  }

  /** What the page is about. */
  get title() {
    const { main, reference } = this;
    return reference ? `${main.name} (B) against ${reference.name} (A)` : main.name;
  }

  /**
   * What a graph is called among those of the page.
   * @param {Graph} graph
   */
  titleOf({ role, of }) {
    if (role === "function") return `Function ${of.slice(0, 40)}`;
    if (role === "before") return "Exported graph";
    if (this.reference) return role === "reference" ? "A" : "B";
    return this.before ? "Compiled graph" : "Graph";
  }

  /**
   * A text by its index.
   * @param {number | null | undefined} index
   */
  text(index) {
    return index === null || index === undefined ? "" : this.strings[index];
  }

  /**
   * A list of texts by its index.
   * @param {number | null | undefined} index
   */
  texts(index) {
    return index === null || index === undefined ? [] : this.lists[index].map((text) => this.strings[text]);
  }
}

/** One graph: the drawn one, the one before it, that of another implementation, or a function that either calls. */
export class Graph {
  /**
   * @param {PageData} data
   * @param {any} raw
   * @param {number} index among the graphs of the page
   */
  constructor(data, raw, index) {
    this.index = index;
    /** @type {string} */
    this.name = raw.name;
    /** @type {"graph" | "before" | "reference" | "function"} */
    this.role = raw.role;
    /** The operator that calls it, if it is a function. @type {string} */
    this.of = raw.of ?? "";
    /** @type {Value[]} */
    this.values = raw.values.map(
      (/** @type {any[]} */ value, /** @type {number} */ id) => new Value(this, id, value, data),
    );
    /** Parents come before their children. @type {Group[]} */
    this.groups = [];
    for (const group of raw.groups) this.groups.push(new Group(this, this.groups.length, group, data));
    this.topGroups = this.groups.filter((group) => group.parent === null);
    /** @type {GraphNode[]} */
    this.nodes = raw.nodes.map(
      (/** @type {any[]} */ node, /** @type {number} */ id) => new GraphNode(this, id, node, data),
    );
    this.nodeByName = new Map(this.nodes.map((node) => [node.name, node]));
    /** @type {Value[]} */
    this.inputs = raw.inputs.map((/** @type {number} */ id) => this.values[id]);
    /** @type {Value[]} */
    this.outputs = raw.outputs.map((/** @type {number} */ id) => this.values[id]);
    /** @type {Finding[]} */
    this.findings = raw.findings.map((/** @type {any[]} */ finding) => new Finding(this, finding, data));
    for (const node of this.nodes) node.summarize();
  }
}

/** A tensor: what nodes read and write. */
export class Value {
  /**
   * @param {Graph} graph
   * @param {number} id
   * @param {any[]} raw
   * @param {PageData} data
   */
  constructor(graph, id, [name, role, dtype, shape], data) {
    this.kind = /** @type {const} */ ("value");
    this.graph = graph;
    this.id = id;
    this.name = data.text(name);
    this.role = ROLES[role];
    this.dtype = data.text(dtype);
    this.shape = shape === null || shape === undefined ? null : data.texts(shape);
    /** @type {GraphNode | null} */
    this.producer = null;
    /** @type {GraphNode[]} */
    this.readers = [];
    /** @type {Finding[]} */
    this.findings = [];
    /** @type {Finding | null} */
    this.worst = null;
  }
}

/** A call of a module, which holds nodes and other groups. */
export class Group {
  /**
   * @param {Graph} graph
   * @param {number} id
   * @param {any[]} raw
   * @param {PageData} data
   */
  constructor(graph, id, [parent, path, name, type], data) {
    this.kind = /** @type {const} */ ("group");
    this.graph = graph;
    this.id = id;
    this.name = data.text(name);
    /** The module's, such as `model.layers.0`. */
    this.path = data.text(path);
    this.type = data.text(type);
    /** @type {Group | null} */
    this.parent = parent === null ? null : graph.groups[parent];
    /** @type {Group[]} */
    this.groups = [];
    /** From the outermost group to this one. @type {Group[]} */
    this.groupPath = [...(this.parent?.groupPath ?? []), this];
    /** How many nodes it holds. */
    this.size = 0;
    /** @type {Finding | null} */
    this.worst = null;
    /** @type {number | null} */
    this.seconds = null;
    /** The same call in the graph before, or after. @type {Group[]} */
    this.counterparts = [];
    this.parent?.groups.push(this);
  }
}

/** An operation. */
export class GraphNode {
  /**
   * @param {Graph} graph
   * @param {number} id
   * @param {any[]} raw
   * @param {PageData} data
   */
  constructor(graph, id, raw, data) {
    const [
      name,
      op,
      group,
      inputs,
      outputs,
      stack,
      module,
      source,
      attributes,
      origins,
      target,
      code,
      forward,
      captured,
    ] = raw;
    const values = (/** @type {(number | null)[] | null | undefined} */ ids) =>
      (ids ?? []).map((index) => (index === null ? null : graph.values[index]));
    this.kind = /** @type {const} */ ("node");
    this.graph = graph;
    this.id = id;
    this.name = data.text(name);
    this.op = data.text(op);
    /** @type {Group | null} */
    this.group = group === null || group === undefined ? null : graph.groups[group];
    /** The groups around it, from the outermost. @type {Group[]} */
    this.groupPath = this.group?.groupPath ?? [];
    /** Null for what is left out, here and in `outputs`. */
    this.inputs = values(inputs);
    this.outputs = values(outputs);
    /** What its subgraphs read from outside. */
    this.captured = values(captured);
    /** The calls around it: path, type and source of each. */
    this.stack = chunks(data.texts(stack), 3);
    this.module = data.text(module);
    this.source = data.text(source);
    /** Pairs of name and text. */
    this.attributes = chunks(data.texts(attributes), 2);
    /** The names of the nodes that it computes, after fusion. */
    this.origins = data.texts(origins);
    this.target = data.text(target);
    this.code = data.text(code);
    /** The name of the node whose gradient it computes. */
    this.gradientOf = data.text(forward);
    /** The nodes of the other graph that it was made of, or that were made of it. @type {GraphNode[]} */
    this.counterparts = [];
    this.reads = [...new Set([...this.inputs, ...this.captured].filter((value) => value !== null))];
    for (const value of this.reads) value.readers.push(this);
    for (const value of this.written) value.producer = this;

    /** @type {Finding[]} */
    this.findings = [];
    /** @type {Finding | null} */
    this.worst = null;
    /** @type {number | null} */
    this.seconds = null;
    /** The number of nodes on the longest path that ends here. */
    this.depth = 1;
    /** Whether it depends on nothing but weights and constants: then it is part of what reads it, unless shown. */
    this.constant = false;
    /** What of both it depends on, if it is constant: weights, if there are any. @type {"weights" | "constants"} */
    this.constantKind = "constants";
  }

  /** The outputs that are not left out. */
  get written() {
    return this.outputs.filter((value) => value !== null);
  }

  /** Sets what follows from its findings and from the nodes before it, and adds it to the groups around it. */
  summarize() {
    this.findings = this.written.flatMap((value) => value.findings);
    this.worst = this.findings.reduce(worseOf, null);
    const times = this.findings.map((finding) => finding.seconds).filter((seconds) => seconds !== null);
    this.seconds = times.length ? largest(times) : null;
    const sources = this.reads.map((value) => value.producer).filter((node) => node !== null);
    this.depth =
      1 +
      largest(
        sources.map((source) => source.depth),
        0,
      );
    this.constant =
      this.reads.every((value) => (value.producer ? value.producer.constant : value.role === "parameter")) &&
      (this.reads.length > 0 || this.op === "Constant") &&
      this.written.every((value) => value.role !== "output");
    const readsWeights = this.reads.some((value) => (value.producer?.constantKind ?? "weights") === "weights");
    if (this.constant && readsWeights) this.constantKind = "weights";
    for (const group of this.groupPath) {
      group.size += 1;
      group.worst = worseOf(group.worst, this.worst);
      if (this.seconds !== null) group.seconds = (group.seconds ?? 0) + this.seconds;
    }
  }
}

/** What a comparison says about a value. */
export class Finding {
  /**
   * @param {Graph} graph
   * @param {any[]} raw
   * @param {PageData} data
   */
  constructor(graph, raw, data) {
    const [
      value,
      status,
      stage,
      call,
      first,
      error,
      text,
      evidence,
      names,
      measures,
      seconds,
      expected,
      actual,
      histogram,
      places,
      positions,
    ] = raw;
    this.graph = graph;
    /** @type {Value} */
    this.value = graph.values[value];
    this.status = data.text(status);
    this.stage = data.text(stage);
    /** @type {number} */
    this.call = call ?? 0;
    /** Whether it is the first divergence. */
    this.first = Boolean(first);
    this.error = real(error);
    this.text = data.text(text);
    this.evidence = data.text(evidence);
    this.measures = new Map(data.texts(names).map((name, index) => [name, parseNumber(measures[index])]));
    this.seconds = real(seconds);
    this.expected = parseStatistics(expected);
    this.actual = parseStatistics(actual);
    /** @type {RawHistogram | null} */
    this.histogram = histogram ?? null;
    /** Names of values of the other implementation, and how their elements are arranged. */
    this.places = chunks(data.texts(places), 2);
    /** The same with the values. @type {Link[]} */
    this.links = [];
    this.positions = parsePositions(positions);
    this.compared = COMPARED.includes(this.status);
    this.diverged = DIVERGED.includes(this.status);
    this.node = this.value.producer;
    /** The node's place in the order of execution; -1 for inputs. */
    this.order = this.node?.id ?? -1;
    this.value.findings.push(this);
    this.value.worst = worseOf(this.value.worst, this);
  }
}

/**
 * A number from the JSON, where integers over 2**53, NaN and infinities are texts.
 * @param {number | string | null | undefined} number
 * @returns {Numeric | null}
 */
export function parseNumber(number) {
  if (number === undefined || number === null) return null;
  if (typeof number === "number") return number;
  return /^-?\d+$/.test(number) ? BigInt(number) : Number(number);
}

/** @param {number | string | null | undefined} number */
function real(number) {
  const parsed = parseNumber(number);
  return parsed === null ? null : Number(parsed);
}

/**
 * The error at each position, relative to the root mean square of the value, and the positions at which it is wrong.
 * @param {[errors: (number | string)[], wrong: number[]] | null | undefined} raw
 */
function parsePositions(raw) {
  return raw ? { errors: raw[0].map(Number), wrong: new Set(raw[1]) } : null;
}

/** @typedef {NonNullable<ReturnType<typeof parseStatistics>>} Statistics */

/** @param {any[] | null | undefined} raw */
function parseStatistics(raw) {
  if (!raw) return null;
  const [minimum, maximum, mean, std, nan, inf] = raw.slice(1, 7).map(parseNumber);
  return {
    what: /** @type {string} */ (raw[0]),
    minimum,
    maximum,
    mean,
    std,
    nan,
    inf,
    content: /** @type {string} */ (raw[7]),
  };
}

/**
 * @param {string[]} texts
 * @param {number} size
 */
function chunks(texts, size) {
  return Array.from({ length: texts.length / size }, (_, index) => texts.slice(size * index, size * (index + 1)));
}

/**
 * The worse of two findings: one that diverged, else one that was not compared, else the one with the larger error.
 * @param {Finding | null} one
 * @param {Finding | null} other
 */
export function worseOf(one, other) {
  if (!one || !other) return one ?? other;
  const rank = (/** @type {Finding} */ finding) => [
    Number(finding.diverged),
    Number(!finding.compared),
    finding.error === null ? 0 : Number.isNaN(finding.error) ? Infinity : finding.error,
  ];
  const [a, b] = [rank(one), rank(other)];
  const index = a.findIndex((part, place) => part !== b[place]);
  return index < 0 || a[index] > b[index] ? one : other;
}

/** @param {Finding[]} findings */
function firstDiverged(findings) {
  const diverged = findings.filter((finding) => finding.diverged);
  return diverged.length ? diverged.reduce((a, b) => (b.order < a.order ? b : a)) : null;
}

/**
 * The type of a value, such as `float32[1, 128, 768]`; "" if nothing is known of it.
 * @param {Value} value
 */
export function typeLabel(value) {
  if (!value.dtype && !value.shape) return "";
  return `${value.dtype || "?"}[${value.shape ? value.shape.join(", ") : "?"}]`;
}

/**
 * The nodes that a divergence affects: those that diverge and are reached from `node` through diverging nodes. Nodes
 * that were not compared are kept where the path goes on to one that diverges.
 * @param {GraphNode} node
 */
export function affectedNodes(node) {
  const diverged = (/** @type {GraphNode} */ each) => Boolean(each.worst?.diverged);
  const passes = (/** @type {GraphNode} */ each) => diverged(each) || !each.worst?.compared;
  const reached = new Set([node]);
  for (const each of reached) {
    for (const value of each.written) for (const reader of value.readers) if (passes(reader)) reached.add(reader);
  }
  /** @type {Set<GraphNode>} */
  const affected = new Set();
  for (const each of [...reached].sort((a, b) => b.id - a.id)) {
    const goesOn = each.written.some((value) => value.readers.some((reader) => affected.has(reader)));
    if (each === node || diverged(each) || goesOn) affected.add(each);
  }
  return affected;
}

/**
 * The operations that read what a constant computes, directly or through other constants.
 * @param {GraphNode} node
 * @returns {GraphNode[]}
 */
export function readersOfConstant(node) {
  const seen = new Set([node]);
  for (const each of seen) {
    if (each.constant) for (const value of each.written) for (const reader of value.readers) seen.add(reader);
  }
  return [...seen].filter((each) => !each.constant);
}
