// What tests draw: page data as `_page.py` writes it, and a canvas whose letters are all equally wide.

import { PageData } from "../src/model.js";

export const LETTER_WIDTH = 6;

globalThis.document = {
  createElement: () => ({ getContext: () => ({ measureText: (text) => ({ width: text.length * LETTER_WIDTH }) }) }),
};

const ROLES = { intermediate: 0, view: 1, input: 2, output: 3, parameter: 4 };

/**
 * Data of graphs, of which the first may have a verdict, `close`; each with `nodes` of `{ name, op, inputs, outputs, group, origins }`, and if wanted `inputs`, `outputs`,
 * `weights` (names), `groups` (`{ parent, path, name, type }`), and `findings` (`{ value, status, error, places, positions, … }`).
 */
export function pageData(...graphs) {
  const strings = [];
  const lists = [];
  const text = (value = "") => {
    if (!strings.includes(value)) strings.push(value);
    return strings.indexOf(value);
  };
  const texts = (values = []) => lists.push(values.map(text)) - 1;
  const raw = graphs.map(({ inputs = ["x"], outputs = ["y"], weights = [], groups = [], findings = [], ...graph }) => {
    const names = [
      ...new Set([
        ...inputs,
        ...weights,
        ...graph.nodes.flatMap((node) => [...node.inputs, ...node.outputs]),
        ...outputs,
      ]),
    ].filter((name) => name !== null);
    const index = (name) => (name === null ? null : names.indexOf(name));
    const role = (name) =>
      inputs.includes(name)
        ? "input"
        : outputs.includes(name)
          ? "output"
          : weights.includes(name)
            ? "parameter"
            : "intermediate";
    return {
      name: "graph",
      role: "graph",
      ...graph,
      values: names.map((name) => [text(name), ROLES[role(name)], text("float32"), texts(["1", "8"])]),
      groups: groups.map(({ parent = null, path, name, type }) => [parent, text(path), text(name), text(type)]),
      nodes: graph.nodes.map((node) => [
        text(node.name ?? `node of ${node.outputs[0]}`),
        text(node.op ?? "Add"),
        node.group ?? null,
        node.inputs.map(index),
        node.outputs.map(index),
        texts(node.stack),
        null,
        null,
        texts(node.attributes),
        texts(node.origins),
      ]),
      inputs: inputs.map(index),
      outputs: outputs.map(index),
      findings: findings.map((finding) => [
        index(finding.value),
        text(finding.status),
        text(finding.kind),
        0,
        Number(finding.first ?? false),
        finding.error ?? null,
        text(finding.text),
        null,
        texts(Object.keys(finding.measures ?? {})),
        Object.values(finding.measures ?? {}),
        finding.seconds ?? null,
        null,
        null,
        null,
        texts(Object.entries(finding.places ?? {}).flat()),
        finding.positions ?? null,
      ]),
    };
  });
  return new PageData({ strings, lists, remarks: [], close: graphs[0].close, graphs: raw });
}

/** Nodes in a chain from `x` to `y`, where each reads the value before it. */
export function chain(size, more = () => ({})) {
  const value = (index) => (index === 0 ? "x" : index === size ? "y" : `v${index}`);
  return Array.from({ length: size }, (_, index) => ({
    inputs: [value(index)],
    outputs: [value(index + 1)],
    ...more(index),
  }));
}
