// The page: what is selected, how it is drawn, and the parts that show it.

import { Colors } from "./color.js";
import { contents, copyText, html } from "./dom.js";
import { drawerElement } from "./drawer.js";
import { helpDialog, listenToKeys } from "./keys.js";
import { follow } from "./counterparts.js";
import { PositionGrid } from "./grid.js";
import { Gutter } from "./gutter.js";
import { History } from "./history.js";
import { affectedNodes, readersOfConstant } from "./model.js";
import { Outline } from "./outline.js";
import { Pane } from "./pane.js";
import { Panel } from "./panel.js";
import { download, pictureOf } from "./picture.js";
import { Plot } from "./plot.js";
import { positioned } from "./positions.js";
import { listenToPrinter } from "./printing.js";
import { SearchBox } from "./searchbox.js";
import { Table } from "./table.js";
import { isShown } from "./scene.js";
import { linkedItems } from "./tree.js";
import { legendElements, Toolbar } from "./toolbar.js";
import { Tooltip } from "./tooltip.js";
import { remarksElement, verdictElement } from "./verdict.js";

/** @import { ColorMode } from "./color.js" */
/** @import { Place } from "./address.js" */
/** @import { Shown } from "./boxes.js" */
/** @import { Look } from "./drawing.js" */
/** @import { Graph, GraphNode, Group, Item, PageData } from "./model.js" */

const MOST_REVEALED = 20; // counterparts of one item whose groups are opened

/** The page. */
export class App {
  /** @param {PageData} data */
  constructor(data) {
    this.data = data;
    /** @type {Item | null} */
    this.selected = null;
    /** What the first divergence affects, if all else is dim. @type {Set<Item> | null} */
    this.path = null;
    const { firstDivergence } = data;
    /** The first divergence, and the groups around it. @type {Set<Item>} */
    this.first = withGroups(firstDivergence?.node ? [firstDivergence.node] : []);
    this.shown = { tensors: false, weights: data.reference !== null, constants: false, unlinked: false };
    this.colors = new Colors(data);
    /** The panes that were made so far. @type {Map<Graph, Pane | Outline>} */
    this.panes = new Map();
    this.panel = new Panel(this);
    this.help = helpDialog(this);
    this.tooltip = new Tooltip();
    this.status = html("div", { class: "voice", role: "status", "aria-live": "polite" });
    this.legend = html("div", { class: "legend", "aria-label": "Colors" });
    this.stage = html("div", { class: "stage" });
    this.search = new SearchBox(this);
    this.table = new Table(this);
    this.grid = positioned(data).length ? new PositionGrid(this) : null;
    this.plot = data.findings.length && !data.reference && !this.grid ? new Plot(this) : null;
    const closed = !this.colors.hasFindings || data.reference !== null;
    this.drawer = drawerElement([(this.grid ?? this.plot)?.element ?? null, this.table.element], closed);
    this.toolbar = new Toolbar(this);
    const main = html("main", {}, this.stage, this.panel.element);
    const heading = [verdictElement(this, this.toolbar.toggles.path), remarksElement(data)];
    document.body.append(...contents([this.toolbar.element, ...heading, main]));
    document.body.append(this.drawer, this.tooltip.element, this.status, this.help);
    /** The graph that is shown when one is. */
    this.graph = data.main;
    this.sideBySide = data.reference !== null;
    /** Between the outlines of two implementations. @type {Gutter | null} */
    this.gutter = null;
    this.look = this.currentLook();
    this.active = this.pane(this.graph);
    this.arrangePanes();
    listenToKeys(this);
    this.panel.show(null);
    this.updateLegend();
    this.showStart();
    this.history = new History(this);
    if (location.hash) this.history.restore();
    listenToPrinter(this);
  }

  /** Shows what a page begins with: the first divergence, if there is one. */
  showStart() {
    const first = this.data.firstDivergence;
    this.select(first ? (first.node ?? first.value) : null, { move: true, quiet: true });
  }

  /**
   * Shows what an address says.
   * @param {Place} place
   */
  showPlace({ graph, sideBySide, item, open }) {
    const { before, reference } = this.data;
    this.sideBySide = reference !== null || (sideBySide && before !== null && graph.role !== "function");
    this.graph = graph;
    this.arrangePanes();
    const pane = this.pane(graph);
    if (open) pane.openOnly(open);
    this.select(item, { move: true, quiet: true });
    if (!item) pane.showStart();
  }

  /** @returns {Look} */
  currentLook() {
    const { colors, selected, path } = this;
    const marked = selected ? [...this.counterparts(selected), ...this.readersOfFolded(selected)] : [];
    if (this.data.reference) return { colors, selected, first: this.first, marked: new Set(marked), lit: path };
    return { colors, selected, first: this.first, marked: withGroups(marked), lit: path };
  }

  /**
   * What stands for an item in the graph beside it.
   * @param {Item} item
   * @returns {Item[]}
   */
  counterparts(item) {
    const { main, reference } = this.data;
    if (!reference) return follow(item).items;
    const [own, other] = [item.graph, item.graph === main ? reference : main].map((graph) => this.pane(graph));
    if (!(own instanceof Outline && other instanceof Outline)) return [];
    const entry = own.entryOf(item);
    return entry ? linkedItems(entry, other.tree) : [];
  }

  /**
   * The nodes whose boxes stand for a constant that has none.
   * @param {Item} item
   * @returns {GraphNode[]}
   */
  readersOfFolded(item) {
    if (this.data.reference) return [];
    const node = item.kind === "value" ? item.producer : item;
    if (item.kind === "value" && !node && item.role === "parameter" && !this.shown.weights) return item.readers;
    return node?.kind === "node" && !isShown(node, this.shown) ? readersOfConstant(node) : [];
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
    if (!pane) this.panes.set(graph, (pane = this.data.reference ? new Outline(this, graph) : new Pane(this, graph)));
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
    const { main, before, reference } = this.data;
    const beside = before ?? reference;
    const graphs = this.sideBySide && beside ? [beside, main] : [this.graph];
    const wasSideBySide = this.stage.classList.contains("both");
    const panes = graphs.map((graph) => this.pane(graph));
    const [own, other] = panes;
    if (own instanceof Outline && other instanceof Outline) {
      this.gutter ??= new Gutter(this, own, other);
      this.stage.replaceChildren(own.element, this.gutter.element, other.element);
    } else {
      this.stage.replaceChildren(...panes.map((pane) => pane.element), this.legend);
    }
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
    this.history.note();
  }

  /**
   * Makes a pane the one that keys act on.
   * @param {Pane | Outline} pane
   */
  activate(pane) {
    this.active = pane;
  }

  /** The active pane, if it is a drawing. */
  get drawing() {
    return this.active instanceof Pane ? this.active : null;
  }

  /** The active pane, if it is an outline. */
  get outline() {
    return this.active instanceof Outline ? this.active : null;
  }

  toggleSideBySide() {
    if (!this.data.before) return;
    this.sideBySide = !this.sideBySide;
    this.arrangePanes();
    if (this.selected) this.select(this.selected, { move: true });
    this.history.note();
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
    if (item && this.data.reference) this.active = this.pane(item.graph);
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
    this.grid?.show(item);
    if (quiet) return;
    this.announce(item ? this.describe(item) : "Nothing selected");
    this.history.note();
  }

  /** @param {Item} item */
  describe(item) {
    const { graphs } = this.data;
    const op = item.kind === "node" ? `${item.op} ` : "";
    const place = graphs.length > 1 ? `, ${this.data.titleOf(item.graph).toLowerCase()}` : "";
    return `${op}${item.name.slice(0, 200)}${item.worst ? `, ${item.worst.status}` : ""}${place}`;
  }

  /**
   * Moves the other pane to the counterparts of an item, or to what reads it there.
   * @param {Item} item
   */
  showCounterparts(item) {
    const items = this.counterparts(item);
    const pane = items.length ? this.panes.get(items[0].graph) : null;
    if (!pane?.element.isConnected) return;
    const own = this.pane(item.graph);
    if (pane instanceof Outline && own instanceof Outline) {
      pane.showAll(items.slice(0, MOST_REVEALED), own.heightOf(item));
    } else if (pane instanceof Pane) {
      for (const counterpart of items.slice(0, MOST_REVEALED)) pane.reveal(counterpart);
      pane.show(items[0]);
    }
  }

  /** Opens or closes the selected group, or the group around what is selected. */
  toggleGroup() {
    const { selected } = this;
    if (!selected || selected.kind === "value") return;
    const group = selected.groupPath.at(-1);
    if (!group) return;
    const pane = this.paneOf(group);
    if (selected !== group) this.select(group);
    if (pane instanceof Pane) pane.show(group);
    pane.toggle(group);
    this.panel.show(group);
  }

  /** Goes to the place of what is selected in the other implementation. */
  selectPlace() {
    const [place] = this.selected ? this.counterparts(this.selected) : [];
    if (!place) return;
    this.select(place, { move: true });
    this.active.takeFocus();
  }

  /** Shows what needs a look, in the panel. */
  showOverview() {
    this.select(null);
    this.panel.element.classList.add("filled");
    this.panel.element.focus();
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
   * Draws values between operations, weights, constants or what is not compared, or no longer.
   * @param {keyof Shown} what
   */
  toggleShown(what) {
    this.shown[what] = !this.shown[what];
    this.toolbar.setPressed(what, this.shown[what]);
    for (const pane of this.panes.values()) pane.changeShown(this.shown);
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
    this.redraw();
  }

  async copyLink() {
    this.history.write();
    const copied = await copyText(location.href);
    this.toolbar.confirmLink(copied);
    this.announce(copied ? "Link copied" : "The link could not be copied: it is in the address bar");
  }

  /** Saves what is visible of the active graph. */
  savePicture() {
    const { drawing } = this;
    if (!drawing) return;
    const name = drawing.graph.name.replace(/[^\w.-]+/g, "_").slice(0, 80);
    download(`${name || "graph"}.svg`, pictureOf(drawing));
    this.announce("Picture saved");
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
 * Items, with the groups around them, which stand for them while closed.
 * @param {Iterable<Item>} items
 * @returns {Set<Item>}
 */
function withGroups(items) {
  /** @type {Set<Item>} */
  const found = new Set(items);
  for (const item of items) if (item.kind !== "value") for (const group of item.groupPath) found.add(group);
  return found;
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
