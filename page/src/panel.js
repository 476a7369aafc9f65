// The details of what is selected.

import { statusClass } from "./color.js";
import { follow } from "./counterparts.js";
import { contents, html, nameElement, numberElement } from "./dom.js";
import { histogramElement, statisticsTable } from "./figures.js";
import { metricElement } from "./metrics.js";
import { readersOfConstant, typeLabel } from "./model.js";
import { Outline } from "./outline.js";
import { overviewElements } from "./overview.js";
import { linksOfOperands } from "./tree.js";
import { count, exactNumber, milliseconds } from "./numbers.js";

/** @import { App } from "./app.js" */
/** @import { Child } from "./dom.js" */
/** @import { Finding, Graph, GraphNode, Group, Item, Value } from "./model.js" */

const LONGEST_CONSTANT = 60; // characters

/** The panel beside the graph. */
export class Panel {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.body = html("div", { class: "panel-body" });
    this.element = html("aside", { class: "panel", "aria-label": "Details", tabindex: -1 }, this.body);
  }

  /** @param {Item | null} item */
  show(item) {
    this.element.classList.toggle("filled", Boolean(item));
    this.element.scrollTop = 0;
    this.body.replaceChildren(...contents(item ? [this.closeButton(), ...this.details(item)] : this.overview()));
  }

  closeButton() {
    const title = { "aria-label": "Close details (Esc)", title: "Close (Esc)" };
    return html("button", { type: "button", class: "close", ...title, onclick: () => this.app.select(null) }, "×");
  }

  /** @returns {Child[]} */
  overview() {
    if (this.app.data.reference) return overviewElements(this.app, (item) => this.link(item));
    const size = (/** @type {Graph} */ { nodes, values, groups }) =>
      `${count(nodes.length, "operation")}, ${count(values.length, "value")}, ${count(groups.length, "module call")}`;
    const hint = "Click a box to see its details. Double-click a group to open or close it. ";
    return [
      html("p", { class: "hint" }, hint, html("kbd", {}, "?"), " lists all keys."),
      ...this.app.data.graphs.map((graph) => [
        html("h3", {}, this.app.data.titleOf(graph)),
        html("p", {}, nameElement(graph.name || "unnamed")),
        html("p", { class: "muted" }, size(graph)),
      ]),
    ];
  }

  /**
   * @param {Item} item
   * @returns {Child[]}
   */
  details(item) {
    if (item.kind === "node") return this.nodeDetails(item);
    return item.kind === "group" ? this.groupDetails(item) : this.valueDetails(item);
  }

  /**
   * @param {GraphNode} node
   * @returns {Child[]}
   */
  nodeDetails(node) {
    return [
      html("p", { class: "kind" }, node.constant ? "constant" : "operator", this.graphTag(node)),
      html("h2", {}, nameElement(node.op)),
      html("p", { class: "full-name" }, nameElement(node.name), this.app.data.reference && lineOf(node.source)),
      this.groupPath(node.groupPath),
      this.counterparts(node),
      node.constant && this.links("Input of", readersOfConstant(node)),
      node.findings.map((finding) => this.finding(finding)),
      this.values("Inputs", node.inputs),
      this.values("Captured", node.captured),
      this.values("Outputs", node.outputs),
      this.attributes(node),
      this.origin(node),
    ];
  }

  /**
   * @param {Group} group
   * @returns {Child[]}
   */
  groupDetails(group) {
    /** @type {Map<string, number>} */
    const ops = new Map();
    for (const node of group.graph.nodes) {
      if (node.groupPath.includes(group)) ops.set(node.op, (ops.get(node.op) ?? 0) + 1);
    }
    const frequent = [...ops].sort((a, b) => b[1] - a[1]);
    const pane = this.app.paneOf(group);
    const toggle = () => {
      pane.toggle(group);
      this.show(group);
    };
    const own = pane instanceof Outline ? (pane.tree.entryOf.get(group)?.finding ?? null) : null;
    const label = pane.openGroups.has(group) ? "Close this group" : "Open this group";
    return [
      html("p", { class: "kind" }, "module call", this.graphTag(group)),
      html("h2", {}, nameElement(group.name)),
      html("p", { class: "full-name" }, nameElement(group.type || "unknown class")),
      this.groupPath(group.groupPath.slice(0, -1)),
      !this.app.data.reference && html("p", {}, html("button", { type: "button", onclick: toggle }, label)),
      group.seconds !== null && facts("Time", [["all operations", milliseconds(group.seconds)]]),
      own && this.finding(own),
      group.worst &&
        !this.app.data.reference && [
          html("h3", {}, "Worst value inside"),
          html("p", {}, this.link(group.worst.value)),
          this.finding(group.worst),
        ],
      facts(
        count(group.size, "operation"),
        frequent.map(([op, number]) => [nameElement(op), number.toLocaleString("en")]),
      ),
    ];
  }

  /**
   * @param {Value} value
   * @returns {Child[]}
   */
  valueDetails(value) {
    const roles = new Map([
      ["parameter", "weight"],
      ["view", "view of another value"],
    ]);
    return [
      html(
        "p",
        { class: "kind" },
        isArray(value) ? "array" : (roles.get(value.role) ?? value.role),
        this.graphTag(value),
      ),
      html("h2", {}, nameElement(value.name)),
      html("p", { class: "full-name" }, typeLabel(value)),
      value.findings.map((finding) => this.finding(finding)),
      value.producer && this.links("Written by", [value.producer]),
      value.readers.length > 0 && this.links("Read by", value.readers),
    ];
  }

  /**
   * Which graph an item is in, if there are several.
   * @param {Item} item
   */
  graphTag({ graph }) {
    const { data } = this.app;
    return data.graphs.length > 1 && [" ", html("span", { class: "tag" }, data.titleOf(graph))];
  }

  /**
   * A button that selects an item.
   * @param {Item} item
   */
  link(item) {
    const onclick = () => this.app.select(item, { move: true });
    const name = nameElement(item.name);
    const text =
      item.kind !== "node"
        ? name
        : this.app.data.reference
          ? placeInModel(item)
          : [html("b", {}, nameElement(item.op)), " ", name];
    return html("button", { type: "button", class: "link", title: item.name.slice(0, 300), onclick }, text);
  }

  /**
   * @param {string} title
   * @param {Item[]} items
   */
  links(title, items) {
    const rows = items.map((item) => html("li", {}, this.link(item)));
    return [title && html("h3", {}, title), html("ul", { class: "links" }, rows)];
  }

  /** @param {Group[]} groups */
  groupPath(groups) {
    if (!groups.length) return null;
    const separator = () => html("span", { class: "sep", "aria-hidden": "true" }, "›");
    const links = groups.map((group) => [this.link(group), separator()]);
    return html("nav", { class: "path", "aria-label": "Modules around it" }, links);
  }

  /**
   * What a node became in the compiled graph, or what it was in the exported one.
   * @param {GraphNode} node
   */
  counterparts(node) {
    if (!this.app.data.before || node.graph.role === "function") return null;
    const exported = node.graph.role === "before";
    const { items: others, folded } = follow(node);
    if (!others.length) {
      return (
        exported && html("p", { class: "muted" }, "No node of the compiled graph is known to compute or to read it.")
      );
    }
    if (folded) {
      const text = exported
        ? "Not in the compiled graph: it was folded into a constant or removed. What reads it became:"
        : "Not in the exported graph: the compiler inserted it. What reads it was:";
      return [html("p", { class: "muted folded" }, text), this.links("", others)];
    }
    if (exported) {
      return this.links(others.some((other) => other.counterparts.length > 1) ? "Fused into" : "Became", others);
    }
    return this.links(others.length > 1 ? `Fused from ${others.length}` : "Was", others);
  }

  /** @param {Finding} finding */
  finding(finding) {
    if (this.app.data.reference) return this.linkedFinding(finding);
    const { call, error, evidence, expected, actual, seconds } = finding;
    const measures = [...finding.measures].map(
      ([name, number]) => /** @type {Fact} */ ([metricElement(name), numberElement(number)]),
    );
    const time = (/** @type {number} */ number) =>
      html("data", { class: "number", "data-value": exactNumber(number) }, milliseconds(number));
    return html(
      "section",
      { class: `finding ${statusClass(finding)}` },
      html(
        "h3",
        {},
        html("span", { class: "dot" }),
        finding.status,
        call > 0 && html("small", {}, ` call ${call}`),
        finding.first && html("small", { class: "first-mark" }, " first divergence"),
      ),
      error !== null &&
        html("p", { class: "big" }, numberElement(error), " ", html("small", {}, metricElement("error"))),
      finding.text && html("p", {}, finding.text),
      evidence && html("p", { class: "muted" }, `reference: ${evidence}`),
      seconds !== null && html("p", {}, "takes ", time(seconds)),
      measures.length > 0 && facts("", measures),
      (expected || actual) && statisticsTable(expected, actual),
      finding.histogram && histogramElement(finding.histogram),
    );
  }

  /**
   * What was found of a value of one of two implementations, with its places in the other one.
   * @param {Finding} finding
   */
  linkedFinding(finding) {
    const { status, text, evidence, links, graph, value } = finding;
    const other = graph === this.app.data.main ? "A" : "B";
    const operands = finding.diverged && !links.length;
    const title = operands
      ? `It is computed from, in ${other}`
      : status === "leaves A"
        ? "Instead of this operation of A"
        : `In ${other}`;
    const places = (operands ? linksOfOperands(finding) : links).map((link) => {
      const small = html("small", {}, [typeLabel(link.value), link.order].filter(Boolean).join(", "));
      return html("li", {}, this.link(link.value.producer ?? link.value), small);
    });
    return html(
      "section",
      { class: `finding ${statusClass(finding)}` },
      html("h3", {}, html("span", { class: "dot" }), status, html("small", {}, ` ${typeLabel(value)}`)),
      text && html("p", { class: "note" }, text),
      evidence && html("p", { class: "muted" }, evidence),
      places.length > 0 && [html("h3", { class: "places" }, title), html("ul", { class: "links" }, places)],
    );
  }

  /**
   * @param {string} title
   * @param {(Value | null)[]} values
   */
  values(title, values) {
    if (!values.length) return null;
    const row = (/** @type {Value | null} */ value) =>
      value
        ? html("li", {}, this.link(value), html("small", {}, typeLabel(value), constantText(value)))
        : html("li", { class: "muted" }, "left out");
    return [html("h3", {}, title), html("ul", { class: "links" }, values.map(row))];
  }

  /** @param {GraphNode} node */
  attributes({ attributes }) {
    if (!attributes.length) return null;
    const rows = attributes.map(
      ([name, text]) => /** @type {Fact} */ ([nameElement(name), html("code", {}, nameElement(text))]),
    );
    return facts("Attributes", rows);
  }

  /**
   * Where a node comes from: source, module and calls.
   * @param {GraphNode} node
   */
  origin(node) {
    const before = node.graph.role === "graph" ? this.app.data.before : null;
    const unknown = node.origins.filter((origin) => !before?.nodeByName.has(origin));
    const forward = node.graph.nodeByName.get(node.gradientOf) ?? before?.nodeByName.get(node.gradientOf);
    /** @type {(title: string, name: string) => Fact[]} */
    const named = (title, name) => (name ? [[title, nameElement(name)]] : []);
    /** @type {Fact[]} */
    const known = [
      ...named("translates", node.target),
      ...named("source", node.source),
      ...named("generated code", node.code),
      ...(forward
        ? [/** @type {Fact} */ (["gradient of", this.link(forward)])]
        : named("gradient of", node.gradientOf)),
      ...named("module", node.module),
    ];
    if (unknown.length) known.push(["computes", unknown.map((origin) => html("div", {}, nameElement(origin)))]);
    const calls = node.stack.map(([path, type, source]) => {
      const place = [type, source].filter(Boolean).join(" · ");
      return html("li", {}, nameElement(path || "(the model)"), " ", html("small", {}, place));
    });
    return [
      known.length > 0 && facts("Origin", known),
      calls.length > 0 && [html("h3", {}, "Module calls around it"), html("ol", { class: "stack" }, calls)],
    ];
  }
}

/**
 * What a constant input holds: the text of the attribute, if it is that of a `Constant`; "" for any other value.
 * @param {Value} value
 */
function constantText({ producer }) {
  if (!producer?.constant) return "";
  const [attribute] = producer.attributes;
  const text = producer.reads.length || !attribute ? "" : ` = ${attribute[1].slice(0, LONGEST_CONSTANT)}`;
  return ` constant${text}`;
}

/**
 * Whether a value is a named array of an implementation whose operations are not known.
 * @param {Value} value
 */
function isArray({ graph, role }) {
  return role !== "parameter" && !graph.nodes.length;
}

/**
 * An operation with its module and line.
 * @param {GraphNode} node
 * @returns {Child}
 */
function placeInModel({ op, module, source }) {
  return [html("b", {}, nameElement(op)), module && [" in ", nameElement(module)], lineOf(source)];
}

/**
 * The line of code without its folder.
 * @param {string} source
 */
function lineOf(source) {
  return source && html("small", {}, " ", nameElement(source.replace(/^.*[\\/]/, "")));
}

/** @typedef {[title: Child, content: Child]} Fact */

/**
 * A table of facts under a title.
 * @param {string} title
 * @param {Fact[]} rows
 */
function facts(title, rows) {
  const row = (/** @type {Fact} */ [key, content]) =>
    html("tr", {}, html("th", { scope: "row" }, key), html("td", {}, content));
  return [title && html("h3", {}, title), html("table", { class: "facts" }, html("tbody", {}, rows.map(row)))];
}
