// The page: what is selected and how it is drawn, and the parts that show it.

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
    this.tooltip = h("div", { class: "tooltip", role: "tooltip", hidden: true });
    this.voice = h("div", { class: "voice", role: "status", "aria-live": "polite" });
    this.legend = h("div", { class: "legend", "aria-label": "Colours" });
    this.stage = h("div", { class: "stage" });
    this.search = new Search(this);
    this.table = new Table(this);
    this.plot = data.findings.length ? new Plot(this) : null;
    this.drawer = h("div", { class: "drawer" }, this.grip(), this.plot && this.plot.element, this.table.element);
    document.body.append(this.header(), ...this.remarks(), h("main", {}, this.stage, this.panel.element), this.drawer, this.tooltip, this.voice, this.help);
    document.body.classList.toggle("reported", this.colours.judged);
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
    const marked = new Set(this.selected && this.selected.kind === "node" ? this.selected.counterparts : []);
    return { colour: (thing) => this.colours.of(thing), selected: this.selected, marked: this.withGroups(marked), lit: this.path };
  }

  /** The same, with the groups around them: folded, they stand for them. */
  withGroups(nodes) {
    return new Set([...nodes, ...[...nodes].flatMap((node) => node.chain)]);
  }

  redraw() {
    this.look = this.looks();
    for (const pane of this.panes.values()) if (pane.element.isConnected) pane.redraw();
  }

  // ---- parts

  header() {
    const { data, colours } = this;
    const words = { error: "error", status: "status", operator: "operator", time: "time", module: "module" };
    const options = colours.modes.map((mode) => h("option", { value: mode, selected: mode === colours.mode }, `Colour: ${words[mode]}`));
    this.colourChoice = h("select", { "aria-label": "Colour by", onchange: () => this.paint(this.colourChoice.value) }, options);
    this.toggles = { tensors: this.toggleButton("Values", "v", () => this.toggleShown("tensors")), weights: this.toggleButton("Weights", "w", () => this.toggleShown("weights")), path: this.toggleButton("Path", "p", () => this.togglePath()) };
    const { tensors, weights, path } = this.toggles;
    const button = (text, key, act, classes = "") => h("button", { type: "button", class: classes, title: `${text} (${key})`, onclick: act }, text);
    return h(
      "header",
      {},
      h("h1", { title: data.main.name.slice(0, 500) }, name(data.main.name || "Graph")),
      this.search.element,
      h("div", { class: "tools" }, this.graphChoice(), data.first && button("First divergence", "d", () => this.toFirst(), "alarm"), data.first && path, this.colourChoice, tensors, weights, button("Table", "t", () => this.toggleDrawer()), h("button", { type: "button", class: "icon", "aria-label": "Light or dark (l)", title: "Light or dark (l)", onclick: () => this.toggleTheme() }, "◐"), h("button", { type: "button", class: "icon", "aria-label": "Keys (?)", title: "Keys (?)", onclick: () => this.help.showModal() }, "?")),
    );
  }

  toggleButton(text, key, act) {
    return h("button", { type: "button", class: "toggle", "aria-pressed": "false", title: `${text} (${key})`, onclick: act }, text);
  }

  /** Which graph is drawn, where there are several. */
  graphChoice() {
    if (this.data.graphs.length < 2) return null;
    const words = { graph: this.data.before ? "Compiled graph" : "Graph", before: "Exported graph" };
    const options = this.data.graphs.map((graph) => h("option", { value: graph.place }, words[graph.role] || `Function ${graph.of.slice(0, 40)}`));
    if (this.data.before) options.splice(2, 0, h("option", { value: "both" }, "Side by side"));
    this.choice = h("select", { "aria-label": "Graph", title: "Graph (s: side by side)", onchange: () => this.choose(this.choice.value) }, options);
    return this.choice;
  }

  choose(graph) {
    this.sides = graph === "both" ? "both" : "graph";
    if (graph !== "both") this.alone = this.data.graphs[graph];
    this.arrangePanes();
    if (this.selected) this.showCounterparts(this.selected);
  }

  remarks() {
    const [headline, ...others] = this.data.remarks;
    if (!headline) return [];
    return [h("section", { class: "remarks", "aria-label": "Remarks" }, h("p", { class: "headline" }, headline), others.map((remark) => h("p", {}, remark)))];
  }

  /** Drags the drawer's height. */
  grip() {
    const grip = h("button", { type: "button", class: "grip", "aria-label": "Height of the table: up and down change it" });
    const resize = (height) => this.drawer.style.setProperty("--height", `${Math.max(90, Math.min(innerHeight * 0.8, height))}px`);
    grip.addEventListener("pointerdown", (event) => grip.setPointerCapture(event.pointerId));
    grip.addEventListener("pointermove", (event) => grip.hasPointerCapture(event.pointerId) && resize(innerHeight - event.clientY));
    grip.addEventListener("keydown", (event) => {
      const step = { ArrowUp: 40, ArrowDown: -40 }[event.key];
      if (!step) return;
      event.stopPropagation();
      resize(this.drawer.clientHeight + step);
    });
    return grip;
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
    if (this.choice) this.choice.value = graphs.length > 1 ? "both" : graphs[0].place;
    for (const graph of graphs) this.paneFor(graph).resize();
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
    if (!quiet) this.say(thing ? `${thing.op || ""} ${thing.name.slice(0, 200)}${thing.worst ? `, ${thing.worst.status}` : ""}` : "Nothing selected");
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
    if (!selected) return;
    const near = way > 0 ? readersOf(selected) : selected.kind === "value" ? [selected.producer] : (selected.inputs || []).map((value) => value && (value.producer || (value.role === "input" ? value : null)));
    const next = near.find(Boolean);
    if (next) this.select(next, { move: true });
  }

  toFirst() {
    const { first } = this.data;
    if (first) this.select(first.node || first.value, { move: true });
  }

  toNext(way) {
    const wrong = this.data.main.nodes.filter((node) => node.worst && node.worst.diverged);
    const all = this.selected && this.selected.graph === this.data.before ? this.data.before.nodes.filter((node) => node.worst && node.worst.diverged) : wrong;
    const now = this.selected && this.selected.kind === "node" ? this.selected.id : -1;
    const next = way > 0 ? all.find((node) => node.id > now) || all[0] : all.findLast((node) => node.id < now) || all.at(-1);
    if (next) this.select(next, { move: true });
  }

  togglePath() {
    const { first } = this.data;
    const start = first && (first.node || first.value.readers[0]);
    if (!start) return;
    this.path = this.path ? null : this.withGroups(reach(start));
    if (this.path) for (const value of start.graph.outputs) if (this.path.has(value.producer)) this.path.add(value);
    this.toggles.path.setAttribute("aria-pressed", String(Boolean(this.path)));
    this.redraw();
  }

  // ---- how it is drawn

  paint(mode) {
    this.colours.mode = mode;
    this.colourChoice.value = mode;
    this.paintLegend();
    this.redraw();
  }

  paintLegend() {
    const { mode } = this.colours;
    const title = { error: "Error", status: "Status", operator: "Operators", time: "Time", module: "A colour for each module" }[mode];
    const entry = ([kind, words]) => h("span", { class: `entry ${kind}` }, kind !== "words" && h("i", { class: "swatch" }), words && h("span", {}, words));
    this.legend.replaceChildren(h("b", {}, title), ...this.colours.legend().map(entry));
    this.legend.dataset.mode = mode;
  }

  toggleShown(what) {
    this.shown[what] = !this.shown[what];
    this.toggles[what].setAttribute("aria-pressed", String(this.shown[what]));
    for (const pane of this.panes.values()) {
      pane.scene.show(this.shown);
      pane.arrange();
    }
    this.redraw();
    if (this.selected && this.active.visible(this.selected)) this.active.center(this.active.visible(this.selected));
  }

  toggleDrawer() {
    this.drawer.classList.toggle("closed");
  }

  toggleTheme() {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
  }

  // ---- words

  say(words) {
    this.voice.textContent = words;
  }

  hover(pane, event) {
    const hit = event && event.pointerType !== "touch" ? pane.at(event) : null;
    pane.svg.style.cursor = hit ? "pointer" : "";
    this.tip(hit ? hit.thing : null, event);
  }

  tip(thing, event) {
    this.tooltip.hidden = !thing;
    if (!thing) return;
    if (this.tooltip.of !== thing) this.tooltip.replaceChildren(...tipOf(thing));
    this.tooltip.of = thing;
    const { offsetWidth: width, offsetHeight: height } = this.tooltip;
    this.tooltip.style.left = `${Math.max(4, Math.min(innerWidth - width - 8, event.clientX + 14))}px`;
    this.tooltip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
  }
}

function readersOf(thing) {
  if (thing.kind === "value") return thing.readers;
  return (thing.outputs || []).flatMap((value) => (value ? value.readers : []));
}

function tipOf(thing) {
  const lines = [h("p", {}, h("b", {}, name((thing.op || thing.name).slice(0, 120))), thing.op ? [" ", name(thing.name.slice(0, 120))] : null)];
  if (thing.kind === "node") lines.push(...thing.outputs.filter(Boolean).slice(0, 3).map((value) => h("p", { class: "muted" }, `→ ${typed(value).slice(0, 120)}`)));
  if (thing.kind === "group") lines.push(h("p", { class: "muted" }, name(thing.type.slice(0, 120)), ` ${count(thing.size, "operation")}`));
  if (thing.kind === "value") lines.push(h("p", { class: "muted" }, `${thing.role}, ${typed(thing).slice(0, 120)}`));
  if (thing.worst) lines.push(h("p", { class: `status-${STATUSES.indexOf(thing.worst.status)}` }, h("span", { class: "dot" }), thing.worst.status, thing.worst.error !== null ? `, error ${short(thing.worst.error)}` : ""));
  if (thing.seconds) lines.push(h("p", { class: "muted" }, milliseconds(thing.seconds)));
  return lines;
}

/** Paper gets the graph as it is drawn, fitted onto a page, and then all rows. */
function listenToPrinter(app) {
  let kept = [];
  addEventListener("beforeprint", () => {
    const panes = [...app.panes.values()].filter((pane) => pane.element.isConnected);
    kept = panes.map((pane) => [pane, { ...pane.view }]);
    for (const pane of panes) {
      const { width, height } = pane.arranged;
      // Paper is read from near: what would be small print on a screen is drawn, too.
      Object.assign(pane.view, { k: 1, x: 0, y: 0, width, height });
      pane.redraw();
      pane.svg.setAttribute("viewBox", `-10 -10 ${width + 20} ${height + 20}`);
    }
    app.table.fill(true, true);
  });
  addEventListener("afterprint", () => {
    for (const [pane, view] of kept) {
      Object.assign(pane.view, view);
      pane.svg.removeAttribute("viewBox");
      pane.redraw();
    }
    app.table.fill(true);
  });
}

// For the console, and for tests.
window.filch = new App(new Data(JSON.parse(document.getElementById("data").textContent)));
requestAnimationFrame(() => {
  document.documentElement.dataset.drawn = String(Math.round(performance.now()));
  performance.mark("filch-drawn");
});
