// What stands above the graph: its title, the search, the choices and the toggles; and what a report says of all of it.

import { h, name } from "./dom.js";

const MODES = { error: "error", status: "status", operator: "operator", time: "time", module: "module" };

export class Top {
  constructor(app) {
    this.app = app;
    this.toggles = {
      path: this.toggle("Path", "p", () => app.togglePath()),
      tensors: this.toggle("Values", "v", () => app.toggleShown("tensors")),
      weights: this.toggle("Weights", "w", () => app.toggleShown("weights")),
    };
    this.graph = this.graphs();
    this.colour = this.modes();
    const { main } = app.data;
    const title = h("h1", { title: main.name.slice(0, 500) }, name(main.name || "Graph"));
    this.element = h("header", {}, title, app.search.element, h("div", { class: "tools" }, this.tools()));
  }

  tools() {
    const { app } = this;
    const { path, tensors, weights } = this.toggles;
    const first = [this.button("First divergence", "d", () => app.toFirst(), "alarm"), path];
    return [
      this.graph,
      app.data.first ? first : null,
      this.colour,
      tensors,
      weights,
      this.button("Table", "t", () => app.toggleDrawer()),
      this.icon("Light or dark (l)", "◐", () => app.toggleTheme()),
      this.icon("Keys (?)", "?", () => app.help.showModal()),
    ];
  }

  button(text, key, act, kind = "") {
    return h("button", { type: "button", class: kind, title: `${text} (${key})`, onclick: act }, text);
  }

  toggle(text, key, act) {
    const made = this.button(text, key, act, "toggle");
    made.setAttribute("aria-pressed", "false");
    return made;
  }

  icon(words, text, act) {
    return h("button", { type: "button", class: "icon", "aria-label": words, title: words, onclick: act }, text);
  }

  /** What colours say. */
  modes() {
    const { colours } = this.app;
    const option = (mode) => h("option", { value: mode, selected: mode === colours.mode }, `Colour: ${MODES[mode]}`);
    const change = () => this.app.paint(this.colour.value);
    return h("select", { "aria-label": "Colour by", onchange: change }, colours.modes.map(option));
  }

  /** Which graph is drawn, where there are several. */
  graphs() {
    const { data } = this.app;
    if (data.graphs.length < 2) return null;
    const words = { graph: data.before ? "Compiled graph" : "Graph", before: "Exported graph" };
    const label = (graph) => words[graph.role] || `Function ${graph.of.slice(0, 40)}`;
    const options = data.graphs.map((graph) => h("option", { value: graph.place }, label(graph)));
    if (data.before) options.splice(2, 0, h("option", { value: "both" }, "Side by side"));
    const change = () => this.app.choose(this.graph.value);
    return h("select", { "aria-label": "Graph", title: "Graph (s: side by side)", onchange: change }, options);
  }

  press(toggle, pressed) {
    this.toggles[toggle].setAttribute("aria-pressed", String(pressed));
  }
}

/** What a comparison says of all of it; nothing without one. */
export function remarksOf(data) {
  const [headline, ...others] = data.remarks;
  if (!headline) return [];
  const lines = [h("p", { class: "headline" }, headline), others.map((remark) => h("p", {}, remark))];
  return [h("section", { class: "remarks", "aria-label": "Remarks" }, lines)];
}

/** What the colours of a mode say. */
export function legendOf(colours) {
  const titles = { error: "Error", status: "Status", operator: "Operators", time: "Time" };
  const entry = ([kind, words]) => {
    const swatch = kind === "words" ? null : h("i", { class: "swatch" });
    return h("span", { class: `entry ${kind}` }, swatch, words ? h("span", {}, words) : null);
  };
  return [h("b", {}, titles[colours.mode] || "A colour for each module"), ...colours.legend().map(entry)];
}

/** The edge of the drawer that changes its height. */
export function gripOf(drawer) {
  const resize = (height) => {
    drawer.style.setProperty("--height", `${Math.max(90, Math.min(innerHeight * 0.8, height))}px`);
  };
  const words = "Height of the table: up and down change it";
  const grip = h("button", { type: "button", class: "grip", "aria-label": words });
  grip.addEventListener("pointerdown", (event) => grip.setPointerCapture(event.pointerId));
  grip.addEventListener("pointermove", (event) => {
    if (grip.hasPointerCapture(event.pointerId)) resize(innerHeight - event.clientY);
  });
  grip.addEventListener("keydown", (event) => {
    const step = { ArrowUp: 40, ArrowDown: -40 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    resize(drawer.clientHeight + step);
  });
  return grip;
}
