// The color of a box, as a CSS class that `page.css` gives its look, and the legend.

import { largest, shortNumber, smallest } from "./numbers.js";

/** @import { Finding, Group, Item, PageData } from "./model.js" */
/** @typedef {"operator" | "module" | "error" | "status" | "time"} ColorMode */
/** @typedef {[cssClass: string, text: string]} LegendEntry the class is "words" for text without a color */

/** The first pattern that an operator's name matches gives its family. @type {[string, RegExp, string][]} */
const FAMILIES = [
  ["norm", /norm/, "normalize"],
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
/** What is found of a value of one of two implementations, from the strongest evidence. */
export const EVIDENCE = [
  ...["proved", "anchored", "by value", "ambiguous", "given", "found", "in part", "uncovered"],
  ...["inherited", "contradicted", "leaves A", "not in B", "not found", "unused"],
];
const STATUSES = ["same", "different", "shape or dtype differs", "no value", "not mapped"];
const MODULE_COLOURS = 8;
const TIME_PERCENTILES = [0.7, 0.9, 0.95];

/** @type {Map<string, string>} */
const families = new Map();

/**
 * The family of an operator, such as "norm" or "compute".
 * @param {string} op
 */
export function operatorFamily(op) {
  let family = families.get(op);
  if (family === undefined) {
    const name = operatorName(op).slice(0, 80).toLowerCase();
    [family] = FAMILIES.find(([, pattern]) => pattern.test(name)) ?? ["other"];
    families.set(op, family);
  }
  return family;
}

/**
 * An operator without its domain.
 * @param {string} op
 */
export function operatorName(op) {
  return op.includes("::") ? op.slice(op.lastIndexOf("::") + 2) : op;
}

/**
 * The class of a finding's status.
 * @param {Finding} finding
 */
export function statusClass({ status }) {
  if (EVIDENCE.includes(status)) return `evidence-${status.replaceAll(" ", "-").toLowerCase()}`;
  return `status-${STATUSES.indexOf(status)}`;
}

/** The steps of a logarithmic scale from the smallest to the largest of some errors. */
export class Scale {
  /**
   * @param {string} prefix of the steps' classes
   * @param {number} steps
   * @param {number[]} errors positive and finite
   */
  constructor(prefix, steps, errors) {
    this.prefix = prefix;
    this.steps = steps;
    this.empty = errors.length === 0;
    this.high = largest(errors, 0);
    // Errors below a hundred-millionth of the largest share the first step.
    this.low = Math.max(smallest(errors), this.high * 1e-8);
  }

  /** @param {number} error */
  classOf(error) {
    const graded = Number.isFinite(error) && this.high > this.low;
    const part = graded ? Math.log(error / this.low) / Math.log(this.high / this.low) : 1;
    return `${this.prefix}-${Math.max(0, Math.min(this.steps - 1, Math.floor(part * this.steps)))}`;
  }

  /**
   * The steps; the first and the last one have their limits as text.
   * @returns {LegendEntry[]}
   */
  legend() {
    if (this.empty) return [];
    const last = this.steps - 1;
    if (!(this.high > this.low)) return [[`${this.prefix}-${last}`, shortNumber(this.high)]];
    const text = (/** @type {number} */ step) =>
      step === 0 ? shortNumber(this.low) : step === last ? shortNumber(this.high) : "";
    return Array.from({ length: this.steps }, (_, step) => [`${this.prefix}-${step}`, text(step)]);
  }
}

/** The colors of one page. */
export class Colors {
  /** @param {PageData} data */
  constructor(data) {
    const { findings } = data;
    this.hasFindings = findings.length > 0;
    const errors = (/** @type {boolean} */ diverged) =>
      findings
        .filter((finding) => finding.diverged === diverged)
        .map((finding) => finding.error ?? 0)
        .filter((error) => error > 0 && Number.isFinite(error));
    // Two scales: the largest error of a run without divergences must not look like an alarm.
    this.sameScale = new Scale("calm", 4, errors(false));
    this.differentScale = new Scale("error", 7, errors(true));
    const times = data.graphs
      .flatMap((graph) => graph.nodes.map((node) => node.seconds))
      .filter((seconds) => seconds !== null)
      .sort((a, b) => a - b);
    this.timeLimits = TIME_PERCENTILES.map((part) => times[Math.floor(part * (times.length - 1))]);
    /** @type {ColorMode[]} */
    this.modes = ["operator", "module"];
    if (data.reference) this.modes = ["status"];
    else if (this.hasFindings) this.modes.push("error", "status");
    if (times.length) this.modes.push("time");
    /** @type {ColorMode} */
    this.mode = this.hasFindings ? "status" : "operator";
    if (findings.some((finding) => finding.error !== null)) this.mode = "error";
  }

  /** @param {Item} item */
  classOf(item) {
    if (this.mode === "error") return this.errorClass(item.worst);
    if (this.mode === "status") return item.worst ? statusClass(item.worst) : "plain";
    if (this.mode === "time") return this.timeClass(item);
    if (this.mode === "module") return moduleClass(item);
    if (item.kind === "node") return `family-${operatorFamily(item.op)}`;
    return item.kind === "value" ? `role-${item.role}` : "plain";
  }

  /** @param {Finding | null} finding */
  errorClass(finding) {
    if (!finding) return "plain";
    if (finding.error === null) return statusClass(finding);
    if (finding.diverged) return this.differentScale.classOf(finding.error);
    return finding.error === 0 ? "zero" : this.sameScale.classOf(finding.error);
  }

  /**
   * By how many of the percentiles a node exceeds; a group has the class of its slowest node.
   * @param {Item} item
   * @returns {string}
   */
  timeClass(item) {
    if (item.kind === "value") return "plain";
    if (item.kind === "group") {
      const inside = item.graph.nodes.filter((node) => node.groupPath.includes(item));
      return (
        inside
          .map((node) => this.timeClass(node))
          .sort()
          .at(-1) ?? "plain"
      );
    }
    const { seconds } = item;
    if (seconds === null) return "plain";
    return `time-${this.timeLimits.filter((limit) => seconds >= limit && seconds > 0).length}`;
  }

  /** @returns {LegendEntry[]} */
  legend() {
    if (this.mode === "operator") {
      /** @type {LegendEntry[]} */
      const entries = FAMILIES.map(([family, , text]) => [`family-${family}`, text]);
      return [...entries, ["family-other", "other"]];
    }
    if (this.mode === "status") return STATUSES.map((status, index) => [`status-${index}`, status]);
    if (this.mode === "module") return [];
    if (this.mode === "time") return ["under p70", "p70", "p90", "p95"].map((text, index) => [`time-${index}`, text]);
    /** @type {(title: string, scale: Scale) => LegendEntry[]} */
    const titled = (title, scale) => (scale.empty ? [] : [["words", title], ...scale.legend()]);
    return [
      ["zero", "0"],
      ...titled("same", this.sameScale),
      ...titled("different", this.differentScale),
      ["status-3", "not compared"],
    ];
  }
}

/** @param {Item} item */
function moduleClass(item) {
  const path = item.kind === "value" ? (item.producer?.groupPath ?? []) : item.groupPath;
  // The outermost level with more than one group: a whole model may be inside one group.
  const group = path.find((each) => siblings(each).length > 1);
  return group ? `module-${siblings(group).indexOf(group) % MODULE_COLOURS}` : "plain";
}

/** @param {Group} group */
function siblings(group) {
  return group.parent?.groups ?? group.graph.topGroups;
}
