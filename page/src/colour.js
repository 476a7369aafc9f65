// What a box's colour says, and the legend that says so. A colour is a class; `page.css` gives it its look.

import { short } from "./numbers.js";

const FAMILIES = [
  ["norm", /norm/, "normalise"],
  ["compute", /matmul|gemm|conv(?!ert)|linear|einsum|\bb?mm\b|addmm|attention|lstm|gru|sdpa/, "multiply, convolve"],
  ["activation", /relu|gelu|silu|sigmoid|tanh|softmax|elu|erf|swish|softplus|mish/, "activate"],
  ["cast", /cast|quantize|to_copy|convert|\bto\b/, "cast"],
  [
    "layout",
    /shape|view|transpose|permute|squeeze|flatten|expand|concat|cat|split|slice|gather|select|pad|tile|range|embed|clone|identity/,
    "move, index",
  ],
  ["reduce", /reduce|mean|sum|pool|max|min|arg|topk|cumsum|any|all/, "reduce"],
  [
    "arithmetic",
    /add|sub|mul|div|pow|sqrt|neg|exp|log|cos|sin|where|equal|less|greater|and|or|not|clip|reciprocal|\babs\b/,
    "arithmetic",
  ],
];
export const STATUSES = ["same", "different", "shape or dtype differs", "no value", "not mapped"];
const families = new Map();

export function family(op) {
  if (!families.has(op)) {
    const own = bare(op).slice(0, 80).toLowerCase();
    families.set(op, (FAMILIES.find(([, pattern]) => pattern.test(own)) || ["other"])[0]);
  }
  return families.get(op);
}

/** An operator without its domain. */
export function bare(op) {
  return op.slice(op.includes("::") ? op.lastIndexOf("::") + 2 : 0);
}

/** The steps of a logarithmic scale from the least to the largest of some errors. */
class Scale {
  constructor(kind, steps, errors) {
    Object.assign(this, { kind, steps, any: errors.length > 0 });
    this.high = errors.reduce((a, b) => Math.max(a, b), 0);
    // What is under a hundred-millionth of the largest is all alike.
    this.low = Math.max(
      errors.reduce((a, b) => Math.min(a, b), Infinity),
      this.high * 1e-8,
    );
  }

  of(error) {
    const part =
      Number.isFinite(error) && this.high > this.low ? Math.log(error / this.low) / Math.log(this.high / this.low) : 1;
    return `${this.kind}-${Math.max(0, Math.min(this.steps - 1, Math.floor(part * this.steps)))}`;
  }

  /** Pairs of class and words; the first and the last step say where it begins and ends. */
  legend() {
    if (!this.any) return [];
    if (!(this.high > this.low)) return [[`${this.kind}-${this.steps - 1}`, short(this.high)]];
    const words = (step) => (step === 0 ? short(this.low) : step === this.steps - 1 ? short(this.high) : "");
    return Array.from({ length: this.steps }, (_, step) => [`${this.kind}-${step}`, words(step)]);
  }
}

export class Colours {
  constructor(data) {
    this.judged = data.findings.length > 0;
    const sized = data.findings.filter((found) => found.error > 0 && Number.isFinite(found.error));
    const errors = (diverged) => sized.filter((found) => found.diverged === diverged).map((found) => found.error);
    // Two scales: the largest error of a run in which all is well is not to look like an alarm.
    this.calm = new Scale("calm", 4, errors(false));
    this.alarm = new Scale("error", 7, errors(true));
    const times = data.graphs
      .flatMap((graph) => graph.nodes.map((node) => node.seconds))
      .filter((time) => time !== null);
    times.sort((a, b) => a - b);
    this.times = [0.7, 0.9, 0.95].map((part) => times[Math.floor(part * (times.length - 1))]);
    this.timed = times.length > 0;
    this.modes = ["operator", "module", ...(this.judged ? ["error", "status"] : []), ...(this.timed ? ["time"] : [])];
    this.mode = data.findings.some((found) => found.error !== null) ? "error" : this.judged ? "status" : "operator";
  }

  /** The class of a box; `thing` is a node, a group or a value. */
  of(thing) {
    if (this.mode === "error") return this.ofError(thing.worst);
    if (this.mode === "status") return thing.worst ? `status-${STATUSES.indexOf(thing.worst.status)}` : "plain";
    if (this.mode === "time") return this.ofTime(thing);
    if (this.mode === "module") return this.ofModule(thing);
    return thing.kind === "node"
      ? `family-${family(thing.op)}`
      : thing.kind === "value"
        ? `role-${thing.role}`
        : "plain";
  }

  ofError(found) {
    if (!found) return "plain";
    if (found.error === null) return `status-${STATUSES.indexOf(found.status)}`;
    if (found.diverged) return this.alarm.of(found.error);
    return found.error === 0 ? "zero" : this.calm.of(found.error);
  }

  ofTime(thing) {
    if (thing.kind === "group") {
      const inside = thing.graph.nodes.filter((node) => node.chain.includes(thing)).map((node) => this.ofTime(node));
      return inside.sort().at(-1) || "plain";
    }
    if (thing.seconds === null || thing.seconds === undefined) return "plain";
    return `time-${this.times.filter((limit) => thing.seconds >= limit && thing.seconds > 0).length}`;
  }

  ofModule(thing) {
    const chain = thing.chain || (thing.producer ? thing.producer.chain : []);
    // The first level at which there is more than one: all of a model stands in `model`.
    const level = chain.findIndex((group) => siblings(group).length > 1);
    return level < 0 ? "plain" : `module-${siblings(chain[level]).indexOf(chain[level]) % 8}`;
  }

  /** Pairs of class and words. */
  legend() {
    if (this.mode === "operator")
      return [...FAMILIES.map(([key, , words]) => [`family-${key}`, words]), ["family-other", "other"]];
    if (this.mode === "status") return STATUSES.map((status, at) => [`status-${at}`, status]);
    if (this.mode === "module") return [];
    if (this.mode === "time") return ["under p70", "p70", "p90", "p95"].map((words, at) => [`time-${at}`, words]);
    return [
      ["zero", "0"],
      ["words", "same"],
      ...this.calm.legend(),
      ["words", "different"],
      ...this.alarm.legend(),
      ["status-3", "not judged"],
    ].filter(([kind, words]) => kind !== "words" || { same: this.calm, different: this.alarm }[words].any);
  }
}

function siblings(group) {
  return group.parent === null ? group.graph.top : group.graph.groups[group.parent].groups;
}
