// The graphs, as the page is given them: `_page.py` says what stands where.

const ROLES = ["intermediate", "view", "input", "output", "parameter"];
const JUDGED = ["same", "different", "shape or dtype differs"];
const DIVERGED = ["different", "shape or dtype differs"];

export function numeric(number) {
  if (number === undefined || number === null) return null;
  if (typeof number === "number") return number;
  return /^-?\d+$/.test(number) ? BigInt(number) : Number(number);
}

/** What the worst of several is the largest by: divergence, then doubt, then error. */
function weight(finding) {
  const error = finding.error === null ? 0 : Number.isNaN(finding.error) ? Infinity : finding.error;
  return [finding.diverged ? 1 : 0, finding.judged ? 0 : 1, error];
}

function worse(one, other) {
  if (!one || !other) return one || other || null;
  const [a, b] = [weight(one), weight(other)];
  const place = a.findIndex((part, index) => part !== b[index]);
  return place < 0 || a[place] > b[place] ? one : other;
}

/** All that is in the page: `graphs`, first the one that was drawn, and `remarks`. */
export class Data {
  constructor(raw) {
    this.strings = raw.strings;
    this.lists = raw.lists;
    this.remarks = raw.remarks;
    this.graphs = raw.graphs.map((graph, place) => new Graph(this, graph, place));
    this.main = this.graphs[0];
    this.before = this.graphs.find((graph) => graph.role === "before") || null;
    this.findings = this.graphs.flatMap((graph) => graph.findings);
    if (this.before) this.tie();
  }

  text(place) {
    return place === null || place === undefined ? "" : this.strings[place];
  }

  texts(place) {
    return place === null || place === undefined ? [] : this.lists[place].map((text) => this.strings[text]);
  }

  /** Which nodes and modules of the one graph became which of the other. */
  tie() {
    for (const node of this.main.nodes) {
      const names = node.origins.length ? node.origins : [node.name];
      for (const other of names.map((each) => this.before.byName.get(each)).filter(Boolean)) {
        node.counterparts.push(other);
        other.counterparts.push(node);
      }
    }
    const modules = new Map(this.before.groups.map((group) => [group.path + group.name, group]));
    for (const group of this.main.groups) {
      const other = modules.get(group.path + group.name);
      if (!other) continue;
      group.counterparts.push(other);
      other.counterparts.push(group);
    }
  }

  /** What is found first that is not what it should be. */
  get first() {
    return (
      this.findings.find((finding) => finding.first) ||
      this.findings.filter((finding) => finding.diverged).sort((a, b) => a.order - b.order)[0] ||
      null
    );
  }
}

class Graph {
  constructor(data, raw, place) {
    Object.assign(this, { place, name: raw.name, role: raw.role, of: raw.of || "" });
    this.values = raw.values.map(([own, role, dtype, shape], id) => ({
      ...{ kind: "value", graph: this, id, name: data.text(own), role: ROLES[role], dtype: data.text(dtype) },
      shape: shape === null || shape === undefined ? null : data.texts(shape),
      ...{ producer: null, readers: [], findings: [], worst: null },
    }));
    this.groups = raw.groups.map(([parent, path, label, type], id) => ({
      ...{ kind: "group", graph: this, id, name: data.text(label), path: data.text(path), type: data.text(type) },
      ...{
        parent: parent === null ? null : parent,
        groups: [],
        nodes: [],
        size: 0,
        worst: null,
        seconds: null,
        counterparts: [],
      },
    }));
    this.top = this.groups.filter((group) => group.parent === null);
    for (const group of this.groups) {
      group.chain = group.parent === null ? [group] : [...this.groups[group.parent].chain, group];
      if (group.parent !== null) this.groups[group.parent].groups.push(group);
    }
    this.nodes = raw.nodes.map((node, id) => this.node(data, node, id));
    this.byName = new Map(this.nodes.map((node) => [node.name, node]));
    this.inputs = raw.inputs.map((id) => this.values[id]);
    this.outputs = raw.outputs.map((id) => this.values[id]);
    this.findings = raw.findings.map((finding) => this.finding(data, finding));
    this.settle();
  }

  node(data, raw, id) {
    const [
      own,
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
    const calls = data.texts(stack);
    const given = data.texts(attributes);
    const of = (place) => (place === null ? null : this.values[place]);
    const node = {
      ...{ kind: "node", graph: this, id, name: data.text(own), op: data.text(op), target: data.text(target) },
      ...{
        module: data.text(module),
        source: data.text(source),
        code: data.text(code),
        gradientOf: data.text(forward),
      },
      group: group === null || group === undefined ? null : this.groups[group],
      inputs: (inputs || []).map(of),
      outputs: (outputs || []).map(of),
      captured: (captured || []).map(of),
      stack: Array.from({ length: calls.length / 3 }, (_, at) => calls.slice(3 * at, 3 * at + 3)),
      attributes: Array.from({ length: given.length / 2 }, (_, at) => given.slice(2 * at, 2 * at + 2)),
      origins: data.texts(origins),
      ...{ counterparts: [], findings: [], worst: null, seconds: null, depth: 1 },
    };
    node.chain = node.group ? node.group.chain : [];
    node.reads = [...new Set([...node.inputs, ...node.captured].filter(Boolean))];
    for (const value of node.reads) value.readers.push(node);
    for (const value of node.outputs) if (value) value.producer = node;
    return node;
  }

  finding(data, raw) {
    const [
      value,
      status,
      kind,
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
    ] = raw;
    const found = {
      ...{ graph: this, value: this.values[value], status: data.text(status), stage: data.text(kind), call: call || 0 },
      ...{ first: Boolean(first), error: numeric(error), text: data.text(text), evidence: data.text(evidence) },
      measures: new Map(data.texts(names).map((measure, at) => [measure, numeric(measures[at])])),
      ...{ seconds: numeric(seconds), expected: statistics(expected), actual: statistics(actual) },
      histogram: histogram || null,
    };
    found.judged = JUDGED.includes(found.status);
    found.diverged = DIVERGED.includes(found.status);
    found.node = found.value.producer;
    found.order = found.node ? found.node.id : -1;
    return found;
  }

  /** What follows from the findings and the order of the nodes, for nodes and for the groups around them. */
  settle() {
    for (const found of this.findings) {
      found.value.findings.push(found);
      found.value.worst = worse(found.value.worst, found);
    }
    for (const node of this.nodes) {
      node.findings = node.outputs.filter(Boolean).flatMap((value) => value.findings);
      node.worst = node.findings.reduce(worse, null);
      const times = node.findings.map((found) => found.seconds).filter((seconds) => seconds !== null);
      node.seconds = times.length ? Math.max(...times) : null;
      const sources = node.reads.map((value) => value.producer).filter(Boolean);
      node.depth = 1 + Math.max(0, ...sources.map((source) => source.depth));
      // What depends on nothing but weights belongs to them: shown with them, else as part of what reads it.
      node.fixed = node.reads.every((value) => (value.producer ? value.producer.fixed : value.role === "parameter"));
      node.fixed &&= node.reads.length > 0 || node.op === "Constant";
      node.fixed &&= node.outputs.every((value) => !value || value.role !== "output");
      if (node.group) node.group.nodes.push(node);
      for (const group of node.chain) {
        group.size += 1;
        group.worst = worse(group.worst, node.worst);
        if (node.seconds !== null) group.seconds = (group.seconds || 0) + node.seconds;
      }
    }
  }
}

function statistics(raw) {
  if (!raw) return null;
  const [what, minimum, maximum, mean, std, nan, inf, content] = raw;
  const [least, largest, middle, spread, nans, infs] = [minimum, maximum, mean, std, nan, inf].map(numeric);
  return { what, minimum: least, maximum: largest, mean: middle, std: spread, nan: nans, inf: infs, content };
}

/** `float32[1, 128, 768]`; nothing if neither is known. */
export function typed(value) {
  if (!value.dtype && !value.shape) return "";
  return `${value.dtype || "?"}[${value.shape ? value.shape.join(", ") : "?"}]`;
}

/** The values, and the nodes that make them, on the ways from a node to the outputs, as far as they are wrong.
 * A value that nobody could judge hides no way: it is part of one that goes on to a wrong value. */
export function reach(node) {
  const wrong = (each) => each.worst !== null && each.worst.diverged;
  const blind = (each) => each.worst === null || !each.worst.judged;
  const seen = new Set([node]);
  const pending = [node];
  while (pending.length) {
    for (const value of pending.pop().outputs) {
      for (const next of value ? value.readers : []) {
        if (seen.has(next) || !(wrong(next) || blind(next))) continue;
        seen.add(next);
        pending.push(next);
      }
    }
  }
  const kept = new Set();
  for (const each of [...seen].sort((a, b) => b.id - a.id)) {
    const goesOn = each.outputs.some((value) => value && value.readers.some((reader) => kept.has(reader)));
    if (each === node || wrong(each) || goesOn) kept.add(each);
  }
  return kept;
}
