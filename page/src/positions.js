// What is known of values by position: a row for each module or value, from the first to the last.

import { Scale } from "./color.js";
import { largest } from "./numbers.js";

/** @import { LegendEntry } from "./color.js" */
/** @import { Finding, GraphNode, PageData } from "./model.js" */
/** @typedef {Finding & { positions: NonNullable<Finding["positions"]> }} PositionedFinding */
/** @typedef {"module" | "value"} RowKind */

/** A row of cells: a module, or a value. */
export class PositionRow {
  /**
   * @param {string} name
   * @param {PositionedFinding[]} findings in the order of execution
   */
  constructor(name, findings) {
    this.name = name;
    this.findings = findings;
    const length = largest(
      findings.map(({ positions }) => positions.errors.length),
      0,
    );
    /** The largest error at each position. */
    this.errors = Array.from({ length }, (_, at) => largest(findings.map((each) => sizeAt(each, at))));
    this.wrong = new Set(findings.flatMap(({ positions }) => [...positions.wrong]));
  }

  /**
   * The finding that a cell shows: the first that is wrong there, else the one with the largest error.
   * @param {number} at
   */
  findingAt(at) {
    const wrong = this.findings.find(({ positions }) => positions.wrong.has(at));
    return wrong ?? this.findings.reduce((a, b) => (sizeAt(b, at) > sizeAt(a, at) ? b : a));
  }
}

/**
 * An error of a finding; infinite if it is NaN.
 * @param {PositionedFinding} finding
 * @param {number} at
 */
function sizeAt({ positions }, at) {
  const error = positions.errors[at] ?? 0;
  return Number.isNaN(error) ? Infinity : error;
}

/**
 * The findings that are known by position, in the order of execution: of the exported graph, then of the compiled one.
 * @param {PageData} data
 */
export function positioned({ main, before }) {
  const findings = [before, main].flatMap((graph) => graph?.findings ?? []);
  return /** @type {PositionedFinding[]} */ (findings.filter(({ positions }) => positions !== null));
}

/**
 * The rows of a page: of modules, by what they compute last, or of values. Outputs have rows of their own, at the end.
 * @param {PageData} data
 * @param {RowKind} kind
 */
export function positionRows(data, kind) {
  const findings = positioned(data);
  const graphs = new Set(findings.map(({ graph }) => graph));
  const isOutput = (/** @type {Finding} */ { stage }) => stage === "output";
  const name = (/** @type {PositionedFinding} */ finding) => {
    const { node, value, graph } = finding;
    const own = kind === "value" || isOutput(finding) ? value.name : moduleOf(node);
    return graphs.size > 1 ? `${own} (${data.titleOf(graph).toLowerCase()})` : own;
  };
  /** @type {Map<string, PositionedFinding[]>} */
  const rows = new Map();
  for (const finding of [...findings.filter((each) => !isOutput(each)), ...findings.filter(isOutput)]) {
    const key = `${isOutput(finding)} ${name(finding)}`;
    const row = rows.get(key) ?? [];
    if (kind === "module") rows.delete(key); // a module is where it computes its last value
    rows.set(key, row);
    row.push(finding);
  }
  return [...rows.values()].map((row) => new PositionRow(name(row[0]), row));
}

/** @param {GraphNode | null} node */
function moduleOf(node) {
  return node?.module || node?.group?.path || "(the model)";
}

/** The colors of cells: one scale for what is right, another one for what is wrong. */
export class PositionColors {
  /** @param {PositionRow[]} rows */
  constructor(rows) {
    this.mode = /** @type {const} */ ("error");
    const errors = (/** @type {boolean} */ wrong) =>
      rows
        .flatMap((row) => row.errors.filter((_, at) => row.wrong.has(at) === wrong))
        .filter((error) => error > 0 && Number.isFinite(error));
    this.rightScale = new Scale("calm", 4, errors(false));
    this.wrongScale = new Scale("error", 7, errors(true));
  }

  /**
   * @param {PositionRow} row
   * @param {number} at
   */
  classOf(row, at) {
    const error = row.errors[at];
    if (row.wrong.has(at)) return this.wrongScale.classOf(error);
    return error === 0 ? "zero" : this.rightScale.classOf(error);
  }

  /** @returns {LegendEntry[]} */
  legend() {
    /** @type {(title: string, scale: Scale) => LegendEntry[]} */
    const titled = (title, scale) => (scale.empty ? [] : [["words", title], ...scale.legend()]);
    return [["zero", "0"], ...titled("right", this.rightScale), ...titled("wrong", this.wrongScale)];
  }
}

/**
 * How many columns apart numbers of columns are, so that they do not touch.
 * @param {number} width of a column
 * @param {number} room that a number needs
 */
export function labelStep(width, room) {
  for (let power = 1; ; power *= 10) {
    const step = [1, 2, 5].find((digit) => digit * power * width >= room);
    if (step) return step * power;
  }
}
