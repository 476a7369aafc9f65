// The page: what is selected, how it is drawn, and the parts that show it.

import { Colors } from "./color.js";
import { html } from "./dom.js";
import { drawerElement } from "./drawer.js";
import { helpDialog, listenToKeys } from "./keys.js";
import { affectedNodes } from "./model.js";
import { Pane } from "./pane.js";
import { Panel } from "./panel.js";
import { Plot } from "./plot.js";
import { listenToPrinter } from "./printing.js";
import { SearchBox } from "./searchbox.js";
import { Table } from "./table.js";
import { legendElements, remarksElements, Toolbar } from "./toolbar.js";
import { Tooltip } from "./tooltip.js";

/** @import { ColorMode } from "./color.js" */
/** @import { Look } from "./drawing.js" */
/** @import { Graph, GraphNode, Group, Item, PageData } from "./model.js" */

/** The page. */
export class App {
  /** @param {PageData} data */
  constructor(data) {
    this.data = data;
    /** @type {Item | null} */
    this.selected = null;
    /** What the first divergence affects, if all else is dim. @type {Set<Item> | null} */
    this.path = null;
    this.shown = { tensors: false, weights: false };
    this.colors = new Colors(data);
    /** The panes that were made so far. @type {Map<Graph, Pane>} */
    this.panes = new Map();
    this.panel = new Panel(this);
    this.help = helpDialog();
    this.tooltip = new Tooltip();
    this.status = html("div", { class: "voice", role: "status", "aria-live": "polite" });
    this.legend = html("div", { class: "legend", "aria-label": "Colors" });
    this.stage = html("div", { class: "stage" });
    this.search = new SearchBox(this);
    this.table = new Table(this);
    this.plot = data.findings.length ? new Plot(this) : null;
    this.drawer = drawerElement([this.plot?.element ?? null, this.table.element], !this.colors.hasFindings);
    this.toolbar = new Toolbar(this);
    const main = html("main", {}, this.stage, this.panel.element);
    document.body.append(this.toolbar.element, ...remarksElements(data), main);
    document.body.append(this.drawer, this.tooltip.element, this.status, this.help);
    /** The graph that is shown when one is. */
    this.graph = data.main;
    this.sideBySide = false;
    this.look = this.currentLook();
    this.active = this.pane(this.graph);
    this.arrangePanes();
    listenToKeys(this);
    this.panel.show(null);
    this.updateLegend();
    const first = data.firstDivergence;
    if (first) this.select(first.node ?? first.value, { move: true, quiet: true });
    listenToPrinter(this);
  }

  /** @returns {Look} */
  currentLook() {
    const { colors, selected, path } = this;
    const counterparts = selected && selected.kind !== "value" ? selected.counterparts : [];
    return { colors, selected, marked: withGroups(counterparts), lit: path };
  }

  redraw() {
    this.look = this.currentLook();
    for (const pane of this.shownPanes) pane.redraw();
  }

  // ---- panes

  get shownPanes() {
    return [...this.panes.values()].filter((pane) => pane.element.isConnected);
  }

  /**
   * The pane of a graph.
   * @param {Graph} graph
   */
  pane(graph) {
    let pane = this.panes.get(graph);
    if (!pane) this.panes.set(graph, (pane = new Pane(this, graph)));
    return pane;
  }

  /**
   * The pane that shows an item, after bringing it to the page.
   * @param {Item} item
   */
  paneOf({ graph }) {
    const pane = this.pane(graph);
    if (!pane.element.isConnected) {
      this.graph = graph;
      if (graph.role === "function") this.sideBySide = false;
      this.arrangePanes();
    }
    return pane;
  }

  arrangePanes() {
    const { main, before } = this.data;
    const graphs = this.sideBySide && before ? [before, main] : [this.graph];
    const wasSideBySide = this.stage.classList.contains("both");
    const panes = graphs.map((graph) => this.pane(graph));
    this.stage.replaceChildren(...panes.map((pane) => pane.element), this.legend);
    this.stage.classList.toggle("both", panes.length > 1);
    this.active = panes[panes.length - 1];
    const select = this.toolbar.graphSelect;
    if (select) select.value = panes.length > 1 ? "both" : String(graphs[0].index);
    for (const pane of panes) pane.resize(wasSideBySide !== panes.length > 1);
  }

  /**
   * Shows a graph by its index, or "both" side by side.
   * @param {string} choice
   */
  chooseGraph(choice) {
    this.sideBySide = choice === "both";
    if (choice !== "both") this.graph = this.data.graphs[Number(choice)];
    this.arrangePanes();
    if (this.selected) this.showCounterparts(this.selected);
  }

  /**
   * Makes a pane the one that keys act on.
   * @param {Pane} pane
   */
  activate(pane) {
    this.active = pane;
  }

  toggleSideBySide() {
    if (!this.data.before) return;
    this.sideBySide = !this.sideBySide;
    this.arrangePanes();
    if (this.selected) this.select(this.selected, { move: true });
  }

  // ---- selection

  /**
   * Selects an item, or nothing.
   * @param {Item | null} item
   * @param {{ move?: boolean, fromTable?: boolean, quiet?: boolean }} options `move`: go there; `fromTable`: the table
   *   shows it already; `quiet`: without animation and announcement
   */
  select(item, { move = false, fromTable = false, quiet = false } = {}) {
    this.selected = item;
    this.panel.show(item);
    this.redraw();
    if (item && move) {
      const pane = this.paneOf(item);
      pane.show(item, !quiet);
      if (!quiet) pane.flash(item);
    }
    if (item && this.sideBySide) this.showCounterparts(item);
    if (item && !fromTable) this.table.show(item);
    else this.table.fill();
    this.plot?.draw();
    if (!quiet) this.announce(item ? description(item) : "Nothing selected");
  }

  /**
   * Moves the other pane to the counterparts of an item.
   * @param {Item} item
   */
  showCounterparts(item) {
    if (item.kind === "value" || !item.counterparts.length) return;
    const [first] = item.counterparts;
    const pane = this.panes.get(first.graph);
    if (!pane?.element.isConnected) return;
    for (const counterpart of item.counterparts) if (pane.scene.reveal(counterpart)) pane.arrange();
    pane.show(first);
  }

  /** Opens or closes the selected group, or the group around what is selected. */
  toggleGroup() {
    const { selected } = this;
    if (!selected || selected.kind === "value") return;
    const group = selected.groupPath.at(-1);
    if (!group) return;
    const pane = this.paneOf(group);
    if (selected !== group) this.select(group);
    pane.show(group);
    pane.toggle(group);
    this.panel.show(group);
  }

  selectReader() {
    if (this.selected) this.selectIfAny(readersOf(this.selected)[0]);
  }

  selectSource() {
    if (this.selected) this.selectIfAny(sourcesOf(this.selected)[0]);
  }

  showFirstDivergence() {
    const first = this.data.firstDivergence;
    this.selectIfAny(first?.node ?? first?.value);
  }

  selectNextDivergence() {
    const nodes = this.divergedNodes();
    this.selectIfAny(nodes.find((node) => node.id > this.selectedIndex) ?? nodes[0]);
  }

  selectPreviousDivergence() {
    const nodes = this.divergedNodes();
    this.selectIfAny(nodes.findLast((node) => node.id < this.selectedIndex) ?? nodes.at(-1));
  }

  divergedNodes() {
    const { main, before } = this.data;
    const graph = before && this.selected?.graph === before ? before : main;
    return graph.nodes.filter((node) => node.worst?.diverged);
  }

  get selectedIndex() {
    return this.selected?.kind === "node" ? this.selected.id : -1;
  }

  /** @param {Item | null | undefined} item */
  selectIfAny(item) {
    if (item) this.select(item, { move: true });
  }

  // ---- how it is drawn

  /** Dims everything that the first divergence does not affect, or nothing. */
  togglePath() {
    const first = this.data.firstDivergence;
    const start = first && (first.node ?? first.value.readers[0]);
    if (!start) return;
    this.path = this.path ? null : withGroups(affectedNodes(start));
    for (const value of start.graph.outputs) if (value.producer && this.path?.has(value.producer)) this.path.add(value);
    this.toolbar.setPressed("path", Boolean(this.path));
    this.redraw();
  }

  /** @param {ColorMode} mode */
  setColorMode(mode) {
    this.colors.mode = mode;
    this.toolbar.colorSelect.value = mode;
    this.updateLegend();
    this.redraw();
  }

  updateLegend() {
    this.legend.replaceChildren(...legendElements(this.colors));
  }

  /**
   * Draws values between operations, or weights, or no longer.
   * @param {"tensors" | "weights"} what
   */
  toggleShown(what) {
    this.shown[what] = !this.shown[what];
    this.toolbar.setPressed(what, this.shown[what]);
    for (const pane of this.panes.values()) pane.change(() => pane.scene.show(this.shown), pane.focus);
    this.redraw();
  }

  toggleDrawer() {
    this.drawer.classList.toggle("closed");
  }

  toggleTheme() {
    const { dataset } = document.documentElement;
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = dataset.theme ?? (dark ? "dark" : "light");
    dataset.theme = now === "dark" ? "light" : "dark";
  }

  /**
   * Tells screen readers.
   * @param {string} text
   */
  announce(text) {
    this.status.textContent = text;
  }
}

/**
 * Nodes or groups, with the groups around them, which stand for them while closed.
 * @param {Iterable<GraphNode | Group>} items
 * @returns {Set<Item>}
 */
function withGroups(items) {
  return new Set([...items].flatMap((item) => [item, ...item.groupPath]));
}

/** @param {Item} item */
function description(item) {
  const op = item.kind === "node" ? `${item.op} ` : "";
  return `${op}${item.name.slice(0, 200)}${item.worst ? `, ${item.worst.status}` : ""}`;
}

/**
 * @param {Item} item
 * @returns {GraphNode[]}
 */
function readersOf(item) {
  if (item.kind === "value") return item.readers;
  return item.kind === "node" ? item.written.flatMap((value) => value.readers) : [];
}

/**
 * The nodes and graph inputs that an item is computed from.
 * @param {Item} item
 * @returns {Item[]}
 */
function sourcesOf(item) {
  if (item.kind === "value") return item.producer ? [item.producer] : [];
  if (item.kind === "group") return [];
  return item.inputs.flatMap((value) => value?.producer ?? (value?.role === "input" ? value : []));
}
