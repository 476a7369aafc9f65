// What is known of what is selected.

import { STATUSES } from "./colour.js";
import { h, name, numberCell } from "./dom.js";
import { count, exact, milliseconds } from "./numbers.js";
import { histogram, statisticsTable } from "./figures.js";
import { typed } from "./model.js";

export class Panel {
  constructor(app) {
    this.app = app;
    this.body = h("div", { class: "panel-body" });
    this.element = h("aside", { class: "panel", "aria-label": "Details", tabindex: -1 }, this.body);
  }

  show(thing) {
    this.element.classList.toggle("filled", Boolean(thing));
    this.element.scrollTop = 0;
    this.body.replaceChildren(...(thing ? this.of(thing) : this.ofAll()).flat(3).filter(Boolean));
  }

  of(thing) {
    const close = h(
      "button",
      {
        type: "button",
        class: "close",
        "aria-label": "Close details (Esc)",
        title: "Close (Esc)",
        onclick: () => this.app.select(null),
      },
      "×",
    );
    const parts = {
      node: () => this.ofNode(thing),
      group: () => this.ofGroup(thing),
      value: () => this.ofValue(thing),
    };
    return [close, ...parts[thing.kind]()];
  }

  ofAll() {
    const { graphs } = this.app.data;
    const facts = graphs.map((graph) => [
      h("h3", {}, { graph: "Graph", before: "Made of", function: `Function ${graph.of}` }[graph.role]),
      h("p", {}, name(graph.name || "unnamed")),
      h(
        "p",
        { class: "muted" },
        `${count(graph.nodes.length, "operation")}, ${count(graph.values.length, "value")}, ${count(graph.groups.length, "module call")}`,
      ),
    ]);
    return [
      h(
        "p",
        { class: "hint" },
        "Click a box for what is known of it. Double click opens a layer. ",
        h("kbd", {}, "?"),
        " shows all keys.",
      ),
      ...facts,
    ];
  }

  ofNode(node) {
    return [
      h("p", { class: "kind" }, "operator"),
      h("h2", {}, name(node.op)),
      h("p", { class: "full-name" }, name(node.name)),
      this.breadcrumb(node),
      this.counterparts(node),
      node.findings.map((found) => this.finding(found)),
      this.values("Inputs", node.inputs),
      node.captured.length ? this.values("Captured", node.captured) : null,
      this.values("Outputs", node.outputs),
      this.attributes(node),
      this.origin(node),
    ];
  }

  ofGroup(group) {
    const ops = new Map();
    for (const node of group.graph.nodes) if (node.chain.includes(group)) ops.set(node.op, (ops.get(node.op) || 0) + 1);
    const sorted = [...ops].sort((a, b) => b[1] - a[1]);
    const pane = this.app.paneOf(group);
    return [
      h("p", { class: "kind" }, "module call"),
      h("h2", {}, name(group.name)),
      h("p", { class: "full-name" }, name(group.type || "class not known")),
      this.breadcrumb(group),
      h(
        "p",
        {},
        h(
          "button",
          { type: "button", onclick: () => (pane.toggle(group), this.show(group)) },
          pane.scene.open.has(group) ? "Close this layer" : "Open this layer",
        ),
      ),
      group.seconds !== null ? this.facts("Time", [["all operations", milliseconds(group.seconds)]]) : null,
      group.worst
        ? [h("h3", {}, "Worst inside"), h("p", {}, this.link(group.worst.value)), this.finding(group.worst)]
        : null,
      this.facts(
        count(group.size, "operation"),
        sorted.map(([op, number]) => [name(op), number.toLocaleString("en")]),
      ),
    ];
  }

  ofValue(value) {
    return [
      h("p", { class: "kind" }, { parameter: "weight", view: "view of another value" }[value.role] || value.role),
      h("h2", {}, name(value.name)),
      h("p", { class: "full-name" }, typed(value)),
      value.findings.map((found) => this.finding(found)),
      value.producer
        ? [h("h3", {}, "Made by"), h("ul", { class: "links" }, h("li", {}, this.link(value.producer)))]
        : null,
      value.readers.length
        ? [
            h("h3", {}, "Read by"),
            h(
              "ul",
              { class: "links" },
              value.readers.map((node) => h("li", {}, this.link(node))),
            ),
          ]
        : null,
    ];
  }

  link(thing) {
    const words = thing.kind === "node" ? [h("b", {}, name(thing.op)), " ", name(thing.name)] : name(thing.name);
    return h(
      "button",
      {
        type: "button",
        class: "link",
        title: thing.name.slice(0, 300),
        onclick: () => this.app.select(thing, { move: true }),
      },
      words,
    );
  }

  breadcrumb(thing) {
    const around = thing.kind === "group" ? thing.chain.slice(0, -1) : thing.chain;
    if (!around.length) return null;
    return h(
      "nav",
      { class: "path", "aria-label": "Modules around it" },
      around.map((group) => [this.link(group), h("span", { class: "sep", "aria-hidden": "true" }, "›")]),
    );
  }

  counterparts(node) {
    if (!this.app.data.before || node.graph.role === "function") return null;
    const list = node.counterparts.map((other) => h("li", {}, this.link(other)));
    const later = node.graph.role === "before";
    if (!list.length)
      return later ? h("p", { class: "muted" }, "No node of the compiled graph says that it computes this one.") : null;
    const words = later ? "Became" : node.counterparts.length > 1 ? `Fused of ${node.counterparts.length}` : "Was";
    const fused = later && node.counterparts.some((other) => other.counterparts.length > 1);
    return [h("h3", {}, fused ? "Fused into" : words), h("ul", { class: "links" }, list)];
  }

  finding(found) {
    const facts = [...found.measures].map(([measure, number]) => [measure, numberCell(number)]);
    return h(
      "section",
      { class: `finding status-${STATUSES.indexOf(found.status)}` },
      h(
        "h3",
        {},
        h("span", { class: "dot" }),
        found.status,
        found.call ? h("small", {}, ` call ${found.call}`) : null,
        found.first ? h("small", { class: "first-mark" }, " first divergence") : null,
      ),
      found.error !== null ? h("p", { class: "big" }, numberCell(found.error), h("small", {}, " error")) : null,
      found.text ? h("p", {}, found.text) : null,
      found.evidence ? h("p", { class: "muted" }, `reference: ${found.evidence}`) : null,
      found.seconds !== null
        ? h(
            "p",
            {},
            "takes ",
            h("data", { class: "number", "data-value": exact(found.seconds) }, milliseconds(found.seconds)),
          )
        : null,
      facts.length ? this.facts("", facts) : null,
      found.expected || found.actual ? statisticsTable(found.expected, found.actual) : null,
      found.histogram ? histogram(found.histogram) : null,
    );
  }

  values(title, values) {
    if (!values.length) return null;
    const row = (value) =>
      value ? h("li", {}, this.link(value), h("small", {}, typed(value))) : h("li", { class: "muted" }, "left out");
    return [h("h3", {}, title), h("ul", { class: "links" }, values.map(row))];
  }

  attributes(node) {
    return node.attributes.length
      ? this.facts(
          "Attributes",
          node.attributes.map(([key, text]) => [name(key), h("code", {}, name(text))]),
        )
      : null;
  }

  origin(node) {
    const known = this.app.data.before && node.graph.role === "graph" ? this.app.data.before.byName : new Map();
    const unknown = node.origins.filter((origin) => !known.has(origin));
    const forward = node.gradientOf && (node.graph.byName.get(node.gradientOf) || known.get(node.gradientOf));
    const facts = [
      node.target && ["translates", name(node.target)],
      node.source && ["source", name(node.source)],
      node.code && ["generated code", name(node.code)],
      node.gradientOf && ["gradient of", forward ? this.link(forward) : name(node.gradientOf)],
      node.module && ["module", name(node.module)],
      unknown.length && ["computes", unknown.map((origin) => h("div", {}, name(origin)))],
    ].filter(Boolean);
    const calls = node.stack.map(([path, type, source]) =>
      h("li", {}, name(path || "(the model)"), " ", h("small", {}, [type, source].filter(Boolean).join(" · "))),
    );
    return [
      facts.length ? this.facts("From", facts) : null,
      calls.length ? [h("h3", {}, "Calls around it"), h("ol", { class: "stack" }, calls)] : null,
    ];
  }

  facts(title, rows) {
    const table = h(
      "table",
      { class: "facts" },
      h(
        "tbody",
        {},
        rows.map(([key, held]) => h("tr", {}, h("th", { scope: "row" }, key), h("td", {}, held))),
      ),
    );
    return [title ? h("h3", {}, title) : null, table];
  }
}
