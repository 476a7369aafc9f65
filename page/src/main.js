// The page: what is selected and how it is drawn, and the parts that show it.

import { Colours } from "./colour.js";
import { h } from "./dom.js";
import { helpOn, listenToKeys } from "./keys.js";
import { Data, reach } from "./model.js";
import { Pane } from "./pane.js";
import { Panel } from "./panel.js";
import { listenToPrinter } from "./paper.js";
import { Plot } from "./plot.js";
import { Search } from "./search.js";
import { Table } from "./table.js";
import { Tip } from "./tip.js";
import { Top, gripOf, legendOf, remarksOf } from "./top.js";

class App {
  constructor(data) {
    this.data = data;
    this.selected = null;
    this.path = null; // what the first divergence reaches, if only that is to be seen
    this.shown = { tensors: false, weights: false };
    this.colours = new Colours(data);
    this.panes = new Map();
    this.panel = new Panel(this);
    this.help = helpOn();
    this.tip = new Tip();
    this.voice = h("div", { class: "voice", role: "status", "aria-live": "polite" });
    this.legend = h("div", { class: "legend", "aria-label": "Colours" });
    this.stage = h("div", { class: "stage" });
    this.search = new Search(this);
    this.table = new Table(this);
    this.plot = data.findings.length ? new Plot(this) : null;
    this.drawer = h("div", { class: "drawer" });
    this.drawer.append(...[gripOf(this.drawer), this.plot && this.plot.element, this.table.element].filter(Boolean));
    this.top = new Top(this);
    const main = h("main", {}, this.stage, this.panel.element);
    document.body.append(this.top.element, ...remarksOf(data), main);
    document.body.append(this.drawer, this.tip.element, this.voice, this.help);
    this.drawer.classList.toggle("closed", !this.colours.judged);
    this.sides = "graph";
    this.look = this.looks();
    this.arrangePanes();
    listenToKeys(this);
    this.panel.show(null);
    this.paintLegend();
    if (data.first) this.select(data.first.node || data.first.value, { move: true, quiet: true });
    listenToPrinter(this);
  }

  /** How things look now; drawings keep it until the next. */
  looks() {
    const { selected, path, colours } = this;
    const marked = this.withGroups((selected && selected.counterparts) || []);
    return { colours, selected, marked, lit: path };
  }

  /** The same, with the groups around them: folded, they stand for them. */
  withGroups(nodes) {
    return new Set([...nodes].flatMap((node) => [node, ...node.chain]));
  }

  redraw() {
    this.look = this.looks();
    for (const pane of this.panes.values()) if (pane.element.isConnected) pane.redraw();
  }

  // ---- panes

  paneFor(graph) {
    if (!this.panes.has(graph)) this.panes.set(graph, new Pane(this, graph));
    return this.panes.get(graph);
  }

  /** The pane that shows a thing; it is brought up if it isn't there. */
  paneOf(thing) {
    const pane = this.paneFor(thing.graph);
    if (!pane.element.isConnected) this.showGraph(thing.graph);
    return pane;
  }

  showGraph(graph) {
    this.alone = graph;
    this.sides = graph.role === "function" || this.sides !== "both" ? "graph" : "both";
    this.arrangePanes();
  }

  arrangePanes() {
    const { main, before } = this.data;
    const graphs = this.sides === "both" && before ? [before, main] : [this.alone || main];
    this.stage.replaceChildren(...graphs.map((graph) => this.paneFor(graph).element), this.legend);
    this.stage.classList.toggle("both", graphs.length > 1);
    this.active = this.paneFor(graphs.at(-1));
    if (this.top.graph) this.top.graph.value = graphs.length > 1 ? "both" : graphs[0].place;
    for (const graph of graphs) this.paneFor(graph).resize(graphs.length !== this.shownGraphs);
    this.shownGraphs = graphs.length;
  }

  /** A graph by its place, or "both". */
  choose(graph) {
    this.sides = graph === "both" ? "both" : "graph";
    if (graph !== "both") this.alone = this.data.graphs[graph];
    this.arrangePanes();
    if (this.selected) this.showCounterparts(this.selected);
  }

  focus(pane) {
    this.active = pane;
  }

  toggleSides() {
    if (!this.data.before) return;
    this.sides = this.sides === "both" ? "graph" : "both";
    this.arrangePanes();
    if (this.selected) this.select(this.selected, { move: true });
  }

  // ---- what is selected

  /** Selects a node, a group, a value or nothing; `move` goes there, `from` is where it was clicked. */
  select(thing, { move = false, from = null, quiet = false } = {}) {
    this.selected = thing;
    this.panel.show(thing);
    this.redraw();
    if (thing && move) {
      const pane = this.paneOf(thing);
      pane.show(thing, !quiet);
      if (!quiet) pane.flash(thing);
    }
    if (thing && this.sides === "both") this.showCounterparts(thing);
    if (from !== this.table && thing) this.table.show(thing);
    else this.table.fill(true);
    if (this.plot) this.plot.draw();
    if (!quiet)
      this.say(
        thing
          ? `${thing.op || ""} ${thing.name.slice(0, 200)}${thing.worst ? `, ${thing.worst.status}` : ""}`
          : "Nothing selected",
      );
  }

  showCounterparts(thing) {
    const [other] = thing.counterparts || [];
    const pane = other && this.panes.get(other.graph);
    if (!pane || !pane.element.isConnected) return;
    for (const each of thing.counterparts) if (pane.scene.reveal(each)) pane.arrange();
    pane.show(other);
  }

  fold() {
    const { selected } = this;
    const group = selected && (selected.kind === "group" ? selected : (selected.chain || []).at(-1));
    if (!group) return;
    const pane = this.paneOf(group);
    if (selected !== group) this.select(group);
    pane.show(group);
    pane.toggle(group);
    this.panel.show(group);
  }

  follow(way) {
    const { selected } = this;
    const next = selected && (way > 0 ? readersOf(selected) : makersOf(selected)).find(Boolean);
    if (next) this.select(next, { move: true });
  }

  toFirst() {
    const { first } = this.data;
    if (first) this.select(first.node || first.value, { move: true });
  }

  toNext(way) {
    const { selected, data } = this;
    const graph = selected && selected.graph === data.before ? data.before : data.main;
    const wrong = graph.nodes.filter((node) => node.worst && node.worst.diverged);
    const now = selected && selected.kind === "node" ? selected.id : -1;
    const behind = wrong.find((node) => node.id > now) || wrong[0];
    const next = way > 0 ? behind : wrong.findLast((node) => node.id < now) || wrong.at(-1);
    if (next) this.select(next, { move: true });
  }

  togglePath() {
    const { first } = this.data;
    const start = first && (first.node || first.value.readers[0]);
    if (!start) return;
    this.path = this.path ? null : this.withGroups(reach(start));
    if (this.path) for (const value of start.graph.outputs) if (this.path.has(value.producer)) this.path.add(value);
    this.top.press("path", Boolean(this.path));
    this.redraw();
  }

  // ---- how it is drawn

  paint(mode) {
    this.colours.mode = mode;
    this.top.colour.value = mode;
    this.paintLegend();
    this.redraw();
  }

  paintLegend() {
    this.legend.replaceChildren(...legendOf(this.colours));
  }

  toggleShown(what) {
    this.shown[what] = !this.shown[what];
    this.top.press(what, this.shown[what]);
    for (const pane of this.panes.values()) pane.change(() => pane.scene.show(this.shown), pane.lookedAt);
    this.redraw();
  }

  toggleDrawer() {
    this.drawer.classList.toggle("closed");
  }

  toggleTheme() {
    const { dataset } = document.documentElement;
    const now = dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    dataset.theme = now === "dark" ? "light" : "dark";
  }

  // ---- words

  say(words) {
    this.voice.textContent = words;
  }

  hover(pane, event) {
    const hit = event && event.pointerType !== "touch" ? pane.at(event) : null;
    pane.svg.style.cursor = hit ? "pointer" : "";
    this.tip.show(hit ? hit.thing : null, event);
  }
}

function readersOf(thing) {
  if (thing.kind === "value") return thing.readers;
  return (thing.outputs || []).flatMap((value) => (value ? value.readers : []));
}

function makersOf(thing) {
  if (thing.kind === "value") return [thing.producer];
  const of = (value) => value && (value.producer || (value.role === "input" ? value : null));
  return (thing.inputs || []).map(of);
}

// For the console, and for tests.
window.filch = new App(new Data(JSON.parse(document.getElementById("data").textContent)));
requestAnimationFrame(() => {
  document.documentElement.dataset.drawn = String(Math.round(performance.now()));
  performance.mark("filch-drawn");
});
