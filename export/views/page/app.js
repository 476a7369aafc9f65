// Built from page/src by `npm run build`. Change the files there, not this one.
"use strict";
"use strict";
(() => {
  // src/numbers.js
  function largest(numbers, least = -Infinity) {
    return numbers.reduce((a, b) => Math.max(a, b), least);
  }
  function smallest(numbers, most = Infinity) {
    return numbers.reduce((a, b) => Math.min(a, b), most);
  }
  function count(number, noun) {
    return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  }
  function exactNumber(number) {
    return Object.is(number, -0) ? "-0.0" : String(number);
  }
  function shortNumber(number) {
    if (number === null || number === void 0) return "";
    if (typeof number === "bigint") return number.toLocaleString("en");
    const size = Math.abs(number);
    if (Number.isInteger(number) && size < 1e7) return number.toLocaleString("en");
    if (!Number.isFinite(number)) return Number.isNaN(number) ? "NaN" : number > 0 ? "∞" : "−∞";
    const text = size >= 1e-3 && size < 1e5 ? String(Number(number.toPrecision(4))) : number.toExponential(2);
    return text.replace("e+", "e").replace(/\.?0+e/, "e");
  }
  function milliseconds(seconds) {
    return `${shortNumber(Number(seconds) * 1e3)} ms`;
  }

  // src/color.js
  var FAMILIES = [
    ["norm", /norm/, "normalize"],
    ["compute", /matmul|gemm|conv(?!ert)|linear|einsum|\bb?mm\b|addmm|attention|lstm|gru|sdpa/, "multiply, convolve"],
    ["activation", /relu|gelu|silu|sigmoid|tanh|softmax|elu|erf|swish|softplus|mish/, "activate"],
    ["cast", /cast|quantize|to_copy|convert|\bto\b/, "cast"],
    [
      "layout",
      /shape|view|transpose|permute|squeeze|flatten|expand|concat|cat|split|slice|gather|select|pad|tile|range|embed|clone|identity/,
      "move, index"
    ],
    ["reduce", /reduce|mean|sum|pool|max|min|arg|topk|cumsum|any|all/, "reduce"],
    [
      "arithmetic",
      /add|sub|mul|div|pow|sqrt|neg|exp|log|cos|sin|where|equal|less|greater|and|or|not|clip|reciprocal|\babs\b/,
      "arithmetic"
    ]
  ];
  var EVIDENCE = [
    ...["proved", "anchored", "by value", "ambiguous", "given", "found", "in part", "uncovered"],
    ...["inherited", "contradicted", "leaves A", "not in B", "not found", "unused"]
  ];
  var STATUSES = ["same", "different", "shape or dtype differs", "no value", "not mapped"];
  var MODULE_COLOURS = 8;
  var TIME_PERCENTILES = [0.7, 0.9, 0.95];
  var families = /* @__PURE__ */ new Map();
  function operatorFamily(op) {
    let family = families.get(op);
    if (family === void 0) {
      const name = operatorName(op).slice(0, 80).toLowerCase();
      [family] = FAMILIES.find(([, pattern]) => pattern.test(name)) ?? ["other"];
      families.set(op, family);
    }
    return family;
  }
  function operatorName(op) {
    return op.includes("::") ? op.slice(op.lastIndexOf("::") + 2) : op;
  }
  function statusClass({ status }) {
    if (EVIDENCE.includes(status)) return `evidence-${status.replaceAll(" ", "-").toLowerCase()}`;
    return `status-${STATUSES.indexOf(status)}`;
  }
  var Scale = class {
    /**
     * @param {string} prefix of the steps' classes
     * @param {number} steps
     * @param {number[]} errors positive and finite
     */
    constructor(prefix, steps, errors) {
      this.prefix = prefix;
      this.steps = steps;
      this.empty = errors.length === 0;
      this.high = largest(errors, 0);
      this.low = Math.max(smallest(errors), this.high * 1e-8);
    }
    /** @param {number} error */
    classOf(error) {
      const graded = Number.isFinite(error) && this.high > this.low;
      const part = graded ? Math.log(error / this.low) / Math.log(this.high / this.low) : 1;
      return `${this.prefix}-${Math.max(0, Math.min(this.steps - 1, Math.floor(part * this.steps)))}`;
    }
    /**
     * The steps; the first and the last one have their limits as text.
     * @returns {LegendEntry[]}
     */
    legend() {
      if (this.empty) return [];
      const last = this.steps - 1;
      if (!(this.high > this.low)) return [[`${this.prefix}-${last}`, shortNumber(this.high)]];
      const text = (step) => step === 0 ? shortNumber(this.low) : step === last ? shortNumber(this.high) : "";
      return Array.from({ length: this.steps }, (_, step) => [`${this.prefix}-${step}`, text(step)]);
    }
  };
  var Colors = class {
    /** @param {PageData} data */
    constructor(data) {
      const { findings } = data;
      this.hasFindings = findings.length > 0;
      const errors = (diverged) => findings.filter((finding) => finding.diverged === diverged).map((finding) => finding.error ?? 0).filter((error) => error > 0 && Number.isFinite(error));
      this.sameScale = new Scale("calm", 4, errors(false));
      this.differentScale = new Scale("error", 7, errors(true));
      const times = data.graphs.flatMap((graph) => graph.nodes.map((node) => node.seconds)).filter((seconds) => seconds !== null).sort((a, b) => a - b);
      this.timeLimits = TIME_PERCENTILES.map((part) => times[Math.floor(part * (times.length - 1))]);
      this.modes = ["operator", "module"];
      if (data.reference) this.modes = ["status"];
      else if (this.hasFindings) this.modes.push("error", "status");
      if (times.length) this.modes.push("time");
      this.mode = this.hasFindings ? "status" : "operator";
      if (findings.some((finding) => finding.error !== null)) this.mode = "error";
    }
    /** @param {Item} item */
    classOf(item) {
      if (this.mode === "error") return this.errorClass(item.worst);
      if (this.mode === "status") return item.worst ? statusClass(item.worst) : "plain";
      if (this.mode === "time") return this.timeClass(item);
      if (this.mode === "module") return moduleClass(item);
      if (item.kind === "node") return `family-${operatorFamily(item.op)}`;
      return item.kind === "value" ? `role-${item.role}` : "plain";
    }
    /** @param {Finding | null} finding */
    errorClass(finding) {
      if (!finding) return "plain";
      if (finding.error === null) return statusClass(finding);
      if (finding.diverged) return this.differentScale.classOf(finding.error);
      return finding.error === 0 ? "zero" : this.sameScale.classOf(finding.error);
    }
    /**
     * By how many of the percentiles a node exceeds; a group has the class of its slowest node.
     * @param {Item} item
     * @returns {string}
     */
    timeClass(item) {
      if (item.kind === "value") return "plain";
      if (item.kind === "group") {
        const inside = item.graph.nodes.filter((node) => node.groupPath.includes(item));
        return inside.map((node) => this.timeClass(node)).sort().at(-1) ?? "plain";
      }
      const { seconds } = item;
      if (seconds === null) return "plain";
      return `time-${this.timeLimits.filter((limit) => seconds >= limit && seconds > 0).length}`;
    }
    /** @returns {LegendEntry[]} */
    legend() {
      if (this.mode === "operator") {
        const entries = FAMILIES.map(([family, , text]) => [`family-${family}`, text]);
        return [...entries, ["family-other", "other"]];
      }
      if (this.mode === "status") return STATUSES.map((status, index) => [`status-${index}`, status]);
      if (this.mode === "module") return [];
      if (this.mode === "time") return ["under p70", "p70", "p90", "p95"].map((text, index) => [`time-${index}`, text]);
      const titled = (title, scale) => scale.empty ? [] : [["words", title], ...scale.legend()];
      return [
        ["zero", "0"],
        ...titled("same", this.sameScale),
        ...titled("different", this.differentScale),
        ["status-3", "not compared"]
      ];
    }
  };
  function moduleClass(item) {
    const path = item.kind === "value" ? item.producer?.groupPath ?? [] : item.groupPath;
    const group = path.find((each) => siblings(each).length > 1);
    return group ? `module-${siblings(group).indexOf(group) % MODULE_COLOURS}` : "plain";
  }
  function siblings(group) {
    return group.parent?.groups ?? group.graph.topGroups;
  }

  // src/dom.js
  var SVG = "http://www.w3.org/2000/svg";
  function html(tag, attributes, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }
  function svg(tag, attributes, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
  }
  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (value === void 0 || value === null || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...contents(children));
    return element;
  }
  function contents(children) {
    return children.flatMap((child) => Array.isArray(child) ? contents(child) : child || []);
  }
  function nameElement(text) {
    return html("bdi", { class: "name" }, text);
  }
  function numberElement(number) {
    if (number === null || number === void 0) return null;
    const exact = exactNumber(number);
    return html("data", { class: "number", value: exact, "data-value": exact, title: exact }, shortNumber(number));
  }
  async function copyText(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return copyFromField(text);
    }
  }
  function copyFromField(text) {
    const focused = document.activeElement;
    const field = html("textarea", { class: "voice", "aria-hidden": "true" }, text);
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    if (focused instanceof HTMLElement) focused.focus();
    return copied;
  }
  function oncePerFrame(act) {
    let requested = false;
    return () => {
      if (requested) return;
      requested = true;
      requestAnimationFrame(() => {
        requested = false;
        act();
      });
    };
  }

  // src/drawer.js
  var LEAST_HEIGHT = 90;
  function drawerElement(parts, closed) {
    const drawer = html("div", { class: closed ? "drawer closed" : "drawer" });
    drawer.append(resizeHandle(drawer), ...parts.filter((part) => part !== null));
    return drawer;
  }
  function resizeHandle(drawer) {
    const resize = (height) => {
      const limited = Math.max(LEAST_HEIGHT, Math.min(innerHeight * 0.8, height));
      drawer.style.setProperty("--height", `${limited}px`);
    };
    const label = "Height of the table: the up and down arrow keys change it";
    const handle = html("button", { type: "button", class: "grip", "aria-label": label });
    handle.addEventListener("pointerdown", (event) => handle.setPointerCapture(event.pointerId));
    handle.addEventListener("pointermove", (event) => {
      if (handle.hasPointerCapture(event.pointerId)) resize(innerHeight - event.clientY);
    });
    handle.addEventListener("keydown", (event) => {
      const step = event.key === "ArrowUp" ? 40 : event.key === "ArrowDown" ? -40 : 0;
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      resize(drawer.clientHeight + step);
    });
    return handle;
  }

  // src/keys.js
  var DRAWING_KEYS = [
    ["search", ["/", (app) => app.search.input.focus()]],
    ["show the whole graph", ["f", (app) => app.drawing?.fit()]],
    ["zoom in and out", ["+", (app) => app.drawing?.zoom(1.4)], ["-", (app) => app.drawing?.zoom(1 / 1.4)]],
    [
      "move the graph",
      ["ArrowLeft", (app) => app.drawing?.pan(80, 0, true)],
      ["ArrowRight", (app) => app.drawing?.pan(-80, 0, true)],
      ["ArrowUp", (app) => app.drawing?.pan(0, 80, true)],
      ["ArrowDown", (app) => app.drawing?.pan(0, -80, true)]
    ],
    ["open or close the selected group, or the group around what is selected", ["Enter", (app) => app.toggleGroup()]],
    [
      "open all groups that are shown, close all",
      ["o", (app) => app.active.openAll()],
      ["c", (app) => app.active.closeAll()]
    ],
    [
      "select what reads the selected value, or what writes it",
      ["j", (app) => app.selectReader()],
      ["k", (app) => app.selectSource()]
    ],
    ["first divergence", ["d", (app) => app.showFirstDivergence()]],
    [
      "next divergence, previous divergence",
      ["n", (app) => app.selectNextDivergence()],
      ["N", (app) => app.selectPreviousDivergence()]
    ],
    ["highlight what the first divergence affects", ["p", (app) => app.togglePath()]],
    ["one graph, or both side by side", ["s", (app) => app.toggleSideBySide()]],
    ["values between operations", ["v", (app) => app.toggleShown("tensors")]],
    ["weights", ["w", (app) => app.toggleShown("weights")]],
    ["constants", ["x", (app) => app.toggleShown("constants")]]
  ];
  var OUTLINE_KEYS = [
    ["search", ["/", (app) => app.search.input.focus()]],
    [
      "previous line, next line",
      ["ArrowUp", (app) => app.outline?.step(-1)],
      ["ArrowDown", (app) => app.outline?.step(1)]
    ],
    [
      "close a module or go out of it, open it or go in",
      ["ArrowLeft", (app) => app.outline?.goOut()],
      ["ArrowRight", (app) => app.outline?.goIn()]
    ],
    ["open or close the selected module, or the module around what is selected", ["Enter", (app) => app.toggleGroup()]],
    ["go to the place in the other implementation", ["s", (app) => app.selectPlace()]],
    [
      "open all modules of this side, close all",
      ["o", (app) => app.active.openAll()],
      ["c", (app) => app.active.closeAll()]
    ],
    ["where B leaves A first", ["d", (app) => app.showFirstDivergence()]],
    [
      "next place where B leaves A, previous one",
      ["n", (app) => app.selectNextDivergence()],
      ["N", (app) => app.selectPreviousDivergence()]
    ],
    ["weights", ["w", (app) => app.toggleShown("weights")]],
    ["also operations that are not compared", ["a", (app) => app.toggleShown("unlinked")]]
  ];
  var COMMON_KEYS = [
    ["table", ["t", (app) => app.toggleDrawer()]],
    ["light or dark", ["l", (app) => app.toggleTheme()]],
    ["this list", ["?", (app) => app.help.showModal()]],
    ["select nothing", ["Escape", (app) => app.select(null)]]
  ];
  var SYMBOLS = /* @__PURE__ */ new Map([
    ["ArrowLeft", "←"],
    ["ArrowRight", "→"],
    ["ArrowUp", "↑"],
    ["ArrowDown", "↓"],
    ["-", "−"],
    ["Escape", "Esc"]
  ]);
  function keysOf({ data }) {
    return [...data.reference ? OUTLINE_KEYS : DRAWING_KEYS, ...COMMON_KEYS];
  }
  function listenToKeys(app) {
    const actions = new Map(keysOf(app).flatMap(([, ...keys]) => keys));
    document.addEventListener("keydown", (event) => {
      const target = event.target instanceof Element ? event.target : document.body;
      const typing = target.closest("input, select, textarea, dialog");
      const pressing = event.key === "Enter" && target.closest("button, summary, a");
      if (typing || pressing || event.ctrlKey || event.metaKey || event.altKey) return;
      const act = actions.get(event.key === "=" ? "+" : event.key);
      if (!act) return;
      event.preventDefault();
      act(app);
    });
  }
  function helpDialog(app) {
    const rows = keysOf(app).map(([text, ...keys]) => {
      const symbols = keys.flatMap(([key]) => [html("kbd", {}, SYMBOLS.get(key) ?? key), " "]);
      return html("tr", {}, html("th", { scope: "row" }, symbols), html("td", {}, text));
    });
    const closeAttributes = { type: "button", class: "close", "aria-label": "Close" };
    const dialog = html(
      "dialog",
      { "aria-label": "Keys" },
      html(
        "div",
        {},
        html("button", { ...closeAttributes, onclick: () => dialog.close() }, "×"),
        html("h2", {}, "Keys"),
        html("table", { class: "keys" }, html("tbody", {}, rows)),
        !app.data.reference && html("p", { class: "muted" }, "Wheel: zoom. Drag: move. Double-click: open or close a group.")
      )
    );
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
    return dialog;
  }

  // src/counterparts.js
  function linkCounterparts(graph, before) {
    for (const node of graph.nodes) {
      for (const origin of node.origins.length ? node.origins : [node.name]) {
        const other = before.nodeByName.get(origin);
        if (!other) continue;
        node.counterparts.push(other);
        other.counterparts.push(node);
      }
    }
    const groups = new Map(before.groups.map((group) => [group.path + group.name, group]));
    for (const group of graph.groups) {
      const other = groups.get(group.path + group.name);
      if (!other) continue;
      group.counterparts.push(other);
      other.counterparts.push(group);
    }
  }
  function linkPlaces(graph, reference) {
    for (const [own, other] of [
      [graph, reference],
      [reference, graph]
    ]) {
      const values = new Map(other.values.map((value) => [value.name, value]));
      for (const finding of own.findings) {
        for (const [name, order] of finding.places) {
          const value = values.get(name);
          if (value) finding.links.push({ value, order });
        }
      }
    }
  }
  function follow(item) {
    if (item.kind === "value") return item.producer ? follow(item.producer) : followReaders(item.readers);
    if (item.counterparts.length) return { items: item.counterparts, folded: false };
    if (item.kind === "node") return followReaders(readersOf(item));
    const inside = item.graph.nodes.filter((node) => node.groupPath.includes(item));
    return { items: [...new Set(inside.flatMap((node) => node.counterparts))], folded: false };
  }
  function followReaders(nodes) {
    const seen = new Set(nodes);
    let level = [...seen];
    while (level.length) {
      const items = new Set(level.flatMap((node) => node.counterparts));
      if (items.size) return { items: [...items], folded: true };
      level = [...new Set(level.flatMap(readersOf))].filter((node) => !seen.has(node));
      for (const node of level) seen.add(node);
    }
    return { items: [], folded: true };
  }
  function readersOf(node) {
    return node.written.flatMap((value) => value.readers);
  }

  // src/positions.js
  var PositionRow = class {
    /**
     * @param {string} name
     * @param {PositionedFinding[]} findings in the order of execution
     */
    constructor(name, findings) {
      this.name = name;
      this.findings = findings;
      const length = largest(
        findings.map(({ positions }) => positions.errors.length),
        0
      );
      this.errors = Array.from({ length }, (_, at) => largest(findings.map((each) => sizeAt(each, at))));
      this.wrong = new Set(findings.flatMap(({ positions }) => [...positions.wrong]));
    }
    /**
     * The finding that a cell shows: the first that is wrong there, else the one with the largest error.
     * @param {number} at
     */
    findingAt(at) {
      const wrong = this.findings.find(({ positions }) => positions.wrong.has(at));
      return wrong ?? this.findings.reduce((a, b) => sizeAt(b, at) > sizeAt(a, at) ? b : a);
    }
  };
  function sizeAt({ positions }, at) {
    const error = positions.errors[at] ?? 0;
    return Number.isNaN(error) ? Infinity : error;
  }
  function positioned({ main, before }) {
    const findings = [before, main].flatMap((graph) => graph?.findings ?? []);
    return (
      /** @type {PositionedFinding[]} */
      findings.filter(({ positions }) => positions !== null)
    );
  }
  function positionRows(data, kind) {
    const findings = positioned(data);
    const graphs = new Set(findings.map(({ graph }) => graph));
    const isOutput = ({ stage }) => stage === "output";
    const name = (finding) => {
      const { node, value, graph } = finding;
      const own = kind === "value" || isOutput(finding) ? value.name : moduleOf(node);
      return graphs.size > 1 ? `${own} (${data.titleOf(graph).toLowerCase()})` : own;
    };
    const rows = /* @__PURE__ */ new Map();
    for (const finding of [...findings.filter((each) => !isOutput(each)), ...findings.filter(isOutput)]) {
      const key = `${isOutput(finding)} ${name(finding)}`;
      const row = rows.get(key) ?? [];
      if (kind === "module") rows.delete(key);
      rows.set(key, row);
      row.push(finding);
    }
    return [...rows.values()].map((row) => new PositionRow(name(row[0]), row));
  }
  function moduleOf(node) {
    return node?.module || node?.group?.path || "(the model)";
  }
  var PositionColors = class {
    /** @param {PositionRow[]} rows */
    constructor(rows) {
      this.mode = /** @type {const} */
      "error";
      const errors = (wrong) => rows.flatMap((row) => row.errors.filter((_, at) => row.wrong.has(at) === wrong)).filter((error) => error > 0 && Number.isFinite(error));
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
      const titled = (title, scale) => scale.empty ? [] : [["words", title], ...scale.legend()];
      return [["zero", "0"], ...titled("right", this.rightScale), ...titled("wrong", this.wrongScale)];
    }
  };
  function labelStep(width, room) {
    for (let power = 1; ; power *= 10) {
      const step = [1, 2, 5].find((digit) => digit * power * width >= room);
      if (step) return step * power;
    }
  }

  // src/text.js
  var FONT_FAMILY = 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif';
  var LONGEST = 160;
  var context = null;
  var widths = /* @__PURE__ */ new Map();
  function textWidth(text, font) {
    const key = `${font} ${text}`;
    let width = widths.get(key);
    if (width === void 0) {
      context ??= /** @type {CanvasRenderingContext2D} */
      document.createElement("canvas").getContext("2d");
      context.font = `${font} ${FONT_FAMILY}`;
      width = context.measureText(text).width;
      widths.set(key, width);
    }
    return width;
  }
  function truncate(text, width, font) {
    const letters = Array.from(text.slice(0, LONGEST), (letter) => /[\p{Cc}\p{Zl}\p{Zp}]/u.test(letter) ? " " : letter);
    const whole = letters.join("");
    if (text.length <= LONGEST && textWidth(whole, font) <= width) return whole;
    let [low, high] = [0, letters.length];
    while (low < high) {
      const middle = low + high + 1 >> 1;
      if (textWidth(`${letters.slice(0, middle).join("")}…`, font) <= width) low = middle;
      else high = middle - 1;
    }
    return `${letters.slice(0, low).join("")}…`;
  }

  // src/toolbar.js
  var LINK = "Copy link";
  var Toolbar = class {
    /** @param {App} app */
    constructor(app) {
      this.app = app;
      this.toggles = {
        path: toggleButton("Path", "p", () => app.togglePath()),
        tensors: toggleButton("Values", "v", () => app.toggleShown("tensors")),
        weights: toggleButton("Weights", "w", () => app.toggleShown("weights")),
        constants: toggleButton("Constants", "x", () => app.toggleShown("constants")),
        unlinked: toggleButton("All operations", "a", () => app.toggleShown("unlinked"))
      };
      for (const [name, shown] of Object.entries(app.shown)) {
        this.setPressed(
          /** @type {keyof Toolbar["toggles"]} */
          name,
          shown
        );
      }
      this.graphSelect = this.makeGraphSelect();
      this.colorSelect = this.makeColorSelect();
      this.link = textButton("Copy a link to what is shown", LINK, () => app.copyLink());
      const { graphs, reference, title } = app.data;
      const hasOperations = graphs.some(({ nodes }) => nodes.length);
      const { tensors, weights, constants, unlinked } = this.toggles;
      const save = textButton("Save what is visible as an SVG file", "SVG", () => app.savePicture());
      const tools = html(
        "div",
        { class: "tools" },
        reference ? hasOperations && [weights, unlinked] : [this.graphSelect, this.colorSelect, tensors, weights, constants],
        button("Table", "t", () => app.toggleDrawer()),
        this.link,
        !reference && save,
        iconButton("Light or dark (l)", "◐", () => app.toggleTheme()),
        iconButton("Keys (?)", "?", () => app.help.showModal())
      );
      const heading = html("h1", { title: title.slice(0, 500) }, nameElement(title || "Graph"));
      this.element = html("header", {}, heading, app.search.element, tools);
    }
    makeColorSelect() {
      const { colors } = this.app;
      const option = (mode) => html("option", { value: mode, selected: mode === colors.mode }, `Color: ${mode}`);
      const onchange = () => this.app.setColorMode(
        /** @type {ColorMode} */
        this.colorSelect.value
      );
      return html("select", { "aria-label": "Color by", onchange }, colors.modes.map(option));
    }
    /** The choice of the graph, if there are several. */
    makeGraphSelect() {
      const { data } = this.app;
      if (data.graphs.length < 2) return null;
      const options = data.graphs.map((graph) => html("option", { value: graph.index }, data.titleOf(graph)));
      if (data.before) options.splice(2, 0, html("option", { value: "both" }, "Side by side"));
      const select = html("select", { "aria-label": "Graph", title: "Graph (s: side by side)" }, options);
      select.addEventListener("change", () => this.app.chooseGraph(select.value));
      return select;
    }
    /**
     * @param {keyof Toolbar["toggles"]} name
     * @param {boolean} pressed
     */
    setPressed(name, pressed) {
      this.toggles[name].setAttribute("aria-pressed", String(pressed));
    }
    /** Shows for a moment whether the link was copied. @param {boolean} copied */
    confirmLink(copied) {
      const { link } = this;
      link.style.minWidth = `${link.getBoundingClientRect().width}px`;
      link.textContent = copied ? "Copied" : "See address bar";
      setTimeout(() => link.textContent = LINK, 1500);
    }
  };
  function button(text, key, onclick, kind = "") {
    return html("button", { type: "button", class: kind, title: `${text} (${key})`, onclick }, text);
  }
  function toggleButton(text, key, onclick) {
    const element = button(text, key, onclick, "toggle");
    element.setAttribute("aria-pressed", "false");
    return element;
  }
  function textButton(title, text, onclick) {
    return html("button", { type: "button", title, onclick }, text);
  }
  function iconButton(title, icon, onclick) {
    return html("button", { type: "button", class: "icon", "aria-label": title, title, onclick }, icon);
  }
  function legendElements(colors) {
    const titles = {
      error: "Error",
      status: "Status",
      operator: "Operators",
      time: "Time",
      module: "A color for each module"
    };
    const entry = ([cssClass, text]) => {
      const swatch = cssClass === "words" ? null : html("i", { class: "swatch" });
      return html("span", { class: `entry ${cssClass}` }, swatch, text && html("span", {}, text));
    };
    const parts = [];
    for (const each of colors.legend()) {
      if (/^(error|calm)-/.test(each[0]) && parts.length) parts[parts.length - 1].push(each);
      else parts.push([each]);
    }
    const elements = parts.map((part) => {
      const [first, ...rest] = part.map(entry);
      return rest.length ? html("span", { class: "scale" }, first, rest) : first;
    });
    return [html("b", {}, titles[colors.mode]), ...elements];
  }

  // src/grid.js
  var TOP = 20;
  var ROW_HEIGHT = 18;
  var NARROWEST = 6;
  var WIDEST = 34;
  var LABEL_FONT = "400 11px";
  var LABEL_ROOM = 24;
  var NARROW = 10;
  var PositionGrid = class {
    /** @param {App} app */
    constructor(app) {
      this.app = app;
      this.rowsOf = { module: positionRows(app.data, "module"), value: positionRows(app.data, "value") };
      this.kind = html(
        "select",
        { "aria-label": "Rows", onchange: () => this.changeKind() },
        html("option", { value: "module" }, "by module"),
        html("option", { value: "value" }, "by value")
      );
      this.colors = new PositionColors(this.rowsOf.value);
      this.chosen = null;
      this.svg = svg("svg", { role: "img", class: "cells" });
      this.svg.addEventListener("pointermove", (event) => this.hover(event));
      this.svg.addEventListener("pointerleave", () => app.tooltip.hide());
      this.svg.addEventListener("click", (event) => {
        const cell = this.cellAt(event);
        if (cell) this.choose(cell);
      });
      this.room = html("div", { class: "room" }, this.svg);
      this.scroller = html(
        "div",
        {
          class: "scroller",
          tabindex: 0,
          role: "region",
          "aria-label": "Positions: the arrow keys select",
          onscroll: oncePerFrame(() => this.draw()),
          onkeydown: (event) => this.key(event)
        },
        this.room
      );
      const title = "The largest difference at each position, relative to the root mean square of the value";
      const legend = html("div", { class: "legend", "aria-label": "Colors of positions" }, legendElements(this.colors));
      this.element = html(
        "section",
        { class: "positions", "aria-label": "Positions" },
        html("div", { class: "bar" }, html("h2", { title }, "Position"), this.kind, legend),
        this.scroller
      );
      new ResizeObserver(oncePerFrame(() => this.reveal())).observe(this.scroller);
    }
    get rows() {
      return this.rowsOf[
        /** @type {RowKind} */
        this.kind.value
      ];
    }
    /** The widths of names, of a column and of what is visible. */
    get measures() {
      const { clientWidth: width, clientHeight: height } = this.scroller;
      const columns = this.rowsOf.value.reduce((most, row) => Math.max(most, row.errors.length), 1);
      const names = Math.min(230, Math.max(90, width * 0.34));
      const column = Math.min(WIDEST, Math.max(NARROWEST, (width - names - 8) / columns));
      return { width, height, columns, names, column };
    }
    /** @param {MouseEvent} event @returns {Cell | null} */
    cellAt(event) {
      const { columns, names, column } = this.measures;
      const frame = this.svg.getBoundingClientRect();
      const [x, y] = [event.clientX - frame.left - names, event.clientY - frame.top - TOP];
      if (x < 0 || y < 0) return null;
      const at = Math.floor((x + this.scroller.scrollLeft) / column);
      const row = Math.floor((y + this.scroller.scrollTop) / ROW_HEIGHT);
      return at < columns && row < this.rows.length ? { row, at } : null;
    }
    draw() {
      const { width, height, columns, names, column } = this.measures;
      if (!width) return;
      for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) {
        this.svg.setAttribute(name, String(value));
      }
      const wrong = this.rows.filter((row) => row.wrong.size).length;
      const rows = `${this.rows.length} ${this.kind.value}s and outputs, of which ${wrong} are wrong`;
      this.svg.setAttribute("aria-label", `Errors at ${columns} positions of ${rows} at some`);
      const { scrollLeft, scrollTop } = this.scroller;
      const from = { row: Math.floor(scrollTop / ROW_HEIGHT), at: Math.floor(scrollLeft / column) };
      const to = {
        row: Math.min(this.rows.length, from.row + Math.ceil(height / ROW_HEIGHT) + 1),
        at: Math.min(columns, from.at + Math.ceil((width - names) / column) + 1)
      };
      const left = (at) => names + at * column - scrollLeft;
      const top = (row) => TOP + row * ROW_HEIGHT - scrollTop;
      const paths = /* @__PURE__ */ new Map();
      const add = (classes, d) => paths.set(classes, `${paths.get(classes) ?? ""}${d}`);
      const gap = column > 2 * NARROWEST ? 1 : 0.5;
      const labels2 = [];
      for (let index = from.row; index < to.row; index += 1) {
        const row = this.rows[index];
        const y = top(index);
        for (let at = from.at; at < to.at; at += 1) {
          const x = left(at);
          const color = this.colors.classOf(row, at);
          add(color, `M${x.toFixed(2)} ${y + 1}h${(column - gap).toFixed(2)}v${ROW_HEIGHT - 2}h-${column - gap}z`);
          if (!row.wrong.has(at)) continue;
          add(
            `wrong ${column < NARROW ? "narrow " : ""}${color}`,
            `M${(x + (column - gap) / 2).toFixed(2)} ${y + ROW_HEIGHT / 2}h0`
          );
        }
        const chosen = this.chosen?.row === index ? " chosen" : "";
        const text = truncate(ending(row.name), names - 12, LABEL_FONT);
        labels2.push(svg("text", { class: `small${chosen}`, x: 8, y: y + 12.5 }, svg("title", {}, row.name), text));
      }
      const step = labelStep(column, LABEL_ROOM);
      const numbers = Array.from({ length: columns }, (_, at) => at).filter((at) => at % step === 0 && left(at) >= names).map(
        (at) => svg("text", { class: "tiny", x: left(at) + column / 2, y: 14, "text-anchor": "middle" }, String(at))
      );
      const ring = (cell, kind) => svg("rect", { class: kind, x: left(cell.at) - 1, y: top(cell.row), width: column + 1, height: ROW_HEIGHT });
      const first = this.first;
      this.svg.replaceChildren(
        ...[...paths].sort(([a], [b]) => Number(a.startsWith("wrong")) - Number(b.startsWith("wrong"))).map(cellsElement),
        ...first ? [ring(first, "first-ring")] : [],
        ...this.chosen ? [ring(this.chosen, "chosen-ring")] : [],
        svg("rect", { class: "cover", x: 0, y: 0, width: names - 2, height }),
        ...labels2,
        svg("rect", { class: "cover", x: 0, y: 0, width, height: TOP }),
        ...numbers
      );
    }
    /** The first cell that is wrong: that of the first divergence. @returns {Cell | null} */
    get first() {
      const finding = this.app.data.firstDivergence;
      const row = this.rows.findIndex(({ findings }) => findings.some((each) => each === finding));
      const at = smallest([...finding?.positions?.wrong ?? []]);
      return row >= 0 && Number.isFinite(at) ? { row, at } : null;
    }
    changeKind() {
      this.chosen = null;
      this.show(this.app.selected);
    }
    /**
     * Selects what a cell shows.
     * @param {Cell} cell
     */
    choose(cell) {
      const { app } = this;
      const row = this.rows[cell.row];
      const { node, value } = row.findingAt(cell.at);
      this.chosen = cell;
      app.select(node ?? value, { move: true });
      app.announce(`${row.name}, ${this.noteOf(cell)}`);
    }
    /** @param {Cell} cell */
    noteOf({ row, at }) {
      const { errors, wrong } = this.rows[row];
      return `position ${at}: ${wrong.has(at) ? "wrong" : "right"}, off by ${shortNumber(errors[at])} of a typical number`;
    }
    /**
     * Goes to the row of an item: to the chosen cell if that is of the item, else to the first cell that is wrong.
     * @param {Item | null} item null for none
     */
    show(item) {
      const ofItem = ({ node, value }) => item !== null && (node === item || value === item);
      const isOf2 = ({ row }) => this.rows[row].findings.some(ofItem);
      if (!this.chosen || !isOf2(this.chosen)) {
        const row = this.rows.findIndex(({ findings }) => findings.some(ofItem));
        const own = row < 0 ? [] : this.rows[row].findings.filter(ofItem);
        const at = smallest(own.flatMap(({ positions }) => [...positions.wrong]));
        this.chosen = row < 0 ? null : { row, at: Number.isFinite(at) ? at : 0 };
      }
      this.reveal();
    }
    /** Draws the grid with the chosen cell in sight. */
    reveal() {
      const { width, columns, names, column } = this.measures;
      if (!width) return;
      this.room.style.width = `${names + columns * column}px`;
      this.room.style.height = `${TOP + this.rows.length * ROW_HEIGHT}px`;
      if (this.chosen) this.scrollTo(this.chosen);
      this.draw();
    }
    /**
     * Scrolls to a cell, unless it is visible.
     * @param {Cell} cell
     */
    scrollTo({ row, at }) {
      const { width, height, names, column } = this.measures;
      const [x, y] = [at * column, row * ROW_HEIGHT];
      const { scrollLeft, scrollTop } = this.scroller;
      const seenX = x >= scrollLeft && x + column <= scrollLeft + width - names;
      const seenY = y >= scrollTop && y + ROW_HEIGHT <= scrollTop + height - TOP;
      if (!seenX) this.scroller.scrollLeft = x - (width - names) / 2;
      if (!seenY) this.scroller.scrollTop = y - (height - TOP) / 3;
    }
    /** @param {KeyboardEvent} event */
    key(event) {
      const steps = /* @__PURE__ */ new Map([
        ["ArrowDown", [1, 0]],
        ["ArrowUp", [-1, 0]],
        ["ArrowRight", [0, 1]],
        ["ArrowLeft", [0, -1]]
      ]);
      const step = steps.get(event.key);
      if (!step || !this.rows.length) return;
      event.preventDefault();
      event.stopPropagation();
      const { row, at } = this.chosen ?? this.first ?? { row: 0, at: 0 };
      const within = (place, count2) => Math.max(0, Math.min(count2 - 1, place));
      const next = { row: within(row + step[0], this.rows.length), at: within(at + step[1], this.measures.columns) };
      this.choose(next);
    }
    /** @param {MouseEvent} event */
    hover(event) {
      const { app } = this;
      const cell = this.cellAt(event);
      this.svg.classList.toggle("on-dot", Boolean(cell));
      if (!cell) return app.tooltip.hide();
      const { node, value } = this.rows[cell.row].findingAt(cell.at);
      app.tooltip.show(node ?? value, event, this.noteOf(cell));
    }
  };
  function cellsElement([classes, d]) {
    return svg("path", { class: classes, d });
  }
  function ending(name) {
    return name.length > 34 ? `…${name.slice(-33)}` : name;
  }

  // src/model.js
  var ROLES = ["intermediate", "view", "input", "output", "parameter"];
  var COMPARED = ["same", "different", "shape or dtype differs"];
  var DIVERGED = ["different", "shape or dtype differs", "leaves A", "not in B", "contradicted"];
  var PageData = class {
    /** @param {any} raw */
    constructor(raw2) {
      this.strings = raw2.strings;
      this.lists = raw2.lists;
      this.remarks = raw2.remarks;
      this.close = raw2.close ?? null;
      this.graphs = raw2.graphs.map(
        (graph, index) => new Graph(this, graph, index)
      );
      this.main = this.graphs[0];
      this.before = this.graphs.find((graph) => graph.role === "before") ?? null;
      this.reference = this.graphs.find((graph) => graph.role === "reference") ?? null;
      this.findings = this.graphs.flatMap((graph) => graph.findings);
      this.firstDivergence = this.findings.find((finding) => finding.first) ?? firstDiverged(this.findings);
      if (this.before) linkCounterparts(this.main, this.before);
      if (this.reference) linkPlaces(this.main, this.reference);
    }
    /** The result of the comparison; null if nothing was compared. @returns {Verdict | null} */
    get verdict() {
      if (this.findings.some((finding) => finding.diverged)) return "different";
      if (this.reference) return this.close ? "close" : "different";
      return this.close === null ? null : this.close ? "close" : "not close";
    }
    /** What the page is about. */
    get title() {
      const { main, reference } = this;
      return reference ? `${main.name} (B) against ${reference.name} (A)` : main.name;
    }
    /**
     * What a graph is called among those of the page.
     * @param {Graph} graph
     */
    titleOf({ role, of }) {
      if (role === "function") return `Function ${of.slice(0, 40)}`;
      if (role === "before") return "Exported graph";
      if (this.reference) return role === "reference" ? "A" : "B";
      return this.before ? "Compiled graph" : "Graph";
    }
    /**
     * A text by its index.
     * @param {number | null | undefined} index
     */
    text(index) {
      return index === null || index === void 0 ? "" : this.strings[index];
    }
    /**
     * A list of texts by its index.
     * @param {number | null | undefined} index
     */
    texts(index) {
      return index === null || index === void 0 ? [] : this.lists[index].map((text) => this.strings[text]);
    }
  };
  var Graph = class {
    /**
     * @param {PageData} data
     * @param {any} raw
     * @param {number} index among the graphs of the page
     */
    constructor(data, raw2, index) {
      this.index = index;
      this.name = raw2.name;
      this.role = raw2.role;
      this.of = raw2.of ?? "";
      this.values = raw2.values.map(
        (value, id) => new Value(this, id, value, data)
      );
      this.groups = [];
      for (const group of raw2.groups) this.groups.push(new Group(this, this.groups.length, group, data));
      this.topGroups = this.groups.filter((group) => group.parent === null);
      this.nodes = raw2.nodes.map(
        (node, id) => new GraphNode(this, id, node, data)
      );
      this.nodeByName = new Map(this.nodes.map((node) => [node.name, node]));
      this.inputs = raw2.inputs.map((id) => this.values[id]);
      this.outputs = raw2.outputs.map((id) => this.values[id]);
      this.findings = raw2.findings.map((finding) => new Finding(this, finding, data));
      for (const node of this.nodes) node.summarize();
    }
  };
  var Value = class {
    /**
     * @param {Graph} graph
     * @param {number} id
     * @param {any[]} raw
     * @param {PageData} data
     */
    constructor(graph, id, [name, role, dtype, shape], data) {
      this.kind = /** @type {const} */
      "value";
      this.graph = graph;
      this.id = id;
      this.name = data.text(name);
      this.role = ROLES[role];
      this.dtype = data.text(dtype);
      this.shape = shape === null || shape === void 0 ? null : data.texts(shape);
      this.producer = null;
      this.readers = [];
      this.findings = [];
      this.worst = null;
    }
  };
  var Group = class {
    /**
     * @param {Graph} graph
     * @param {number} id
     * @param {any[]} raw
     * @param {PageData} data
     */
    constructor(graph, id, [parent, path, name, type], data) {
      this.kind = /** @type {const} */
      "group";
      this.graph = graph;
      this.id = id;
      this.name = data.text(name);
      this.path = data.text(path);
      this.type = data.text(type);
      this.parent = parent === null ? null : graph.groups[parent];
      this.groups = [];
      this.groupPath = [...this.parent?.groupPath ?? [], this];
      this.size = 0;
      this.worst = null;
      this.seconds = null;
      this.counterparts = [];
      this.parent?.groups.push(this);
    }
  };
  var GraphNode = class {
    /**
     * @param {Graph} graph
     * @param {number} id
     * @param {any[]} raw
     * @param {PageData} data
     */
    constructor(graph, id, raw2, data) {
      const [
        name,
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
        captured
      ] = raw2;
      const values = (ids) => (ids ?? []).map((index) => index === null ? null : graph.values[index]);
      this.kind = /** @type {const} */
      "node";
      this.graph = graph;
      this.id = id;
      this.name = data.text(name);
      this.op = data.text(op);
      this.group = group === null || group === void 0 ? null : graph.groups[group];
      this.groupPath = this.group?.groupPath ?? [];
      this.inputs = values(inputs);
      this.outputs = values(outputs);
      this.captured = values(captured);
      this.stack = chunks(data.texts(stack), 3);
      this.module = data.text(module);
      this.source = data.text(source);
      this.attributes = chunks(data.texts(attributes), 2);
      this.origins = data.texts(origins);
      this.target = data.text(target);
      this.code = data.text(code);
      this.gradientOf = data.text(forward);
      this.counterparts = [];
      this.reads = [...new Set([...this.inputs, ...this.captured].filter((value) => value !== null))];
      for (const value of this.reads) value.readers.push(this);
      for (const value of this.written) value.producer = this;
      this.findings = [];
      this.worst = null;
      this.seconds = null;
      this.depth = 1;
      this.constant = false;
      this.constantKind = "constants";
    }
    /** The outputs that are not left out. */
    get written() {
      return this.outputs.filter((value) => value !== null);
    }
    /** Sets what follows from its findings and from the nodes before it, and adds it to the groups around it. */
    summarize() {
      this.findings = this.written.flatMap((value) => value.findings);
      this.worst = this.findings.reduce(worseOf, null);
      const times = this.findings.map((finding) => finding.seconds).filter((seconds) => seconds !== null);
      this.seconds = times.length ? largest(times) : null;
      const sources = this.reads.map((value) => value.producer).filter((node) => node !== null);
      this.depth = 1 + largest(
        sources.map((source) => source.depth),
        0
      );
      this.constant = this.reads.every((value) => value.producer ? value.producer.constant : value.role === "parameter") && (this.reads.length > 0 || this.op === "Constant") && this.written.every((value) => value.role !== "output");
      const readsWeights = this.reads.some((value) => (value.producer?.constantKind ?? "weights") === "weights");
      if (this.constant && readsWeights) this.constantKind = "weights";
      for (const group of this.groupPath) {
        group.size += 1;
        group.worst = worseOf(group.worst, this.worst);
        if (this.seconds !== null) group.seconds = (group.seconds ?? 0) + this.seconds;
      }
    }
  };
  var Finding = class {
    /**
     * @param {Graph} graph
     * @param {any[]} raw
     * @param {PageData} data
     */
    constructor(graph, raw2, data) {
      const [
        value,
        status,
        stage,
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
        places,
        positions
      ] = raw2;
      this.graph = graph;
      this.value = graph.values[value];
      this.status = data.text(status);
      this.stage = data.text(stage);
      this.call = call ?? 0;
      this.first = Boolean(first);
      this.error = real(error);
      this.text = data.text(text);
      this.evidence = data.text(evidence);
      this.measures = new Map(data.texts(names).map((name, index) => [name, parseNumber(measures[index])]));
      this.seconds = real(seconds);
      this.expected = parseStatistics(expected);
      this.actual = parseStatistics(actual);
      this.histogram = histogram ?? null;
      this.places = chunks(data.texts(places), 2);
      this.links = [];
      this.positions = parsePositions(positions);
      this.compared = COMPARED.includes(this.status);
      this.diverged = DIVERGED.includes(this.status);
      this.node = this.value.producer;
      this.order = this.node?.id ?? -1;
      this.value.findings.push(this);
      this.value.worst = worseOf(this.value.worst, this);
    }
  };
  function parseNumber(number) {
    if (number === void 0 || number === null) return null;
    if (typeof number === "number") return number;
    return /^-?\d+$/.test(number) ? BigInt(number) : Number(number);
  }
  function real(number) {
    const parsed = parseNumber(number);
    return parsed === null ? null : Number(parsed);
  }
  function parsePositions(raw2) {
    return raw2 ? { errors: raw2[0].map(Number), wrong: new Set(raw2[1]) } : null;
  }
  function parseStatistics(raw2) {
    if (!raw2) return null;
    const [minimum, maximum, mean, std, nan, inf] = raw2.slice(1, 7).map(parseNumber);
    return {
      what: (
        /** @type {string} */
        raw2[0]
      ),
      minimum,
      maximum,
      mean,
      std,
      nan,
      inf,
      content: (
        /** @type {string} */
        raw2[7]
      )
    };
  }
  function chunks(texts, size) {
    return Array.from({ length: texts.length / size }, (_, index) => texts.slice(size * index, size * (index + 1)));
  }
  function worseOf(one, other) {
    if (!one || !other) return one ?? other;
    const rank = (finding) => [
      Number(finding.diverged),
      Number(!finding.compared),
      finding.error === null ? 0 : Number.isNaN(finding.error) ? Infinity : finding.error
    ];
    const [a, b] = [rank(one), rank(other)];
    const index = a.findIndex((part, place) => part !== b[place]);
    return index < 0 || a[index] > b[index] ? one : other;
  }
  function firstDiverged(findings) {
    const diverged = findings.filter((finding) => finding.diverged);
    return diverged.length ? diverged.reduce((a, b) => b.order < a.order ? b : a) : null;
  }
  function typeLabel(value) {
    if (!value.dtype && !value.shape) return "";
    return `${value.dtype || "?"}[${value.shape ? value.shape.join(", ") : "?"}]`;
  }
  function affectedNodes(node) {
    const diverged = (each) => Boolean(each.worst?.diverged);
    const passes = (each) => diverged(each) || !each.worst?.compared;
    const reached = /* @__PURE__ */ new Set([node]);
    for (const each of reached) {
      for (const value of each.written) for (const reader of value.readers) if (passes(reader)) reached.add(reader);
    }
    const affected = /* @__PURE__ */ new Set();
    for (const each of [...reached].sort((a, b) => b.id - a.id)) {
      const goesOn = each.written.some((value) => value.readers.some((reader) => affected.has(reader)));
      if (each === node || diverged(each) || goesOn) affected.add(each);
    }
    return affected;
  }
  function readersOfConstant(node) {
    const seen = /* @__PURE__ */ new Set([node]);
    for (const each of seen) {
      if (each.constant) for (const value of each.written) for (const reader of value.readers) seen.add(reader);
    }
    return [...seen].filter((each) => !each.constant);
  }

  // src/boxes.js
  var FONTS = { title: "600 12.5px", small: "400 11px", tiny: "400 10px" };
  var WIDEST_TEXT = 220;
  var LONGEST_TEXT = 60;
  function measureBox(item, role, shown = {}) {
    const lines = boxLines(item, role, shown);
    const widths2 = lines.map(([text, font]) => Math.min(WIDEST_TEXT, textWidth(text.slice(0, LONGEST_TEXT), font)));
    const label = Math.max(...[errorLabel(item), timeLabel(item)].map((text) => textWidth(text, FONTS.small)));
    const margin = item.kind === "group" ? 58 : 26;
    const least = role === "input" || role === "output" ? 60 : 76;
    const width = Math.max(least, Math.max(...widths2) + margin, widths2[0] + (label && label + 14) + margin);
    return { lines, w: Math.ceil(width), h: 10 + 15 * lines.length + (item.kind === "group" ? 4 : 0) };
  }
  function cornerLabel(item, mode) {
    return mode === "time" ? timeLabel(item) : errorLabel(item);
  }
  function timeLabel(item) {
    return item.kind === "value" || item.seconds === null ? "" : milliseconds(item.seconds);
  }
  function errorLabel(item) {
    return shortNumber(item.worst?.error);
  }
  function boxLines(item, role, shown) {
    if (item.kind === "group") {
      const type = className(item.type);
      if (role === "open") return [[`${item.name}   ${type}`, FONTS.title]];
      const size = count(item.size, "operation");
      return [
        [item.name, FONTS.title],
        [type ? `${type} · ${size}` : size, FONTS.small]
      ];
    }
    if (item.kind === "value") {
      return [
        [item.name, FONTS.small],
        [typeLabel(item), FONTS.tiny]
      ];
    }
    const lines = [
      [operatorName(item.op), FONTS.title],
      [item.name, FONTS.small]
    ];
    const weights = shown.weights ? [] : [...new Set(item.reads.map(weightLabel).filter(Boolean))];
    if (weights.length) lines.push([weights.slice(0, 3).join("  ·  ") + (weights.length > 3 ? "  …" : ""), FONTS.tiny]);
    return lines;
  }
  function className(name) {
    return name.slice(name.lastIndexOf(".") + 1);
  }
  function weightLabel(value) {
    if (value.role !== "parameter" && !value.producer?.constant) return "";
    let root = value;
    while (root.producer?.reads.length) [root] = root.producer.reads;
    if (root.role !== "parameter") return "";
    const shape = (value.shape ?? root.shape ?? []).join("×");
    return `${className(root.name.slice(-80))}${shape ? ` ${shape}` : ""}`;
  }

  // src/drawing.js
  var LEVELS = [0.4, 0.62, 0.8];
  var OVERVIEW = 0;
  var MOST_GROUP_NAMES = 60;
  var MARGIN = 60;
  var Drawing = class {
    /** @param {SVGSVGElement} element */
    constructor(element) {
      this.element = element;
      this.world = svg("g", { class: "world" });
      this.groupNames = svg("g", { class: "far-labels" });
      element.append(this.world, this.groupNames);
      this.drawn = /* @__PURE__ */ new Map();
      this.layers = { opened: svg("g"), edges: svg("g"), boxes: svg("g") };
      this.arrangement = null;
      this.level = OVERVIEW;
      this.drawnView = null;
    }
    /**
     * Draws everything again.
     * @param {Arrangement} arrangement
     * @param {View} view
     * @param {Look} look
     */
    draw(arrangement, view, look) {
      this.arrangement = arrangement;
      this.look = look;
      this.level = detailLevel(view.k);
      this.drawn.clear();
      this.drawnView = null;
      const layer = (name) => svg("g", { class: name });
      this.layers = { opened: layer("opened"), edges: layer("edges"), boxes: layer("boxes") };
      this.world.replaceChildren(...Object.values(this.layers));
      this.element.dataset.level = String(this.level);
      if (this.level === OVERVIEW) this.drawOverview(arrangement, look);
      this.move(view);
    }
    /**
     * Shows another part. Near the part that was shown before, it only moves what is drawn; else it adds what has become
     * visible and removes what no longer is.
     * @param {View} view
     */
    move(view) {
      if (!this.arrangement || !this.look) return;
      if (detailLevel(view.k) !== this.level) {
        this.draw(this.arrangement, view, this.look);
        return;
      }
      this.world.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.k})`);
      const overview = this.level === OVERVIEW;
      if (!this.drawnView || overview && this.drawnView.k !== view.k || !isNear(view, this.drawnView)) {
        this.drawnView = { ...view };
        this.groupNames.replaceChildren(...overview ? groupNames(this.arrangement, view) : []);
        if (!overview) this.drawVisible(this.arrangement, view, this.look);
      }
      if (!overview) return;
      const { x, y } = this.drawnView;
      const shift = `translate(${view.x - x} ${view.y - y})`;
      if (this.groupNames.getAttribute("transform") !== shift) this.groupNames.setAttribute("transform", shift);
    }
    /**
     * @param {Arrangement} arrangement
     * @param {View} view
     * @param {Look} look
     */
    drawVisible({ boxes, edges }, view, look) {
      const { left, top, right, bottom } = visiblePart(view, MARGIN);
      const visible = /* @__PURE__ */ new Map();
      boxes.forEach((box, index) => {
        if (!(box.x < right && box.x + box.w > left && box.y < bottom && box.y + box.h > top)) return;
        visible.set(box, [box.kind === "open" ? "opened" : "boxes", () => boxElement(box, look)]);
        if (box.kind === "open") visible.set(`heading ${index}`, ["boxes", () => headingElement(box, look)]);
      });
      for (const edge of edges) {
        const { bounds } = edge;
        if (bounds.left < right && bounds.right > left && bounds.top < bottom && bounds.bottom > top) {
          visible.set(edge, ["edges", () => edgeElement(edge, look, this.level === LEVELS.length)]);
        }
      }
      for (const [key, element] of this.drawn) {
        if (visible.has(key)) continue;
        element.remove();
        this.drawn.delete(key);
      }
      for (const [key, [layer, make]] of visible) {
        if (this.drawn.has(key)) continue;
        const element = make();
        this.drawn.set(key, element);
        this.layers[layer].append(element);
      }
    }
    /**
     * Draws everything in a few paths.
     * @param {Arrangement} arrangement
     * @param {Look} look
     */
    drawOverview({ boxes, edges }, look) {
      const paths = { opened: /* @__PURE__ */ new Map(), boxes: /* @__PURE__ */ new Map() };
      for (const box of boxes) {
        const color = box.kind === "open" ? "plain" : look.colors.classOf(box.item);
        const classes = ["box far", box.kind, color, roleClass(box), stateClasses(box.item, look)].join(" ");
        const layer = paths[box.kind === "open" ? "opened" : "boxes"];
        layer.set(classes, `${layer.get(classes) ?? ""}M${box.x} ${box.y}h${box.w}v${box.h}h${-box.w}z`);
      }
      for (
        const layer of
        /** @type {const} */
        ["opened", "boxes"]
      ) {
        for (const [classes, d2] of paths[layer]) {
          this.layers[layer].append(svg("g", { class: classes }, svg("path", { class: "card", d: d2 })));
        }
      }
      const d = edges.map(edgePath).join("");
      this.layers.edges.append(svg("g", { class: `edge ${look.lit ? "dim" : ""}` }, svg("path", { class: "line", d })));
    }
  };
  function visiblePart({ k, x, y, width, height }, margin = 0) {
    return {
      left: (-x - margin) / k,
      top: (-y - margin) / k,
      right: (width - x + margin) / k,
      bottom: (height - y + margin) / k
    };
  }
  function isNear(view, other) {
    const shown = visiblePart(view);
    const { left, top, right, bottom } = visiblePart(other, MARGIN);
    return shown.left >= left && shown.top >= top && shown.right <= right && shown.bottom <= bottom;
  }
  function stateClasses(item, { selected, first, marked, lit }) {
    const dim = lit && !lit.has(item);
    return [selected === item && "selected", marked.has(item) && "marked", dim && "dim", first.has(item) && "first"].filter(Boolean).join(" ");
  }
  function boxElement(box, look) {
    const { item, kind, w, h } = box;
    const depth = kind === "open" && item.kind === "group" ? `nested-${item.groupPath.length % 2}` : "";
    const classes = ["box", kind, depth, look.colors.classOf(item), roleClass(box), stateClasses(item, look)].join(" ");
    const element = svg("g", { class: classes, transform: `translate(${box.x} ${box.y})` });
    element.dataset[item.kind] = String(item.id);
    if (kind === "group") element.append(svg("rect", { class: "stack", x: 4, y: 4, width: w, height: h, rx: 8 }));
    const radius = kind === "value" ? h / 2 : kind === "node" ? 6 : 9;
    element.append(svg("rect", { class: "card", width: w, height: h, rx: radius }));
    if (item.kind === "node") {
      const d = `M6 0.5H5.5A5 5 0 0 0 .5 5.5V${h - 5.5}A5 5 0 0 0 5.5 ${h - 0.5}H6Z`;
      element.append(svg("path", { class: `strip family-${operatorFamily(item.op)}`, d }));
    }
    if (kind === "group") element.append(...foldSign(false));
    if (kind !== "open") element.append(...textElements(box, look));
    return element;
  }
  function headingElement({ item, x, y, w }, look) {
    const name = truncate(item.name, w - 60, FONTS.title);
    const element = svg("g", { class: `heading ${stateClasses(item, look)}`, transform: `translate(${x} ${y})` });
    element.append(...foldSign(true), svg("text", { class: "op", x: 34, y: 20.5 }, name));
    const type = item.kind === "group" ? className(item.type) : "";
    const left = 34 + textWidth(name, FONTS.title) + 10;
    if (type && w - left > 50) {
      element.append(svg("text", { class: "small", x: left, y: 20.5 }, truncate(type, w - left - 16, FONTS.small)));
    }
    return element;
  }
  function textElements({ item, lines, w }, look) {
    const group = item.kind === "group";
    const centered = item.kind === "value";
    const label = centered ? "" : cornerLabel(item, look.colors.mode);
    const labelWidth = label ? textWidth(label, FONTS.small) + 10 : 0;
    const left = centered ? w / 2 : group ? 34 : 15;
    const baseline = group ? 20.5 : 18.5;
    const elements = lines.map(([text, font], index) => {
      const kind = font === FONTS.title ? "op" : font === FONTS.small ? "small" : "tiny";
      const width = w - (centered ? 18 : left + 10) - (index === 0 ? labelWidth : 0);
      const place = { x: left, y: baseline + 15 * index, "text-anchor": centered ? "middle" : "start" };
      return svg("text", { class: kind, ...place }, truncate(text, width, font));
    });
    if (label) elements.push(svg("text", { class: "small error", x: w - 9, y: baseline, "text-anchor": "end" }, label));
    return elements;
  }
  function edgeElement(edge, { selected, lit }, detailed) {
    const { value } = edge;
    const ends = [value, value.producer, ...value.readers];
    const near = selected && ends.includes(selected);
    const goesOn = value.role === "output" || value.readers.some((node) => lit?.has(node));
    const dim = lit && !(value.producer && lit.has(value.producer) && goesOn);
    const element = svg("g", { class: `edge ${near ? "near" : ""} ${dim ? "dim" : lit ? "on-path" : ""}` });
    element.append(svg("path", { class: "line", d: edgePath(edge) }));
    if (edge.heads.length) {
      element.append(svg("path", { class: "head", d: edge.heads.map(([x, y]) => `M${x} ${y}l-3.5-6.5h7z`).join("") }));
    }
    if (detailed && edge.label && edge.labelWidth > 24 && typeLabel(value)) {
      const [x, y] = edge.label;
      const text = `${value.dtype || "?"} ${value.shape ? value.shape.join("×") || "scalar" : ""}`;
      const shown = truncate(text, edge.labelWidth, FONTS.tiny);
      element.append(svg("text", { class: "tiny type", x: x + 5, y: y + 12 }, shown));
    }
    return element;
  }
  function groupNames({ boxes }, view) {
    const font = "600 11px";
    const taken = [];
    const names = [];
    for (const box of boxes) {
      if (box.item.kind !== "group") continue;
      if (names.length > MOST_GROUP_NAMES) break;
      const [width, height] = [box.w * view.k, box.h * view.k];
      const [left, top] = [box.x * view.k + view.x + 4, box.y * view.k + view.y + Math.min(2, (height - 14) / 2)];
      if (width < 34 || height < 13) continue;
      const across = left < view.width + MARGIN && left + width > -MARGIN;
      const visible = across && top < view.height + MARGIN && top > -20 - MARGIN;
      if (!visible) continue;
      const text = truncate(box.item.name, width - 6, font);
      if (text.length < 2) continue;
      const place = { left, top, right: left + textWidth(text, font) + 6, bottom: top + 15 };
      const overlaps = (other) => left < other.right && place.right > other.left && top < other.bottom && place.bottom > other.top;
      if (taken.some(overlaps)) continue;
      taken.push(place);
      names.push(svg("text", { class: "sign", x: left, y: top + 11 }, text));
    }
    return names;
  }
  function roleClass({ role }) {
    return role && role !== "node" ? `role-${role}` : "";
  }
  function detailLevel(scale) {
    return LEVELS.filter((least) => scale >= least).length;
  }
  function edgePath(edge) {
    return edge.path ??= edge.runs.map(runPath).join("");
  }
  function runPath([x1, y1, bend, x2, end, y2]) {
    if (Math.abs(x1 - x2) < 0.6) return `M${x1} ${y1}V${y2}`;
    const middle = (bend + end) / 2;
    return `M${x1} ${y1}V${bend}C${x1} ${middle} ${x2} ${middle} ${x2} ${end}V${y2}`;
  }
  function foldSign(open) {
    return [
      svg("rect", { class: "fold", x: 10, y: 9, width: 14, height: 14, rx: 4 }),
      svg("path", { class: "fold-sign", d: open ? "M13 16h8" : "M13 16h8M17 12v8" })
    ];
  }

  // src/minimap.js
  var LARGEST = { width: 150, height: 190 };
  var SHOWN_PART = 2 / 3;
  var SMALLEST = 56;
  var BUTTONS_HEIGHT = 130;
  function minimapScale({ width, height }, pane) {
    const largest2 = {
      width: Math.min(LARGEST.width, pane.width / 4),
      height: Math.min(LARGEST.height, pane.height - BUTTONS_HEIGHT)
    };
    if (Math.min(largest2.width, largest2.height) < SMALLEST) return null;
    const k = Math.min(largest2.width / width, largest2.height / height);
    const size = (length, most) => Math.round(Math.min(most, Math.max(SMALLEST, length * k)));
    const [w, h] = [size(width, largest2.width), size(height, largest2.height)];
    return { width: w, height: h, x: w / width, y: h / height };
  }
  var Minimap = class {
    /** @param {(x: number, y: number) => void} moveTo moves the middle of the view to a point of the graph */
    constructor(moveTo) {
      this.moveTo = moveTo;
      this.canvas = html("canvas", { role: "img", "aria-label": "The whole graph; click to move there" });
      this.frame = html("div", { class: "frame" });
      this.probe = html("i", { hidden: true });
      this.element = html("div", { class: "minimap" }, this.canvas, this.frame, this.probe);
      this.scale = { width: 0, height: 0, x: 1, y: 1 };
      this.drawn = "";
      this.framePlace = [];
      this.arrangement = /** @type {Arrangement | null} */
      null;
      this.element.addEventListener("pointerdown", (event) => {
        this.element.setPointerCapture(event.pointerId);
        this.point(event);
      });
      this.element.addEventListener("pointermove", (event) => {
        if (this.element.hasPointerCapture(event.pointerId)) this.point(event);
      });
    }
    /** @param {PointerEvent} event */
    point(event) {
      const { left, top } = this.canvas.getBoundingClientRect();
      this.moveTo((event.clientX - left) / this.scale.x, (event.clientY - top) / this.scale.y);
    }
    /**
     * Draws a graph again if it, its colors, the theme or the room for it have changed.
     * @param {Arrangement} arrangement
     * @param {View} view
     * @param {Look} look
     */
    draw(arrangement, view, { colors, first }) {
      const scale = minimapScale(arrangement, view);
      this.element.hidden = !scale;
      const { display, color } = getComputedStyle(this.element);
      if (!scale || display === "none") {
        this.arrangement = null;
        return;
      }
      const state = `${colors.mode} ${color} ${scale.width} ${scale.height}`;
      if (this.arrangement === arrangement && this.drawn === state) return;
      [this.arrangement, this.drawn] = [arrangement, state];
      const { canvas } = this;
      const { width, height, x, y } = this.scale = scale;
      const density = devicePixelRatio || 1;
      Object.assign(canvas, { width: width * density, height: height * density });
      Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
      const context2 = (
        /** @type {CanvasRenderingContext2D} */
        canvas.getContext("2d")
      );
      context2.scale(density, density);
      const fills = /* @__PURE__ */ new Map();
      const fillOf = (box) => {
        const name = box.kind === "open" ? "open" : colors.classOf(box.item);
        let fill2 = fills.get(name);
        if (!fill2) fills.set(name, fill2 = this.colorOf(name));
        return fill2;
      };
      for (const box of arrangement.boxes) {
        context2.fillStyle = fillOf(box);
        context2.fillRect(box.x * x, box.y * y, Math.max(1, box.w * x), Math.max(0.8, box.h * y));
      }
      const found = arrangement.boxes.find(({ item, kind }) => kind !== "open" && first.has(item));
      if (!found) return;
      context2.strokeStyle = this.colorOf("first");
      context2.lineWidth = 2;
      context2.strokeRect(found.x * x - 2, found.y * y - 2, Math.max(1, found.w * x) + 4, Math.max(1, found.h * y) + 4);
    }
    /** @param {string} cssClass */
    colorOf(cssClass) {
      this.probe.className = cssClass;
      return getComputedStyle(this.probe).backgroundColor;
    }
    /**
     * Moves the frame. The map is hidden while most of the graph is visible.
     * @param {View} view
     */
    move(view) {
      if (!this.arrangement) return;
      const { k } = view;
      const [left, top, right, bottom] = [-view.x, -view.y, view.width - view.x, view.height - view.y].map(
        (at) => at / k
      );
      const { width, height } = this.arrangement;
      const shown = (low, high, length) => (Math.min(high, length) - Math.max(low, 0)) / length >= SHOWN_PART;
      const mostly = shown(left, right, width) && shown(top, bottom, height);
      this.element.classList.toggle("unneeded", mostly);
      if (mostly) return;
      const { x, y } = this.scale;
      const within = (at, most) => Math.round(Math.max(0, Math.min(most, at)));
      const [x1, x2] = [within(left * x, this.scale.width), within(right * x, this.scale.width)];
      const [y1, y2] = [within(top * y, this.scale.height), within(bottom * y, this.scale.height)];
      const place = [x1, y1, Math.max(4, x2 - x1), Math.max(4, y2 - y1)];
      if (place.every((at, index) => at === this.framePlace[index])) return;
      this.framePlace = place;
      const { style } = this.frame;
      style.transform = `translate(${x1}px, ${y1}px)`;
      style.width = `${place[2]}px`;
      style.height = `${place[3]}px`;
    }
  };

  // src/layout/coordinates.js
  var GAP = { box: 24, line: 12 };
  var LAYER_GAP = 30;
  var LARGE = 4e3;
  function assignX(layers) {
    for (const layer of layers) placeLayer(layer, () => [0, 1e-3]);
    const size = layers.reduce((sum, layer) => sum + layer.length, 0);
    sweep(layers, size > LARGE ? 5 : 13);
    const inner = layers.filter((layer) => !layer.some(isPinned));
    if (!inner.length || inner.length === layers.length) return;
    const [left, right] = extent(inner);
    for (const layer of layers) if (layer.some(isPinned)) placeLayer(layer, () => [(left + right) / 2, 1]);
    sweep(inner, 3);
  }
  function sweep(layers, times) {
    const out = (segment) => segment.above.item?.ports ? 0 : segment.out;
    const into = (segment) => segment.below.item?.ports ? 0 : segment.into;
    const fromAbove = (node) => node.up.map((each) => [each.above.x + out(each) - into(each), each.weight]);
    const fromBelow = (node) => node.down.map((each) => [each.below.x + into(each) - out(each), each.weight]);
    for (let time = 0; time < times; time++) {
      const down = time % 2 === 0;
      const wishes = down ? fromAbove : fromBelow;
      for (const layer of down ? layers : layers.toReversed()) {
        placeLayer(layer, (node) => weightedMedian(wishes(node)) ?? [node.x, 0.05]);
      }
    }
  }
  function isPinned(node) {
    return Boolean(node.item?.pin);
  }
  function extent(layers) {
    let [left, right] = [Infinity, -Infinity];
    for (const node of layers.flat()) {
      left = Math.min(left, node.x - node.w / 2);
      right = Math.max(right, node.x + node.w / 2);
    }
    return [left, right];
  }
  function weightedMedian(wishes) {
    if (!wishes.length) return null;
    wishes.sort((a, b) => a[0] - b[0]);
    const total = wishes.reduce((sum2, [, weight]) => sum2 + weight, 0);
    let sum = 0;
    for (const [index, [x, weight]] of wishes.entries()) {
      sum += weight;
      if (sum === total / 2) return [(x + wishes[index + 1][0]) / 2, total];
      if (sum > total / 2) return [x, total];
    }
    return [wishes[wishes.length - 1][0], total];
  }
  function placeLayer(layer, wish) {
    const blocks = [];
    let offset = 0;
    layer.forEach((node, index) => {
      if (index) {
        const left = layer[index - 1];
        offset += (left.w + node.w) / 2 + (left.item && node.item ? GAP.box : GAP.line);
      }
      const [x, weight] = wish(node);
      let block = { x: x - offset, weight, nodes: [
        /** @type {[LayoutNode, number]} */
        [node, offset]
      ] };
      for (let left = blocks.at(-1); left && left.x >= block.x; left = blocks.at(-1)) {
        blocks.pop();
        const sum = left.weight + block.weight;
        left.x = (left.x * left.weight + block.x * block.weight) / sum;
        left.weight = sum;
        for (const each of block.nodes) left.nodes.push(each);
        block = left;
      }
      blocks.push(block);
    });
    for (const { x, nodes } of blocks) for (const [node, shift] of nodes) node.x = x + shift;
  }
  function assignY(layers) {
    const [left, right] = extent(layers);
    for (const node of layers.flat()) node.x -= left;
    let y = 0;
    let height = 0;
    for (const layer of layers) {
      const tallest = largest(
        layer.map((node) => node.h),
        0
      );
      height = y + tallest;
      let sideways = 0;
      for (const node of layer) {
        Object.assign(node, { top: y, bottom: height, y: y + (tallest - node.h) / 2 });
        if (node.item) Object.assign(node.item, { x: node.x, y: node.y });
        for (const { out, into, below } of node.down) {
          sideways = Math.max(sideways, Math.abs(node.x + out - below.x - into));
        }
      }
      y = height + LAYER_GAP + Math.min(24, sideways / 16);
    }
    return { width: Math.max(0, right - left), height };
  }
  function routeLink(segments) {
    const runs = [];
    const ends = [];
    for (const { above, below, out, into } of segments) {
      const [x1, x2] = [above.x + out, below.x + into];
      const y1 = above.item ? above.y + above.h : above.top;
      const y2 = below.item ? below.y : below.top;
      runs.push([x1, y1, above.bottom, x2, below.top, y2]);
      if (below.item) ends.push([x2, y2, below.item]);
    }
    return { runs, ends };
  }

  // src/layout/ordering.js
  var LARGE2 = 4e3;
  function orderLayers(layers) {
    const size = layers.reduce((sum, layer) => sum + layer.length, 0);
    layers.forEach(setIndices);
    let best = layers;
    let least = Infinity;
    for (let sweep2 = 0; sweep2 < (size > LARGE2 ? 4 : 12) && least > 0; sweep2++) {
      const down = sweep2 % 2 === 0;
      for (const layer of down ? layers : layers.toReversed()) sortByMean(layer, down);
      const crossings = layers.reduce((sum, layer) => sum + crossingsBelow(layer), 0);
      if (crossings < least) [best, least] = [layers.map((layer) => [...layer]), crossings];
    }
    best.forEach(setIndices);
    return best;
  }
  function setIndices(layer) {
    layer.forEach((node, index) => node.index = index);
  }
  function sortByMean(layer, down) {
    const mean = (node) => {
      const segments = down ? node.up : node.down;
      if (!segments.length) return node.index;
      return segments.reduce((sum, segment) => sum + farEnd(segment, down), 0) / segments.length;
    };
    const means = new Map(layer.map((node) => [node, mean(node)]));
    const meanOf = (node) => (
      /** @type {number} */
      means.get(node)
    );
    layer.sort((a, b) => meanOf(a) - meanOf(b) || a.index - b.index);
    setIndices(layer);
  }
  function farEnd(segment, upper) {
    const node = upper ? segment.above : segment.below;
    return node.index + (node.w ? portOffset(node, segment, upper ? "out" : "into") / node.w : 0) * 0.9;
  }
  function portOffset(node, segment, side) {
    return node.item?.ports ? node.item.ports[side].get(segment.link.key) ?? 0 : segment[side];
  }
  function crossingsBelow(layer) {
    const segments = layer.flatMap((node) => node.down);
    if (segments.length < 2) return 0;
    segments.sort((a, b) => farEnd(a, true) - farEnd(b, true) || farEnd(a, false) - farEnd(b, false));
    const size = largest(segments.map((segment) => segment.below.index)) + 2;
    const tree = new Int32Array(size + 1);
    let crossings = 0;
    segments.forEach((segment, before) => {
      let notRight = 0;
      for (let at = segment.below.index + 1; at > 0; at -= at & -at) notRight += tree[at];
      crossings += before - notRight;
      for (let at = segment.below.index + 1; at <= size; at += at & -at) tree[at] += 1;
    });
    return crossings;
  }
  function assignPorts(nodes) {
    for (const node of nodes) {
      for (
        const side of
        /** @type {const} */
        ["into", "out"]
      ) {
        const up = side === "into";
        const segments = up ? node.up : node.down;
        const ports = /* @__PURE__ */ new Map();
        for (const { link } of segments.toSorted((a, b) => farEnd(a, up) - farEnd(b, up))) {
          if (!ports.has(link)) ports.set(link, ports.size);
        }
        const width = Math.min(node.w * 0.7, 22 * (ports.size - 1));
        const step = ports.size > 1 ? width / (ports.size - 1) : 0;
        for (const segment of segments) {
          const port = (
            /** @type {number} */
            ports.get(segment.link)
          );
          segment[side] = node.item?.ports ? portOffset(node, segment, side) : port * step - width / 2;
        }
      }
    }
  }

  // src/layout/ranks.js
  var MOST_VIRTUAL = 4e4;
  function assignRanks(nodes, links) {
    const readers = nodes.map(() => (
      /** @type {Set<number>} */
      /* @__PURE__ */ new Set()
    ));
    const sources = nodes.map(() => (
      /** @type {Set<number>} */
      /* @__PURE__ */ new Set()
    ));
    const outgoing = nodes.map(() => 0);
    for (const link of links) {
      outgoing[link.from] += 1;
      for (const to of link.to) {
        readers[link.from].add(to);
        sources[to].add(link.from);
      }
    }
    const first = nodes.some((node) => node.item?.pin === "top") ? 1 : 0;
    for (const node of nodes) node.rank = node.item?.pin === "top" ? 0 : first;
    const waiting = sources.map((set) => set.size);
    const ready = [...nodes.keys()].filter((index) => !waiting[index]);
    for (const index of ready) {
      for (const to of readers[index]) {
        nodes[to].rank = Math.max(nodes[to].rank, nodes[index].rank + 1);
        if (!--waiting[to]) ready.push(to);
      }
    }
    for (const index of ready.reverse()) {
      if (nodes[index].item?.pin || !readers[index].size || sources[index].size >= outgoing[index]) continue;
      nodes[index].rank = smallest([...readers[index]].map((to) => nodes[to].rank)) - 1;
    }
    const last = largest(
      nodes.filter((node) => node.item?.pin !== "bottom").map((node) => node.rank),
      0
    );
    for (const node of nodes) if (node.item?.pin === "bottom") node.rank = last + 1;
  }
  function addVirtualNodes(nodes, links, virtualNode) {
    const limit = [Infinity, 256, 64, 16, 4].find((most) => countVirtual(nodes, links, most) <= MOST_VIRTUAL) ?? 4;
    const virtual = [];
    const segments = links.map((link) => {
      const made = [];
      let last = nodes[link.from];
      const length = (node) => node.rank - nodes[link.from].rank;
      const goals = link.to.map((index) => nodes[index]).filter((node) => length(node) > 0 && length(node) <= limit).sort((a, b) => a.rank - b.rank);
      for (const goal of goals) {
        while (goal.rank > last.rank + 1) {
          const next = virtualNode();
          next.rank = last.rank + 1;
          virtual.push(next);
          made.push(connect(link, last, next));
          last = next;
        }
        made.push(connect(link, last, goal));
      }
      return made;
    });
    return { virtual, segments };
  }
  function countVirtual(nodes, links, limit) {
    return links.reduce((sum, link) => {
      const lengths = link.to.map((to) => nodes[to].rank - nodes[link.from].rank).filter((length) => length <= limit);
      return sum + Math.max(0, largest(lengths, 0) - 1);
    }, 0);
  }
  function connect(link, above, below) {
    const weight = above.item && below.item ? 1e3 : above.item || below.item ? 1 : 4;
    const segment = { link, above, below, out: 0, into: 0, weight };
    above.down.push(segment);
    below.up.push(segment);
    return segment;
  }
  function groupByRank(nodes) {
    const layers = [];
    for (const node of nodes) (layers[node.rank] ??= []).push(node);
    return Array.from(layers, (layer) => layer ?? []);
  }

  // src/layout/index.js
  function layoutContainer(items, links) {
    const nodes = items.map((item) => layoutNode(item, item.w, item.h));
    assignRanks(nodes, links);
    const { virtual, segments } = addVirtualNodes(nodes, links, () => layoutNode(null, 0, 0));
    const layers = orderLayers(groupByRank([...nodes, ...virtual]));
    assignPorts(nodes);
    assignX(layers);
    const size = assignY(layers);
    const routes = links.map((link, index) => ({ link, ...routeLink(segments[index]) }));
    return { ...size, routes: (
      /** @type {any} */
      routes
    ) };
  }
  function layoutNode(item, w, h) {
    return { item, w, h, rank: 0, index: 0, up: [], down: [], x: 0, y: 0, top: 0, bottom: 0 };
  }

  // src/scene.js
  var HEADING_HEIGHT = 32;
  var PADDING = 18;
  var WIDEST_LABEL = 130;
  var LABEL_HEIGHT = 12;
  function outputKey(value) {
    return `output ${value.id}`;
  }
  var Scene = class {
    /**
     * @param {Graph} graph
     * @param {Shown} shown
     */
    constructor(graph, shown) {
      this.graph = graph;
      this.open = /* @__PURE__ */ new Set();
      this.containers = /* @__PURE__ */ new Map();
      this.show(shown);
    }
    /**
     * Sets what is drawn beside operations.
     * @param {Shown} shown
     */
    show(shown) {
      const { graph } = this;
      this.shown = shown;
      this.containers.clear();
      this.leafOf = /* @__PURE__ */ new Map();
      for (const value of graph.inputs) this.add(value, [], "input");
      for (const node of graph.nodes) if (isShown(node, shown)) this.add(node, node.groupPath, "node");
      for (const value of graph.values) {
        if (shown.weights && isWeight(value)) this.add(value, commonGroups(value.readers), "parameter");
      }
      for (const value of graph.values) {
        const { producer, role } = value;
        const between = role === "intermediate" || role === "view";
        if (shown.tensors && between && producer && this.leafOf.has(producer)) this.add(value, producer.groupPath, role);
      }
      for (const value of graph.outputs) this.add(value, [], "output");
      this.wires = graph.values.map((value) => this.wire(value)).filter((wire) => wire !== null);
      const leaves = [...this.leafOf.values()];
      const used = new Set(leaves.flatMap((leaf) => leaf.groupPath));
      this.contents = new Map([null, ...graph.groups].map((group) => [group, []]));
      for (const group of graph.groups) if (used.has(group)) this.contentsOf(group.parent).push(group);
      for (const leaf of leaves) this.contentsOf(leaf.groupPath.at(-1) ?? null).push(leaf);
    }
    /** @param {Group | null} group */
    contentsOf(group) {
      return (
        /** @type {(Leaf | Group)[]} */
        this.contents.get(group)
      );
    }
    /**
     * @param {GraphNode | Value} item
     * @param {Group[]} groupPath
     * @param {string} role
     */
    add(item, groupPath, role) {
      const { lines, w, h } = measureBox(item, role, this.shown);
      this.leafOf.set(role === "output" ? outputKey(item) : item, {
        kind: item.kind,
        item,
        groupPath,
        role,
        lines,
        w,
        h
      });
    }
    /**
     * @param {Value} value
     * @returns {Wire | null} null if the value is not drawn
     */
    wire(value) {
      const own = this.leafOf.get(value);
      const producer = value.producer ? this.leafOf.get(value.producer) : void 0;
      const from = own ?? producer;
      if (!from) return null;
      const goals = [...new Set(value.readers), outputKey(value)].map((key) => this.leafOf.get(key));
      const to = goals.filter((leaf) => leaf !== void 0);
      return { value, from, to, producer: own && producer };
    }
    /**
     * Opens or closes a group. The containers around it have to be laid out again.
     * @param {Group} group
     */
    toggle(group, open = !this.open.has(group)) {
      if (open) this.open.add(group);
      else this.open.delete(group);
      for (const around of [null, ...group.groupPath]) this.containers.delete(around);
    }
    /**
     * Opens all groups around an item; says whether any was closed.
     * @param {Item} item
     */
    reveal(item) {
      const around = item.kind === "value" ? item.producer?.groupPath ?? [] : item.groupPath;
      const closed = around.filter((group) => group !== item && !this.open.has(group));
      for (const group of closed) this.toggle(group, true);
      return closed.length > 0;
    }
    /**
     * Lays out what has changed.
     * @returns {Arrangement}
     */
    arrange() {
      const crossings = this.crossings();
      const whole = this.container(null, crossings);
      const arrangement = { boxes: [], edges: [], width: whole.width, height: whole.height, boxOf: /* @__PURE__ */ new Map() };
      collect(whole, 0, 0, arrangement);
      limitLabelWidths(arrangement.edges);
      return arrangement;
    }
    /**
     * The opened containers around a leaf, and what stands for it in the innermost one.
     * @param {Leaf} leaf
     * @returns {{ containers: (Group | null)[], content: Leaf | Group }}
     */
    visiblePath(leaf) {
      const closed = leaf.groupPath.findIndex((group) => !this.open.has(group));
      if (closed < 0) return { containers: [null, ...leaf.groupPath], content: leaf };
      return { containers: [null, ...leaf.groupPath.slice(0, closed)], content: leaf.groupPath[closed] };
    }
    /** What each wire does in each container. */
    crossings() {
      const crossings = /* @__PURE__ */ new Map();
      const paths = new Map([...this.leafOf.values()].map((leaf) => [leaf, this.visiblePath(leaf)]));
      const connect2 = (value, key, source, goal) => {
        const from = (
          /** @type {ReturnType<Scene["visiblePath"]>} */
          paths.get(source)
        );
        const to = (
          /** @type {ReturnType<Scene["visiblePath"]>} */
          paths.get(goal)
        );
        if (from.content === to.content) return;
        const add = (container, start, end) => {
          let inside = crossings.get(container);
          if (!inside) crossings.set(container, inside = /* @__PURE__ */ new Map());
          let crossing = inside.get(key);
          if (!crossing) inside.set(key, crossing = { key, value, from: start, to: /* @__PURE__ */ new Set() });
          crossing.to.add(end);
        };
        const up = from.containers;
        const down = to.containers;
        let common = 0;
        while (common + 1 < up.length && up[common + 1] === down[common + 1]) common += 1;
        const next = (path, depth) => path.containers[depth + 1] ?? path.content;
        add(up[common], next(from, common), next(to, common));
        for (let depth = common + 1; depth < up.length; depth++) add(up[depth], next(from, depth), "bottom");
        for (let depth = common + 1; depth < down.length; depth++) add(down[depth], "top", next(to, depth));
      };
      for (const { value, from, to, producer } of this.wires) {
        if (producer) connect2(value, `${value.id} produced`, producer, from);
        for (const leaf of to) connect2(value, `${value.id}`, from, leaf);
      }
      return crossings;
    }
    /**
     * A container as it is laid out.
     * @param {Group | null} group
     * @param {Map<Group | null, Map<string, Crossing>>} crossings
     * @returns {Container}
     */
    container(group, crossings) {
      const kept = this.containers.get(group);
      if (kept) return kept;
      const items = this.contentsOf(group).map((content) => this.containerItem(content, crossings));
      const indices = new Map(items.map((item, index) => [item.content, index]));
      const indexOf = (content) => (
        /** @type {number} */
        indices.get(content)
      );
      const pin = (border, key) => items.push({ content: null, pin: border, key, w: 0, h: 0, x: 0, y: 0 }) - 1;
      const links = [...crossings.get(group)?.values() ?? []].map(({ key, value, from, to }) => ({
        key,
        value,
        from: from === "top" ? pin("top", key) : indexOf(from),
        to: [...to].map((content) => content === "bottom" ? pin("bottom", key) : indexOf(content))
      }));
      const container = addFrame(group, items, layoutContainer(items, links));
      this.containers.set(group, container);
      return container;
    }
    /**
     * @param {Leaf | Group} content
     * @param {Map<Group | null, Map<string, Crossing>>} crossings
     * @returns {ContainerItem}
     */
    containerItem(content, crossings) {
      const place = { x: 0, y: 0 };
      if (content.kind !== "group") return { content, lines: content.lines, w: content.w, h: content.h, ...place };
      if (!this.open.has(content)) return { content, ...measureBox(content, "closed"), ...place };
      const inside = this.container(content, crossings);
      return { content, inside, w: inside.width, h: inside.height, ports: inside.ports, ...place };
    }
  };
  function addFrame(group, items, layout) {
    const heading = group ? measureBox(group, "open").w + 40 : 0;
    const width = Math.max(layout.width + 2 * PADDING, heading);
    const origin = {
      x: PADDING + Math.max(0, (heading - layout.width - 2 * PADDING) / 2),
      y: group ? HEADING_HEIGHT : PADDING
    };
    const ports = (pin) => new Map(items.filter((item) => item.pin === pin).map((item) => [item.key ?? "", origin.x + item.x - width / 2]));
    return {
      items,
      routes: layout.routes,
      width,
      height: layout.height + origin.y + (group ? 12 : PADDING),
      origin,
      ports: { into: ports("top"), out: ports("bottom") }
    };
  }
  function collect(container, x, y, arrangement) {
    const [left, top] = [x + container.origin.x, y + container.origin.y];
    for (const { content, lines = [], inside, w, h, ...place } of container.items) {
      if (!content) continue;
      const isGroup = content.kind === "group";
      const item = isGroup ? content : content.item;
      const role = isGroup ? "" : content.role;
      const kind = inside ? "open" : content.kind;
      const box = { kind, item, role, lines, x: left + place.x - w / 2, y: top + place.y, w, h };
      arrangement.boxes.push(box);
      arrangement.boxOf.set(role === "output" ? outputKey(item) : item, box);
      if (inside) collect(inside, box.x, box.y, arrangement);
    }
    const leaving = /* @__PURE__ */ new Map();
    for (const { link } of container.routes) leaving.set(link.from, (leaving.get(link.from) ?? 0) + 1);
    for (const route of container.routes) {
      const labeled = leaving.get(route.link.from) === 1;
      if (route.runs.length) arrangement.edges.push(edgeOf(route, container, left, top, y, labeled));
    }
  }
  function edgeOf({ link, runs, ends }, container, left, top, border, labeled) {
    const source = container.items[link.from];
    const bottom = border + container.height;
    const start = (y) => source.pin && y === 0 ? border : y + top;
    const placed = runs.map(
      ([x1, y1, bend, x2, end, y2]) => (
        /** @type {Run} */
        [x1 + left, start(y1), bend + top, x2 + left, end + top, y2 + top]
      )
    );
    const heads = [];
    for (const [x, y, item] of ends) {
      if (item.pin) placed.push([x + left, y + top, bottom, x + left, bottom, bottom]);
      else if (!item.inside) heads.push([x + left, y + top]);
    }
    const xs = placed.flatMap((run) => [run[0], run[3]]);
    const ys = placed.flatMap((run) => [run[1], run[5]]);
    const below = source.content?.kind === "group" ? 4 : 0;
    return {
      value: link.value,
      runs: placed,
      heads,
      bounds: { left: smallest(xs), top: smallest(ys), right: largest(xs), bottom: largest(ys) },
      label: labeled && !source.pin && !source.inside ? [placed[0][0], placed[0][1] + below] : null,
      labelWidth: WIDEST_LABEL
    };
  }
  function limitLabelWidths(edges) {
    const labels2 = edges.flatMap((edge) => edge.label ? [{ edge, x: edge.label[0], y: edge.label[1] }] : []);
    labels2.sort((a, b) => a.x - b.x);
    const unlimited = /* @__PURE__ */ new Map();
    for (const label of labels2) {
      const row = Math.floor(label.y / LABEL_HEIGHT);
      for (const near of [row - 1, row, row + 1]) {
        const left = (unlimited.get(near) ?? []).filter(({ edge, x, y }) => {
          if (Math.abs(y - label.y) >= LABEL_HEIGHT) return label.x - x < WIDEST_LABEL + 4;
          edge.labelWidth = Math.min(WIDEST_LABEL, label.x - x - 4);
          return false;
        });
        unlimited.set(near, near === row ? [...left, label] : left);
      }
    }
  }
  function isShown(node, shown) {
    return !node.constant || shown[node.constantKind];
  }
  function isWeight(value) {
    return value.role === "parameter" && !value.producer && value.readers.length > 0;
  }
  function commonGroups([first, ...others]) {
    return first.groupPath.filter((group, depth) => others.every((node) => node.groupPath[depth] === group));
  }
  function openInitialGroups(scene) {
    const isGroup = (content) => content.kind === "group";
    let shown = scene.contentsOf(null).length;
    let level = scene.contentsOf(null).filter(isGroup);
    while (level.length && shown < 40) {
      const next = [];
      for (const group of level.sort((a, b) => scene.contentsOf(a).length - scene.contentsOf(b).length)) {
        const contents2 = scene.contentsOf(group);
        if (contents2.length === 1 && !isGroup(contents2[0])) continue;
        const small = contents2.length === 1 || shown < 10;
        if (shown + contents2.length - 1 > (small ? 60 : 40)) continue;
        scene.toggle(group, true);
        shown += contents2.length - 1;
        next.push(...contents2.filter(isGroup));
      }
      level = next;
    }
  }

  // src/pane.js
  var REDUCED_MOTION = matchMedia("(prefers-reduced-motion: reduce)");
  var ANIMATION = 200;
  var DOUBLE_CLICK = 400;
  var SCALES = { least: 5e-3, most: 4, readable: 0.85 };
  var Pane = class {
    /**
     * @param {App} app
     * @param {Graph} graph
     */
    constructor(app, graph) {
      this.app = app;
      this.graph = graph;
      this.view = { k: 1, x: 0, y: 0, width: 0, height: 0 };
      this.pointers = /* @__PURE__ */ new Map();
      this.dragged = false;
      this.lastClick = null;
      this.animation = 0;
      this.svg = svg("svg", {
        class: "graph",
        tabindex: 0,
        role: "application",
        "aria-label": `Graph ${graph.name}: arrow keys move it, Enter opens a group, ? lists all keys`
      });
      const button2 = (title2, text, onclick) => html("button", { type: "button", title: title2, "aria-label": title2, onclick }, text);
      this.tools = html(
        "div",
        { class: "zoom" },
        button2("Zoom in (+)", "+", () => this.zoom(1.4)),
        button2("Zoom out (−)", "−", () => this.zoom(1 / 1.4)),
        button2("Fit (f)", "⤢", () => this.fit())
      );
      const size = html("small", {}, count(graph.nodes.length, "operation"));
      const title = app.data.titleOf(graph);
      this.heading = html("h2", {}, html("span", {}, title), " ", size);
      this.minimap = new Minimap((x, y) => this.centerAt(x, y));
      const parts = [this.heading, this.svg, this.tools, this.minimap.element];
      this.element = html("section", { class: "pane", "aria-label": title }, parts);
      this.drawing = new Drawing(this.svg);
      this.scene = new Scene(graph, app.shown);
      openInitialGroups(this.scene);
      this.arrangement = this.scene.arrange();
      this.listen();
      new ResizeObserver(() => this.resize()).observe(this.svg);
    }
    arrange() {
      this.arrangement = this.scene.arrange();
    }
    takeFocus() {
      this.svg.focus({ preventScroll: true });
    }
    get openGroups() {
      return this.scene.open;
    }
    redraw() {
      if (!this.view.width) return;
      this.drawing.draw(this.arrangement, this.view, this.app.look);
      this.minimap.draw(this.arrangement, this.view, this.app.look);
      this.minimap.move(this.view);
    }
    // ---- the view
    /**
     * Takes the size that the page gives it. What was in the middle stays there, unless it is shown for the first time.
     * @param {boolean} again as if it were shown for the first time
     */
    resize(again = false) {
      const { width, height } = this.svg.getBoundingClientRect();
      if (!width) return;
      const { view } = this;
      const first = again || !view.width;
      if (!first) {
        view.x += (width - view.width) / 2;
        view.y += (height - view.height) / 2;
      }
      Object.assign(view, { width, height });
      if (first) this.showStart();
      else this.redraw();
    }
    /** Shows the whole graph if it can be read so, else where it begins, or what is selected. */
    showStart() {
      const { width } = this.arrangement;
      const wholeWidth = (this.view.width - 24) / width;
      const k = Math.max(Math.min(1, this.wholeScale), Math.min(0.8, Math.max(0.45, wholeWidth)));
      Object.assign(this.view, this.centered(k));
      const [input] = this.graph.inputs;
      if (width * k > this.view.width && input) this.center(this.boxOf(input), false, true);
      const { selected } = this.app;
      if (selected?.graph === this.graph) this.show(selected, false);
      this.redraw();
    }
    /** Shows the whole graph. */
    fit() {
      this.moveTo(this.centered(Math.min(1.25, this.wholeScale)));
    }
    /** Where a graph begins: below the heading of the frame, where that is shown. */
    get top() {
      const { offsetTop, offsetHeight } = this.heading;
      return offsetHeight ? offsetTop + offsetHeight + 6 : 8;
    }
    /** Where a graph ends: above the legend, and above the details where these cover the frame. */
    get bottom() {
      const { height } = this.view;
      const frame = this.svg.getBoundingClientRect();
      const covers = [this.app.legend, this.app.panel.element].map((element) => element.getBoundingClientRect());
      const tops = covers.filter(
        (cover) => cover.width && cover.left < frame.right && cover.right > frame.left && cover.top < frame.bottom
      ).map((cover) => cover.top - frame.top);
      return Math.max(this.top + height / 4, Math.min(height, ...tops.filter((top) => top > 0)) - 8);
    }
    /** Where a graph ends at the right: beside the buttons. */
    get right() {
      return this.tools.offsetLeft - 8;
    }
    /** The scale at which the whole graph is visible. */
    get wholeScale() {
      const { width, height } = this.arrangement;
      return Math.min((this.right - 12) / width, (this.bottom - this.top) / height);
    }
    /**
     * The graph in the middle, or from its top on if it is too tall.
     * @param {number} k
     * @returns {Position}
     */
    centered(k) {
      const { width, height } = this.arrangement;
      const y = Math.max(this.top, (this.top + this.bottom - height * k) / 2);
      const right = width * k > this.right - 12 ? this.view.width : Math.min(this.view.width, this.right + 12);
      return { k, x: (right - width * k) / 2, y };
    }
    /**
     * Zooms around a point, by default the middle.
     * @param {number} by
     * @param {number} x
     * @param {number} y
     * @param {boolean} animated
     */
    zoom(by, x = this.view.width / 2, y = this.view.height / 2, animated = true) {
      const k = Math.max(SCALES.least, Math.min(SCALES.most, this.view.k * by));
      const change = k / this.view.k;
      this.moveTo({ k, x: x - (x - this.view.x) * change, y: y - (y - this.view.y) * change }, animated);
    }
    /**
     * @param {number} x
     * @param {number} y
     * @param {boolean} animated
     */
    pan(x, y, animated = false) {
      this.moveTo({ k: this.view.k, x: this.view.x + x, y: this.view.y + y }, animated);
    }
    /**
     * @param {Position} to
     * @param {boolean} animated
     */
    moveTo(to, animated = true) {
      cancelAnimationFrame(this.animation);
      const from = { ...this.view };
      const begin = performance.now();
      const slow = animated && !REDUCED_MOTION.matches;
      const step = (now) => {
        const part = slow && !document.hidden ? Math.min(1, Math.max(0, now - begin) / ANIMATION) : 1;
        const eased = 1 - (1 - part) ** 3;
        for (
          const axis of
          /** @type {const} */
          ["k", "x", "y"]
        ) {
          this.view[axis] = from[axis] + (to[axis] - from[axis]) * eased;
        }
        this.drawing.move(this.view);
        this.minimap.move(this.view);
        if (part < 1) this.animation = requestAnimationFrame(step);
      };
      if (slow) this.animation = requestAnimationFrame(step);
      else step(begin);
    }
    // ---- items
    /**
     * The box of an item, if it is drawn.
     * @param {Item} item
     */
    boxOf(item) {
      const { boxOf } = this.arrangement;
      return boxOf.get(item) ?? (item.kind === "value" ? boxOf.get(outputKey(item)) : void 0);
    }
    /**
     * The box of an item, or of the closed group that it is in, or of the node that writes it, or that a constant is part
     * of.
     * @param {Item} item
     * @returns {Box | undefined}
     */
    visibleBox(item) {
      const own = this.boxOf(item);
      if (own) return own;
      const [reader] = this.app.readersOfFolded(item);
      if (reader) return this.visibleBox(reader);
      if (item.kind === "value") return item.producer ? this.visibleBox(item.producer) : void 0;
      return item.groupPath.map((group) => this.boxOf(group)).findLast(Boolean);
    }
    /**
     * Opens the groups around an item, and moves to it.
     * @param {Item} item
     * @param {boolean} animated
     */
    show(item, animated = true) {
      this.reveal(this.app.readersOfFolded(item)[0] ?? item);
      this.redraw();
      this.center(this.visibleBox(item), animated);
    }
    /** @param {Item} item */
    reveal(item) {
      if (this.scene.reveal(item)) this.arrange();
    }
    /**
     * Opens these groups, and closes all others.
     * @param {Set<Group>} groups
     */
    openOnly(groups) {
      for (const group of this.scene.graph.groups) this.scene.toggle(group, groups.has(group));
      this.arrange();
      this.redraw();
    }
    /**
     * @param {Box | undefined} box
     * @param {boolean} animated
     * @param {boolean} atTop at the top of the frame, not in its middle
     */
    center(box, animated = true, atTop = false) {
      if (!box) return;
      const { width, height } = this.view;
      const k = Math.max(this.view.k, Math.min(width / (box.w + 40), SCALES.readable));
      const x = width / 2 - (box.x + box.w / 2) * k;
      const middle = (this.top + this.bottom) / 2;
      const y = atTop ? this.top - box.y * k : middle - (box.y + Math.min(box.h, height / k) / 2) * k;
      this.moveTo({ k, x, y }, animated);
    }
    /**
     * Moves a point of the graph to the middle.
     * @param {number} x
     * @param {number} y
     */
    centerAt(x, y) {
      const { k, width, height } = this.view;
      this.moveTo({ k, x: width / 2 - x * k, y: height / 2 - y * k }, false);
    }
    /**
     * Marks an item for a moment.
     * @param {Item} item
     */
    flash(item) {
      const box = this.visibleBox(item);
      if (!box) return;
      const frame = { x: box.x - 6, y: box.y - 6, width: box.w + 12, height: box.h + 12, rx: 12 };
      const ring = svg("rect", { class: "flash", ...frame });
      this.drawing.world.append(ring);
      setTimeout(() => ring.remove(), 1200);
    }
    /**
     * Opens or closes a group, which stays where it is on the screen.
     * @param {Group} group
     */
    toggle(group) {
      this.change(() => this.scene.toggle(group), group);
      this.app.announce(`${group.name} ${this.scene.open.has(group) ? "opened" : "closed"}`);
      this.app.history.note();
    }
    /**
     * Draws other things beside operations. What was visible as a whole stays so; else what the reader looks at stays
     * where it is.
     * @param {Shown} shown
     */
    changeShown(shown) {
      const { focus } = this;
      const whole = this.showsWhole;
      this.change(() => this.scene.show(shown), focus);
      if (whole || !focus || !this.visibleBox(focus))
        Object.assign(this.view, this.centered(Math.min(1.25, this.wholeScale)));
    }
    /** Whether the whole graph is visible. */
    get showsWhole() {
      const { view, arrangement } = this;
      const [right, bottom] = [view.x + arrangement.width * view.k, view.y + arrangement.height * view.k];
      return view.x >= 0 && view.y >= 0 && right <= view.width && bottom <= view.height;
    }
    /**
     * Changes the scene; an item stays where it is on the screen.
     * @param {() => void} act
     * @param {Item | null} kept
     */
    change(act, kept) {
      const before = kept && this.visibleBox(kept);
      act();
      this.arrange();
      const after = kept && this.visibleBox(kept);
      if (before && after) {
        this.view.x += (before.x - after.x) * this.view.k;
        this.view.y += (before.y - after.y) * this.view.k;
      }
      this.redraw();
    }
    /** What the reader looks at: what is selected, if it is visible, else what is nearest to the middle. */
    get focus() {
      const { x, y, k, width, height } = this.view;
      const distance = (box2) => [box2.x + box2.w / 2 - (width / 2 - x) / k, box2.y + box2.h / 2 - (height / 2 - y) / k];
      const { selected } = this.app;
      const box = selected && this.visibleBox(selected);
      if (box) {
        const [right, down] = distance(box);
        if (Math.abs(right) * k < width / 2 && Math.abs(down) * k < height / 2) return selected;
      }
      const length = (each) => Math.hypot(...distance(each));
      const boxes = this.arrangement.boxes.filter((each) => each.kind === "node" || each.kind === "group");
      return boxes.length ? boxes.reduce((a, b) => length(b) < length(a) ? b : a).item : null;
    }
    /** Opens all groups that are drawn. */
    openAll() {
      for (const { kind, item } of this.arrangement.boxes) {
        if (kind === "group" && item.kind === "group") this.scene.toggle(item, true);
      }
      this.arrange();
      this.showStart();
      this.app.history.note();
    }
    closeAll() {
      this.openOnly(/* @__PURE__ */ new Set());
      this.showStart();
      this.app.history.note();
    }
    // ---- mouse and fingers
    /**
     * Where an event is, in pixels of the frame.
     * @param {MouseEvent} event
     * @returns {[number, number]}
     */
    position(event) {
      const frame = this.svg.getBoundingClientRect();
      return [event.clientX - frame.left, event.clientY - frame.top];
    }
    /**
     * What is under the mouse, and whether it is the sign that opens or closes a group. Of an opened group, only the
     * heading counts.
     * @param {MouseEvent} event
     */
    hit(event) {
      const [left, top] = this.position(event);
      const { k } = this.view;
      const [x, y] = [(left - this.view.x) / k, (top - this.view.y) / k];
      const box = this.arrangement.boxes.findLast((each) => {
        const height = each.kind === "open" ? Math.max(HEADING_HEIGHT, 14 / k) : each.h;
        return x >= each.x && x <= each.x + each.w && y >= each.y && y <= each.y + height;
      });
      if (!box) return null;
      const onSign = box.item.kind === "group" && x - box.x < 30 && y - box.y < HEADING_HEIGHT;
      return { item: box.item, onSign };
    }
    listen() {
      const element = this.svg;
      element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      element.addEventListener("pointerdown", (event) => {
        this.pointers.set(event.pointerId, event);
        this.dragged = false;
        this.app.activate(this);
      });
      element.addEventListener("pointermove", (event) => {
        if (this.pointers.size) this.drag(event);
        else this.hover(event);
      });
      element.addEventListener("pointerup", (event) => this.pointers.delete(event.pointerId));
      element.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
      element.addEventListener("pointerleave", () => this.app.tooltip.hide());
      element.addEventListener("click", (event) => this.click(event));
      element.addEventListener("focus", () => this.app.activate(this));
    }
    /** @param {PointerEvent} event */
    hover(event) {
      const hit = event.pointerType === "touch" ? null : this.hit(event);
      this.svg.style.cursor = hit ? "pointer" : "";
      if (hit) this.app.tooltip.show(hit.item, event);
      else this.app.tooltip.hide();
    }
    /** @param {WheelEvent} event */
    wheel(event) {
      event.preventDefault();
      const pixels = event.deltaY * (event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1);
      const speed = event.ctrlKey ? 0.01 : 22e-4;
      const by = Math.exp(-Math.max(-120, Math.min(120, pixels)) * speed);
      this.zoom(by, ...this.position(event), false);
    }
    /**
     * One pointer moves the graph; two move and zoom it.
     * @param {PointerEvent} event
     */
    drag(event) {
      const before = this.pointers.get(event.pointerId);
      if (!before) return;
      const other = [...this.pointers.values()].find((each) => each.pointerId !== event.pointerId);
      const [x, y] = [event.clientX - before.clientX, event.clientY - before.clientY];
      if (!this.dragged && Math.hypot(x, y) < 4) return;
      if (!this.dragged) this.svg.setPointerCapture(event.pointerId);
      this.dragged = true;
      this.pointers.set(event.pointerId, event);
      if (!other) {
        this.pan(x, y);
        return;
      }
      this.pan(x / 2, y / 2);
      const distance = (each) => Math.hypot(each.clientX - other.clientX, each.clientY - other.clientY);
      const [one, two] = [this.position(event), this.position(other)];
      const by = distance(event) / Math.max(1, distance(before));
      this.zoom(by, (one[0] + two[0]) / 2, (one[1] + two[1]) / 2, false);
    }
    /** @param {MouseEvent} event */
    click(event) {
      if (this.dragged) return;
      const hit = this.hit(event);
      const last = this.lastClick;
      const second = hit && last && last.item === hit.item && event.timeStamp - last.time < DOUBLE_CLICK;
      this.lastClick = hit && !second ? { item: hit.item, time: event.timeStamp } : null;
      if (hit?.item.kind === "group" && (hit.onSign || second || event.detail === 2)) this.toggle(hit.item);
      else this.app.select(hit?.item ?? null);
    }
  };

  // src/tree.js
  var MOST_OPENED = 48;
  var Tree = class {
    /** @param {Graph} graph */
    constructor(graph) {
      this.graph = graph;
      this.entryOf = /* @__PURE__ */ new Map();
      this.top = [];
      for (const value of graph.inputs) this.add(value, null, value.findings);
      for (const node of graph.nodes) {
        for (const group of node.groupPath) if (!this.entryOf.has(group)) this.add(group, group.parent, []);
        this.add(node, node.group, node.findings);
      }
      this.addWeights();
      const inside = new Map(graph.groups.map((group) => [group, []]));
      for (const node of graph.nodes) for (const group of node.groupPath) inside.get(group)?.push(node);
      for (const [group, nodes] of inside) this.setResult(group, nodes);
      for (const entry of this.top) summarize(entry);
    }
    /**
     * @param {Item} item
     * @param {Group | null} group
     * @param {Finding[]} findings
     */
    add(item, group, findings) {
      const parent = (group && this.entryOf.get(group)) ?? null;
      const finding = findings.find(({ diverged }) => diverged) ?? findings[0] ?? null;
      const depth = parent ? parent.depth + 1 : 0;
      const entry = { item, parent, children: [], depth, finding, diverged: 0, linked: false };
      this.entryOf.set(item, entry);
      (parent?.children ?? this.top).push(entry);
    }
    /** Adds weights, each before what else is in the module that it belongs to by its name. */
    addWeights() {
      const modules = /* @__PURE__ */ new Map();
      for (const group of this.graph.groups) if (!modules.has(group.path)) modules.set(group.path, group);
      const counts = /* @__PURE__ */ new Map();
      for (const value of this.graph.values) {
        if (value.role !== "parameter") continue;
        let path = value.name;
        do
          path = path.slice(0, Math.max(0, path.lastIndexOf(".")));
        while (path && !modules.has(path));
        this.add(value, modules.get(path) ?? null, value.findings);
        const entry = (
          /** @type {Entry} */
          this.entryOf.get(value)
        );
        const siblings2 = entry.parent?.children ?? this.top;
        const count2 = counts.get(siblings2) ?? 0;
        siblings2.splice(count2, 0, ...siblings2.splice(-1));
        counts.set(siblings2, count2 + 1);
      }
    }
    /**
     * Gives a module the finding of the last value that leaves it. Views and the like have none: what they are made of
     * leaves it with them.
     * @param {Group} group
     * @param {GraphNode[]} inside in order
     */
    setResult(group, inside) {
      const entry = this.entryOf.get(group);
      if (!entry) return;
      const leaving = /* @__PURE__ */ new Set();
      for (const node of inside.toReversed()) {
        for (const value of node.written) {
          const passed = value.readers.some(
            (reader) => !reader.groupPath.includes(group) || !reader.findings.length && reader.written.some((other) => leaving.has(other))
          );
          if (!passed && value.role !== "output") continue;
          leaving.add(value);
          entry.finding ??= value.findings[0] ?? null;
        }
      }
    }
    /**
     * The entries that are visible, in order.
     * @param {Set<Item>} open
     * @param {Pick<Shown, "weights" | "unlinked">} shown
     * @returns {Entry[]}
     */
    visible(open, { weights, unlinked }) {
      const found = [];
      const visit = (entry) => {
        if (!(unlinked || entry.linked) || isWeight2(entry) && !weights) return;
        found.push(entry);
        if (open.has(entry.item)) entry.children.forEach(visit);
      };
      this.top.forEach(visit);
      return found;
    }
    /**
     * The modules to open at first: whole levels, as long as there are few lines.
     * @param {Pick<Shown, "weights" | "unlinked">} shown
     * @returns {Set<Item>}
     */
    initiallyOpen(shown) {
      let open = /* @__PURE__ */ new Set();
      for (; ; ) {
        const lines = this.visible(open, shown);
        const more = lines.filter(({ item, children }) => children.length && !open.has(item)).map(({ item }) => item);
        const next = /* @__PURE__ */ new Set([...open, ...more]);
        if (!more.length || this.visible(next, shown).length > MOST_OPENED) return open;
        open = next;
      }
    }
    /**
     * The entry of a value: of the operation that computes it, or its own.
     * @param {Value} value
     * @returns {Entry | undefined}
     */
    entryOfValue(value) {
      return this.entryOf.get(value.producer ?? value);
    }
    /**
     * The outermost module whose result a value is, else the entry of the value.
     * @param {Value} value
     * @returns {Entry | undefined}
     */
    moduleOfValue(value) {
      const entry = this.entryOfValue(value);
      let found = entry;
      for (let at = entry?.parent; at; at = at.parent) if (at.finding?.value === value) found = at;
      return found;
    }
  };
  function isWeight2({ item }) {
    return item.kind === "value" && item.role === "parameter" && item.graph.nodes.length > 0;
  }
  function summarize(entry) {
    for (const child of entry.children) summarize(child);
    const own = entry.item.kind === "group" ? 0 : Number(entry.finding?.diverged ?? false);
    entry.diverged = entry.children.reduce((sum, child) => sum + child.diverged, own);
    entry.linked = Boolean(entry.finding) || entry.children.some((child) => child.linked);
  }
  function linksOfOperands({ node }) {
    const seen = new Set(node?.reads ?? []);
    const found = /* @__PURE__ */ new Map();
    for (const value of seen) {
      if (value.role === "parameter") continue;
      const links = value.findings.flatMap((finding) => finding.links);
      for (const link of links) found.set(link.value, link);
      if (!value.findings.length) for (const read of value.producer?.reads ?? []) seen.add(read);
    }
    return [...found.values()];
  }
  function linkedItems({ item, finding }, other) {
    if (!finding) return [];
    const links = finding.diverged && !finding.links.length ? linksOfOperands(finding) : finding.links;
    const entries = links.map(
      ({ value }) => item.kind === "group" ? other.moduleOfValue(value) : other.entryOfValue(value)
    );
    return [...new Set(entries.flatMap((entry) => entry?.item ?? []))];
  }

  // src/outline.js
  var LINE_HEIGHT = 26;
  var EXTRA_LINES = 10;
  var LONGEST2 = 200;
  var Outline = class {
    /**
     * @param {App} app
     * @param {Graph} graph
     */
    constructor(app, graph) {
      this.app = app;
      this.graph = graph;
      this.tree = new Tree(graph);
      this.openGroups = /** @type {Set<Group>} */
      this.tree.initiallyOpen(app.shown);
      this.lines = [];
      this.indexOf = /* @__PURE__ */ new Map();
      this.range = { from: 0, to: 0 };
      this.above = html("div", { role: "none" });
      this.content = html("div", {
        role: "none",
        onmousedown: (event) => this.pressed = this.itemAt(event),
        onmouseup: (event) => this.release(event),
        onclick: (event) => this.activate(event)
      });
      addEventListener("mouseup", () => this.pressed = void 0);
      this.pressed = void 0;
      this.lastClick = null;
      this.redraw = oncePerFrame(() => {
        this.fill();
        app.gutter?.draw();
      });
      const title = `${app.data.titleOf(graph)}: ${graph.name}`;
      this.scroller = html("div", {
        class: "lines",
        tabindex: 0,
        role: "tree",
        "aria-label": `${title.slice(0, 200)}: arrow keys select and open, ? lists all keys`,
        onscroll: oncePerFrame(() => this.scrolled()),
        onfocus: () => app.activate(this)
      });
      this.scroller.append(this.content);
      const size = html("small", {}, graph.nodes.length ? count(graph.nodes.length, "operation") : "");
      const heading = html("h2", { title }, html("b", {}, app.data.titleOf(graph)), " ", nameElement(graph.name), size);
      this.element = html("section", { class: "outline", "aria-label": title }, heading, this.scroller);
      this.arrange();
      new ResizeObserver(() => this.scrolled()).observe(this.scroller);
    }
    /** Finds out which lines there are. */
    arrange() {
      this.lines = this.tree.visible(this.openGroups, this.app.shown);
      this.indexOf = new Map(this.lines.map((entry, index) => [entry, index]));
      this.content.style.height = `${this.lines.length * LINE_HEIGHT}px`;
    }
    takeFocus() {
      this.scroller.focus({ preventScroll: true });
    }
    resize() {
      this.redraw();
    }
    scrolled() {
      const { from, to } = this.visibleRange();
      if (from !== this.range.from || to !== this.range.to) this.fill();
      this.app.gutter?.draw();
    }
    visibleRange() {
      const { scrollTop, clientHeight } = this.scroller;
      const from = Math.max(0, Math.floor(scrollTop / LINE_HEIGHT) - EXTRA_LINES);
      return { from, to: Math.min(this.lines.length, from + Math.ceil(clientHeight / LINE_HEIGHT) + 2 * EXTRA_LINES) };
    }
    /** Makes the visible lines again, or all lines. */
    fill({ all = false } = {}) {
      this.range = all ? { from: 0, to: this.lines.length } : this.visibleRange();
      const { from, to } = this.range;
      this.above.style.height = `${from * LINE_HEIGHT}px`;
      const lines = this.lines.slice(from, to).map((entry, index) => this.line(entry, from + index));
      this.content.replaceChildren(this.above, ...lines);
      const selected = lines.find((line) => line.getAttribute("aria-selected") === "true");
      if (selected) this.scroller.setAttribute("aria-activedescendant", selected.id);
      else this.scroller.removeAttribute("aria-activedescendant");
    }
    /**
     * @param {Entry} entry
     * @param {number} index
     */
    line(entry, index) {
      const { item, finding, children, depth, diverged } = entry;
      const { selected, marked } = this.app.look;
      const open = item.kind === "group" && this.openGroups.has(item);
      const kind = isWeight2(entry) ? "weight" : item.kind;
      const states = [item === selected && "selected", marked.has(item) && "marked", !entry.linked && "unlinked"];
      const classes = ["line", kind, finding && statusClass(finding), ...states];
      const inside = diverged && item.kind === "group" && !open;
      const line = html(
        "div",
        {
          class: classes.filter(Boolean).join(" "),
          id: `line-${this.graph.index}-${index}`,
          role: "treeitem",
          "aria-level": depth + 1,
          "aria-selected": String(item === selected),
          "aria-expanded": children.length ? String(open) : null
        },
        html("span", { class: "sign", "aria-hidden": "true" }, children.length ? open ? "▾" : "▸" : ""),
        html("span", { class: "label" }, ...labels(item)),
        inside ? html("span", { class: "inside" }, `✗ ${diverged} inside`) : null,
        html("span", { class: "status" }, finding && [html("span", { class: "dot" }), finding.status])
      );
      line.style.setProperty("--depth", String(depth));
      return line;
    }
    /** @param {MouseEvent} event */
    itemAt(event) {
      const top = this.content.getBoundingClientRect().top;
      return this.lines[Math.floor((event.clientY - top) / LINE_HEIGHT)]?.item;
    }
    /** @param {MouseEvent} event */
    release(event) {
      const item = this.itemAt(event);
      if (event.button === 0 && item && item === this.pressed) this.click(item, event);
    }
    /**
     * Selects a line that assistive technology clicks, which has no mouse.
     * @param {MouseEvent} event
     */
    activate(event) {
      const line = event.detail === 0 && event.target instanceof Element ? event.target.closest(".line") : null;
      const item = line ? this.lines[Number(line.id.slice(line.id.lastIndexOf("-") + 1))]?.item : void 0;
      if (item) this.app.select(item);
    }
    /**
     * @param {Item} item
     * @param {MouseEvent} event
     */
    click(item, event) {
      const last = this.lastClick;
      const onSign = document.elementFromPoint(event.clientX, event.clientY)?.classList.contains("sign");
      const second = !onSign && last?.item === item && event.timeStamp - last.time < DOUBLE_CLICK;
      this.lastClick = second || onSign ? null : { item, time: event.timeStamp };
      this.takeFocus();
      if (item.kind === "group" && (onSign || second)) this.toggle(item);
      else this.app.select(item);
    }
    /** @param {Item} item */
    show(item) {
      this.showAll([item]);
    }
    /**
     * Opens the modules around items, and scrolls to the first one unless all are visible.
     * @param {Item[]} items
     * @param {number | null} height at which it should be, in pixels from the top; null is the middle
     */
    showAll(items, height = null) {
      for (const item of items) this.reveal(item);
      const [entry] = items.map((item) => this.entryOf(item));
      const index = entry && this.indexOf.get(entry);
      if (index === void 0) return;
      if (items.some((item) => this.heightOf(item) === null)) {
        const above = height ?? this.scroller.clientHeight / 2 - LINE_HEIGHT;
        this.scroller.scrollTop = index * LINE_HEIGHT - above;
      }
      this.redraw();
    }
    /**
     * How far the line of an item is from the top of the frame; null if it is not visible.
     * @param {Item} item
     */
    heightOf(item) {
      const entry = this.entryOf(item);
      const index = entry && this.indexOf.get(entry);
      if (index === void 0) return null;
      const height = index * LINE_HEIGHT - this.scroller.scrollTop;
      return height >= 0 && height + LINE_HEIGHT <= this.scroller.clientHeight ? height : null;
    }
    /** @param {Item} item */
    entryOf(item) {
      return item.kind === "value" ? this.tree.entryOfValue(item) : this.tree.entryOf.get(item);
    }
    /** @param {Item} item */
    reveal(item) {
      const entry = this.entryOf(item);
      if (!entry) return;
      for (let at = entry.parent; at; at = at.parent) if (at.item.kind === "group") this.openGroups.add(at.item);
      const { shown } = this.app;
      if (isWeight2(entry) && !shown.weights) this.app.toggleShown("weights");
      if (!entry.linked && !shown.unlinked) this.app.toggleShown("unlinked");
      this.arrange();
    }
    flash() {
    }
    // what is selected stands out
    /** @param {Group} group */
    toggle(group) {
      if (this.openGroups.has(group)) this.openGroups.delete(group);
      else this.openGroups.add(group);
      this.arrange();
      this.redraw();
      this.app.announce(`${group.name} ${this.openGroups.has(group) ? "opened" : "closed"}`);
      this.app.history.note();
    }
    /**
     * Opens these groups, and closes all others.
     * @param {Set<Group>} groups
     */
    openOnly(groups) {
      this.openGroups = new Set(groups);
      this.arrange();
      this.redraw();
    }
    showStart() {
      this.scroller.scrollTop = 0;
      this.redraw();
    }
    changeShown() {
      this.arrange();
      this.redraw();
    }
    openAll() {
      this.openOnly(new Set(this.graph.groups));
    }
    closeAll() {
      this.openOnly(/* @__PURE__ */ new Set());
    }
    /**
     * Selects another line.
     * @param {number} by how many lines further down
     */
    step(by) {
      const entry = this.selectedEntry;
      const now = entry ? this.indexOf.get(entry) ?? -1 : -1;
      const next = this.lines[Math.max(0, Math.min(this.lines.length - 1, now + by))];
      if (next) this.app.select(next.item, { move: true });
    }
    /** Opens the selected module; the second time, goes into it. */
    goIn() {
      const item = this.selectedEntry?.item;
      if (item?.kind !== "group") return;
      if (this.openGroups.has(item)) this.step(1);
      else this.toggle(item);
    }
    /** Closes the selected module, or goes to the one around what is selected. */
    goOut() {
      const entry = this.selectedEntry;
      if (!entry) return;
      if (entry.item.kind === "group" && this.openGroups.has(entry.item)) this.toggle(entry.item);
      else if (entry.parent) this.app.select(entry.parent.item, { move: true });
    }
    get selectedEntry() {
      const { selected } = this.app;
      return selected?.graph === this.graph ? this.entryOf(selected) : void 0;
    }
  };
  function labels(item) {
    const name = (text) => nameElement(text.slice(0, LONGEST2));
    if (item.kind === "group")
      return [html("b", {}, name(item.name)), " ", html("small", {}, name(className(item.type)))];
    if (item.kind === "node") {
      return [name(operatorName(item.op)), " ", html("small", {}, name(item.source.replace(/^.*[\\/]/, "")))];
    }
    const shape = item.shape ? item.shape.join("×") : "";
    return [name(weightName(item)), " ", html("small", {}, shape)];
  }
  function weightName({ name, role, graph }) {
    return role === "parameter" && graph.nodes.length ? name.slice(name.lastIndexOf(".") + 1) : name;
  }

  // src/gutter.js
  var Gutter = class {
    /**
     * @param {App} app
     * @param {Outline} own of A
     * @param {Outline} other of B
     */
    constructor(app, own, other) {
      this.app = app;
      this.own = own;
      this.other = other;
      this.element = svg("svg", { class: "gutter", "aria-hidden": "true" });
    }
    draw() {
      const { width, height } = this.element.getBoundingClientRect();
      if (!width) return;
      const paths = /* @__PURE__ */ new Map();
      const add = (classes, from, to) => {
        const d = `M0 ${from}C${width / 2} ${from} ${width / 2} ${to} ${width} ${to}`;
        paths.set(classes, (paths.get(classes) ?? /* @__PURE__ */ new Set()).add(d));
      };
      const isVisible = (y) => y > this.top && y < height;
      for (const entry of this.own.lines.slice(this.own.range.from, this.own.range.to)) {
        const { item, finding } = entry;
        if (!finding?.links.length || item.kind === "group" && this.own.openGroups.has(item)) continue;
        for (const each of linkedItems(entry, this.other.tree)) {
          const [from, to] = [this.place(this.own, item), this.place(this.other, each)];
          if (isVisible(from) && isVisible(to)) add(statusClass(finding), from, to);
        }
      }
      const { selected, marked } = this.app.look;
      const { links } = (selected && this.app.outline?.entryOf(selected)?.finding) ?? { links: [] };
      const near = links.length ? "near" : "near operand";
      for (const each of selected ? marked : []) {
        const items = selected?.graph === this.own.graph ? [selected, each] : [each, selected];
        const [from, to] = [this.own, this.other].map((outline, index) => {
          const y = this.place(
            outline,
            /** @type {Item} */
            items[index]
          );
          return Math.max(this.top, Math.min(height, y));
        });
        add(near, from, to);
      }
      const path = ([classes, lines]) => svg("path", { class: classes, d: [...lines].join("") });
      this.element.replaceChildren(...[...paths].map(path));
    }
    /** Where lines begin, below the headings. */
    get top() {
      return this.own.scroller.offsetTop - this.own.element.offsetTop;
    }
    /**
     * The middle of an item's line, or of the closed module that it is in; it may be above or below the screen.
     * @param {Outline} outline
     * @param {Item} item
     */
    place(outline, item) {
      let entry = outline.entryOf(item) ?? null;
      while (entry && !outline.indexOf.has(entry)) entry = entry.parent;
      const index = entry ? outline.indexOf.get(entry) ?? 0 : 0;
      return Math.round(this.top - outline.scroller.scrollTop + (index + 0.5) * LINE_HEIGHT);
    }
  };

  // src/address.js
  var LONGEST_FOLDS = 400;
  var KINDS = (
    /** @type {const} */
    ["node", "group", "value"]
  );
  function addressOf({ graph, sideBySide, item, open }) {
    const parts = [`graph=${graph.index}`];
    if (sideBySide) parts.push("both");
    if (item) parts.push(`${item.kind}=${encodeURIComponent(nameIn(item))}`);
    const folds = open && ranges([...open].map((group) => group.id));
    if (folds !== null && folds.length <= LONGEST_FOLDS) parts.push(`open=${folds}`);
    return `#${parts.join("&")}`;
  }
  function placeAt(address, { graphs }) {
    const parts = new URLSearchParams(address.slice(1).replaceAll("+", "%2B"));
    const graph = graphs[Number(parts.get("graph") ?? 0)];
    if (!graph) return null;
    const kind = KINDS.find((each) => parts.has(each));
    const item = kind ? findItem(graph, kind, parts.get(kind) ?? "") : null;
    if (kind && !item) return null;
    const folds = parts.get("open");
    const open = folds === null ? null : new Set(graph.groups.filter(({ id }) => inRanges(id, folds)));
    return { graph, sideBySide: parts.has("both"), item, open };
  }
  function nameIn(item) {
    const name = item.kind === "group" ? item.path : item.name;
    const halfCharacter = /\p{Cs}/u.test(name);
    return !halfCharacter && findItem(item.graph, item.kind, name) === item ? name : `#${item.id}`;
  }
  function findItem(graph, kind, name) {
    if (/^#\d+$/.test(name)) return graph[`${kind}s`][Number(name.slice(1))] ?? null;
    if (kind === "group") return graph.groups.find((group) => group.path === name) ?? null;
    return graph[`${kind}s`].find((each) => each.name === name) ?? null;
  }
  function ranges(numbers) {
    const found = [];
    for (const number of numbers.sort((a, b) => a - b)) {
      const last = found.at(-1);
      if (last && last[1] + 1 === number) last[1] = number;
      else found.push([number, number]);
    }
    return found.map(([low, high]) => low === high ? String(low) : `${low}-${high}`).join(".");
  }
  function inRanges(number, text) {
    return text.split(".").some((range) => {
      const [low, high = low] = range.split("-");
      return low !== "" && number >= Number(low) && number <= Number(high);
    });
  }

  // src/history.js
  var DELAY = 150;
  var History = class {
    /** @param {App} app */
    constructor(app) {
      this.app = app;
      this.timer = 0;
      addEventListener("hashchange", () => this.restore());
    }
    /** The address of what is shown now. */
    get address() {
      const { active, selected, sideBySide } = this.app;
      const graph = selected?.graph ?? active.graph;
      const open = this.app.panes.get(graph)?.openGroups ?? null;
      return addressOf({ graph, sideBySide, item: selected, open });
    }
    /** Sets the address soon: a new entry of the history if another item or graph is shown, else in the same entry. */
    note() {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.write(), DELAY);
    }
    write() {
      clearTimeout(this.timer);
      const { address } = this;
      if (address === location.hash) return;
      const withoutFolds = (text) => text.replace(/&open=[^&]*/, "");
      const same = withoutFolds(address) === withoutFolds(location.hash);
      try {
        history[same ? "replaceState" : "pushState"](null, "", address);
      } catch {
      }
    }
    /** Shows what the address says; without one, what the page began with. */
    restore() {
      clearTimeout(this.timer);
      const place = location.hash ? placeAt(location.hash, this.app.data) : null;
      if (place) this.app.showPlace(place);
      else this.app.showStart();
    }
  };

  // src/metrics.js
  var ELEMENTS = "elements";
  var METRICS = /* @__PURE__ */ new Map([
    ["error", ["the largest harmonic error |a - e| / (|e| + 1) of an element: a is its value, e the reference's"]],
    ["mean_error", ["the mean of the harmonic errors of all elements"]],
    ["absolute", ["the largest absolute difference"]],
    ["relative", ["the largest relative difference, over the elements whose expected value is not 0"]],
    ["scale", ["the largest absolute difference relative to the largest expected magnitude"]],
    ["rms", ["the root mean square of the difference relative to that of the expected tensor"]],
    ["snr", ["the signal-to-noise ratio in decibel, -20 log10(rms); inf for equal tensors", "dB"]],
    ["mismatched", ["the number of elements whose error exceeds the harmonic limit and rounding", ELEMENTS]],
    ["nonfinite", ["the number of elements that are NaN or infinite on one side and different on the other", ELEMENTS]],
    ["overflowed", ["the number of elements that are NaN or infinite and should be finite", ELEMENTS]],
    [
      "clipped",
      [
        "the number of elements that are the largest number of their dtype, or of the integers that they were quantized to, and should be larger",
        ELEMENTS
      ]
    ],
    ["zeroed", ["the number of elements that are 0 and should not be", ELEMENTS]],
    ["count", ["the number of elements", ELEMENTS]],
    ["times rounding", ["the distance from the float64 result in units of the rounding level, in the whole run", "×"]],
    ["own times rounding", ["the same, of the node by itself, on the reference's inputs", "×"]],
    ["flips", ["integers that differ because rounding decides them"]],
    ["margin", ["how far the numbers that these decisions compare are from the other decision, in float64"]],
    ["decided", ["how much earlier decisions that differ change the value; its own error is beside this"]],
    ["what", ["dtype and shape"]],
    ["minimum", ["of the finite elements"]],
    ["maximum", ["of the finite elements"]],
    ["mean", ["of the finite elements, summed in float64"]],
    ["std", ["the population standard deviation of the finite elements"]],
    ["nan", ["the number of NaNs", ELEMENTS]],
    ["inf", ["the number of infinities", ELEMENTS]],
    ["#", ["the node's place in the order of execution"]],
    ["graph", ["the graph that the value is in"]],
    ["status", ["whether the value differs from its reference, or why it was not compared"]],
    ["seconds", ["the run time of the node", "s"]],
    ["call", ["which call of the model"]],
    ["in the other", ["the values of the other implementation that have its numbers"]],
    ["kind", ["the role of the value in its graph: node, fused, inserted, constant or output"]],
    ["reference", ["where the reference comes from"]],
    ["in words", ["the difference from the reference in words, or why there is none"]],
    ["value", ["the name of the value"]],
    ["operator", ["what computes the value"]],
    ["module", ["the module whose call computes the value"]],
    ["type", ["dtype and shape"]]
  ]);
  function meaning(name) {
    return METRICS.get(name)?.[0] ?? "";
  }
  function unit(name) {
    return METRICS.get(name)?.[1] ?? "";
  }
  function metricElement(name) {
    const text = meaning(name);
    const measure = unit(name);
    return html(text ? "abbr" : "span", { title: text || null }, name, measure && html("small", {}, ` ${measure}`));
  }

  // src/figures.js
  var WIDTH = 300;
  var HEIGHT = 90;
  function histogramElement([rawLow, rawHigh, expected, actual]) {
    const [low, high] = [parseNumber(rawLow), parseNumber(rawHigh)];
    const most = Math.max(1, ...expected, ...actual);
    const step = WIDTH / expected.length;
    const bars = (counts, kind) => {
      const bar = (number, index) => {
        const height = number ? Math.max(1, number / most * HEIGHT) : 0;
        return `M${index * step + 0.5} ${HEIGHT}v${-height}h${step - 1}v${height}z`;
      };
      return svg("path", { class: `bars ${kind}`, d: counts.map(bar).join("") });
    };
    const range = `${expected.length} bins from ${shortNumber(low)} to ${shortNumber(high)}`;
    const picture = svg(
      "svg",
      {
        class: "histogram",
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": `Histogram of ${range}: reference ${expected.join(", ")}; actual ${actual.join(", ")}`
      },
      bars(expected, "expected"),
      bars(actual, "actual")
    );
    const key = (kind, text) => html("span", { class: `key ${kind}` }, text);
    const keys = html("span", {}, key("expected", "reference"), key("actual", "actual"));
    return html("figure", {}, picture, html("figcaption", {}, numberElement(low), keys, numberElement(high)));
  }
  function statisticsTable(expected, actual) {
    const cell = (content) => html("td", {}, content ?? "–");
    const row = (title, ...cells) => html("tr", {}, html("th", { scope: "row" }, metricElement(title)), cells);
    const column = (title) => html("th", { scope: "col" }, title);
    const numbers = (
      /** @type {const} */
      ["minimum", "maximum", "mean", "std", "nan", "inf"]
    );
    const equalBits = expected && actual && expected.content && expected.content === actual.content;
    return html(
      "table",
      { class: "facts" },
      html("thead", {}, html("tr", {}, html("th"), column("reference"), column("actual"))),
      html(
        "tbody",
        {},
        row("type", cell(expected?.what), cell(actual?.what)),
        numbers.map((name) => row(name, cell(numberElement(expected?.[name])), cell(numberElement(actual?.[name])))),
        equalBits && row("bits", html("td", { colspan: 2 }, "all equal"))
      )
    );
  }

  // src/overview.js
  var MOST_SHOWN = 3;
  var MOST_LISTED = 40;
  function notable({ findings, main, reference }) {
    const of = (graph, ...statuses) => findings.filter((finding) => finding.graph === graph && statuses.includes(finding.status));
    const isWeight3 = ({ value }) => value.role === "parameter";
    return {
      departures: of(main, "leaves A"),
      missing: of(reference, "not in B"),
      contradicted: of(reference, "contradicted"),
      notFound: of(main, "not found", "in part").filter(isWeight3),
      unused: of(reference, "unused")
    };
  }
  function notableElements(app) {
    const { departures, missing, contradicted, notFound, unused } = notable(app.data);
    const shown = departures.slice(0, MOST_SHOWN);
    const all = (text, some) => some && html("button", { type: "button", class: "link", onclick: () => app.showOverview() }, text);
    const first = shown.map(({ value, node }) => {
      const place = node?.module || "the model";
      const line = node?.source.replace(/^.*[\\/]/, "");
      const onclick = () => app.select(node ?? value, { move: true });
      const name = node ? [html("b", {}, nameElement(node.op)), " in ", nameElement(place)] : nameElement(value.name);
      const button2 = html("button", { type: "button", class: "link culprit", title: "Next: n", onclick }, name);
      return html("span", { class: "departure" }, button2, line && html("small", {}, nameElement(line)));
    });
    return [
      shown.length > 0 && html("span", { class: "first-divergence" }, "B leaves A: ", first),
      all(`and ${departures.length - shown.length} more`, departures.length > shown.length),
      all(`${count(contradicted.length, "row")} of the mapping contradicted`, contradicted.length > 0),
      all(`${count(missing.length, "operation")} of A not in B`, missing.length > 0),
      all(`${count(notFound.length, "weight")} of B not found`, notFound.length > 0),
      all(`${count(unused.length, "weight")} of A unused`, unused.length > 0)
    ];
  }
  function overviewElements(app, link) {
    const { departures, missing, contradicted, notFound, unused } = notable(app.data);
    const sections = [
      ["B leaves A", departures],
      ["Contradicted rows of the mapping", contradicted],
      ["Operations of A that are not in B", missing],
      ["Weights of B that are not in A", notFound],
      ["Weights of A that are not in B", unused]
    ];
    return [
      html(
        "p",
        { class: "hint" },
        "Select a line to see where it is in the other one. ",
        html("kbd", {}, "?"),
        " lists all keys."
      ),
      sections.filter(([, findings]) => findings.length).map((section) => sectionElements(section, link)),
      evidenceElements(app.data)
    ];
  }
  function sectionElements([title, findings], link) {
    const rows = findings.slice(0, MOST_LISTED).map(({ node, value, text, status }) => {
      const note = text || (status === "in part" ? "only some of its numbers" : "");
      return html("li", {}, link(node ?? value), note && html("small", {}, note));
    });
    const more = findings.length - rows.length;
    return [
      html("h3", {}, title),
      html("ul", { class: "links" }, rows, more > 0 && html("li", { class: "muted" }, `and ${more} more: see the table`))
    ];
  }
  function evidenceElements({ findings, main }) {
    const values = findings.filter(({ value }) => value.role !== "parameter");
    const rows = EVIDENCE.flatMap((status) => {
      const same = values.filter((finding) => finding.status === status);
      if (!same.length) return [];
      const ofB = same.filter(({ graph }) => graph === main);
      const number = (size) => html("td", {}, size ? size.toLocaleString("en") : "–");
      const text = (same.find(({ graph }) => graph !== main) ?? same[0]).evidence;
      return html(
        "tr",
        {},
        html(
          "th",
          { scope: "row", class: statusClass(same[0]) },
          html("span", { class: "dot" }),
          status,
          html("small", {}, text)
        ),
        number(same.length - ofB.length),
        number(ofB.length)
      );
    });
    if (!rows.length) return [];
    const heading = (text) => html("th", { scope: "col" }, text);
    return [
      html("h3", {}, "Evidence that values are the same"),
      html(
        "table",
        { class: "facts evidence" },
        html("thead", {}, html("tr", {}, html("td"), heading("in A"), heading("in B"))),
        html("tbody", {}, rows)
      )
    ];
  }

  // src/panel.js
  var LONGEST_CONSTANT = 60;
  var Panel = class {
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
      const size = ({ nodes, values, groups }) => `${count(nodes.length, "operation")}, ${count(values.length, "value")}, ${count(groups.length, "module call")}`;
      const hint = "Click a box to see its details. Double-click a group to open or close it. ";
      return [
        html("p", { class: "hint" }, hint, html("kbd", {}, "?"), " lists all keys."),
        ...this.app.data.graphs.map((graph) => [
          html("h3", {}, this.app.data.titleOf(graph)),
          html("p", {}, nameElement(graph.name || "unnamed")),
          html("p", { class: "muted" }, size(graph))
        ])
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
        this.origin(node)
      ];
    }
    /**
     * @param {Group} group
     * @returns {Child[]}
     */
    groupDetails(group) {
      const ops = /* @__PURE__ */ new Map();
      for (const node of group.graph.nodes) {
        if (node.groupPath.includes(group)) ops.set(node.op, (ops.get(node.op) ?? 0) + 1);
      }
      const frequent = [...ops].sort((a, b) => b[1] - a[1]);
      const pane = this.app.paneOf(group);
      const toggle = () => {
        pane.toggle(group);
        this.show(group);
      };
      const own = pane instanceof Outline ? pane.tree.entryOf.get(group)?.finding ?? null : null;
      const label = pane.openGroups.has(group) ? "Close this group" : "Open this group";
      return [
        html("p", { class: "kind" }, "module call", this.graphTag(group)),
        html("h2", {}, nameElement(group.name)),
        html("p", { class: "full-name" }, nameElement(group.type || "unknown class")),
        this.groupPath(group.groupPath.slice(0, -1)),
        !this.app.data.reference && html("p", {}, html("button", { type: "button", onclick: toggle }, label)),
        group.seconds !== null && facts("Time", [["all operations", milliseconds(group.seconds)]]),
        own && this.finding(own),
        group.worst && !this.app.data.reference && [
          html("h3", {}, "Worst value inside"),
          html("p", {}, this.link(group.worst.value)),
          this.finding(group.worst)
        ],
        facts(
          count(group.size, "operation"),
          frequent.map(([op, number]) => [nameElement(op), number.toLocaleString("en")])
        )
      ];
    }
    /**
     * @param {Value} value
     * @returns {Child[]}
     */
    valueDetails(value) {
      const roles = /* @__PURE__ */ new Map([
        ["parameter", "weight"],
        ["view", "view of another value"]
      ]);
      return [
        html(
          "p",
          { class: "kind" },
          isArray(value) ? "array" : roles.get(value.role) ?? value.role,
          this.graphTag(value)
        ),
        html("h2", {}, nameElement(value.name)),
        html("p", { class: "full-name" }, typeLabel(value)),
        value.findings.map((finding) => this.finding(finding)),
        value.producer && this.links("Written by", [value.producer]),
        value.readers.length > 0 && this.links("Read by", value.readers)
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
      const text = item.kind !== "node" ? name : this.app.data.reference ? placeInModel(item) : [html("b", {}, nameElement(item.op)), " ", name];
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
        return exported && html("p", { class: "muted" }, "No node of the compiled graph is known to compute or to read it.");
      }
      if (folded) {
        const text = exported ? "Not in the compiled graph: it was folded into a constant or removed. What reads it became:" : "Not in the exported graph: the compiler inserted it. What reads it was:";
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
        ([name, number]) => (
          /** @type {Fact} */
          [metricElement(name), numberElement(number)]
        )
      );
      const time = (number) => html("data", { class: "number", "data-value": exactNumber(number) }, milliseconds(number));
      return html(
        "section",
        { class: `finding ${statusClass(finding)}` },
        html(
          "h3",
          {},
          html("span", { class: "dot" }),
          finding.status,
          call > 0 && html("small", {}, ` call ${call}`),
          finding.first && html("small", { class: "first-mark" }, " first divergence")
        ),
        error !== null && html("p", { class: "big" }, numberElement(error), " ", html("small", {}, metricElement("error"))),
        finding.text && html("p", {}, finding.text),
        evidence && html("p", { class: "muted" }, `reference: ${evidence}`),
        seconds !== null && html("p", {}, "takes ", time(seconds)),
        measures.length > 0 && facts("", measures),
        (expected || actual) && statisticsTable(expected, actual),
        finding.histogram && histogramElement(finding.histogram)
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
      const title = operands ? `It is computed from, in ${other}` : status === "leaves A" ? "Instead of this operation of A" : `In ${other}`;
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
        places.length > 0 && [html("h3", { class: "places" }, title), html("ul", { class: "links" }, places)]
      );
    }
    /**
     * @param {string} title
     * @param {(Value | null)[]} values
     */
    values(title, values) {
      if (!values.length) return null;
      const row = (value) => value ? html("li", {}, this.link(value), html("small", {}, typeLabel(value), constantText(value))) : html("li", { class: "muted" }, "left out");
      return [html("h3", {}, title), html("ul", { class: "links" }, values.map(row))];
    }
    /** @param {GraphNode} node */
    attributes({ attributes }) {
      if (!attributes.length) return null;
      const rows = attributes.map(
        ([name, text]) => (
          /** @type {Fact} */
          [nameElement(name), html("code", {}, nameElement(text))]
        )
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
      const named = (title, name) => name ? [[title, nameElement(name)]] : [];
      const known = [
        ...named("translates", node.target),
        ...named("source", node.source),
        ...named("generated code", node.code),
        ...forward ? [
          /** @type {Fact} */
          ["gradient of", this.link(forward)]
        ] : named("gradient of", node.gradientOf),
        ...named("module", node.module)
      ];
      if (unknown.length) known.push(["computes", unknown.map((origin) => html("div", {}, nameElement(origin)))]);
      const calls = node.stack.map(([path, type, source]) => {
        const place = [type, source].filter(Boolean).join(" · ");
        return html("li", {}, nameElement(path || "(the model)"), " ", html("small", {}, place));
      });
      return [
        known.length > 0 && facts("Origin", known),
        calls.length > 0 && [html("h3", {}, "Module calls around it"), html("ol", { class: "stack" }, calls)]
      ];
    }
  };
  function constantText({ producer }) {
    if (!producer?.constant) return "";
    const [attribute] = producer.attributes;
    const text = producer.reads.length || !attribute ? "" : ` = ${attribute[1].slice(0, LONGEST_CONSTANT)}`;
    return ` constant${text}`;
  }
  function isArray({ graph, role }) {
    return role !== "parameter" && !graph.nodes.length;
  }
  function placeInModel({ op, module, source }) {
    return [html("b", {}, nameElement(op)), module && [" in ", nameElement(module)], lineOf(source)];
  }
  function lineOf(source) {
    return source && html("small", {}, " ", nameElement(source.replace(/^.*[\\/]/, "")));
  }
  function facts(title, rows) {
    const row = ([key, content]) => html("tr", {}, html("th", { scope: "row" }, key), html("td", {}, content));
    return [title && html("h3", {}, title), html("table", { class: "facts" }, html("tbody", {}, rows.map(row)))];
  }

  // src/picture.js
  var SVG2 = "http://www.w3.org/2000/svg";
  var PROPERTIES = [
    ...["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "paint-order"],
    ...["opacity", "vector-effect", "font-family", "font-size", "font-weight", "text-anchor"]
  ];
  var COLORS = /* @__PURE__ */ new Set(["fill", "stroke"]);
  function plainColor(color) {
    const [space, ...parts] = color.match(/^color\((\w+)|-?[\d.]+(?:e-?\d+)?/g) ?? [];
    if (space !== "color(srgb") return color;
    const [red, green, blue] = parts.map((part) => Math.round(255 * Math.max(0, Math.min(1, Number(part)))));
    return `rgb(${red}, ${green}, ${blue})`;
  }
  function pictureOf({ svg: svg2, view }) {
    const copy = (
      /** @type {SVGSVGElement} */
      svg2.cloneNode(true)
    );
    const originals = [svg2, ...svg2.querySelectorAll("*")];
    const hidden = [];
    for (const [index, element] of [copy, ...copy.querySelectorAll("*")].entries()) {
      const style = getComputedStyle(originals[index]);
      if (style.display === "none") hidden.push(element);
      for (const name of element.getAttributeNames())
        if (/^(class|style|data-|aria-|role|tabindex)/.test(name)) element.removeAttribute(name);
      if (element.localName === "g" || element === copy) {
        if (style.opacity !== "1") element.setAttribute("opacity", style.opacity);
        continue;
      }
      for (const name of PROPERTIES) {
        const value = style.getPropertyValue(name);
        if (value) element.setAttribute(name, COLORS.has(name) ? plainColor(value) : value);
      }
    }
    for (const element of hidden) element.remove();
    const { width, height } = view;
    for (const [name, value] of Object.entries({ xmlns: SVG2, width, height, viewBox: `0 0 ${width} ${height}` })) {
      copy.setAttribute(name, String(value));
    }
    const paper = document.createElementNS(SVG2, "rect");
    const fill2 = plainColor(getComputedStyle(document.body).backgroundColor);
    for (const [name, value] of Object.entries({ width, height, fill: fill2 })) paper.setAttribute(name, String(value));
    copy.prepend(paper);
    return new XMLSerializer().serializeToString(copy);
  }
  function download(name, text) {
    const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    const link = document.createElement("a");
    link.setAttribute("href", address);
    link.setAttribute("download", name);
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1e4);
  }

  // src/plot.js
  var MARGIN2 = { left: 52, right: 14, top: 10, bottom: 26 };
  var LANE = 15;
  var REACH = 18;
  var ErrorScale = class {
    /**
     * @param {Finding[]} findings
     * @param {number} height of the picture
     */
    constructor(findings, height) {
      const decades = findings.map(({ error }) => Math.log10(error ?? NaN)).filter(Number.isFinite);
      this.low = Math.floor(smallest(decades, 0));
      this.high = Math.max(this.low + 1, Math.ceil(largest(decades)));
      this.hasNonFinite = findings.some(({ error }) => error !== null && !Number.isFinite(error));
      const base = height - MARGIN2.bottom - 6;
      this.lines = { none: base, zero: base - LANE, nonFinite: MARGIN2.top + 4 };
      this.top = MARGIN2.top + (this.hasNonFinite ? LANE + 6 : 0);
      this.bottom = base - 2 * LANE;
    }
    /** @param {Finding} finding */
    y({ compared, error }) {
      if (!compared || error === null) return this.lines.none;
      if (!Number.isFinite(error)) return this.lines.nonFinite;
      return error === 0 ? this.lines.zero : this.decade(Math.log10(error));
    }
    /** @param {number} exponent */
    decade(exponent) {
      return this.bottom - (exponent - this.low) / (this.high - this.low) * (this.bottom - this.top);
    }
    /** The exponents that have a line, as many as there is room for. */
    get decades() {
      const step = Math.ceil((this.high - this.low) / Math.max(1, Math.floor((this.bottom - this.top) / 22)));
      return Array.from({ length: Math.floor((this.high - this.low) / step) + 1 }, (_, index) => this.low + index * step);
    }
  };
  var Plot = class {
    /** @param {App} app */
    constructor(app) {
      this.app = app;
      this.dots = [];
      this.axis = html(
        "select",
        { "aria-label": "Against", onchange: () => this.draw() },
        html("option", { value: "depth" }, "against depth"),
        html("option", { value: "order" }, "against order")
      );
      this.svg = svg("svg", { role: "img", class: "errors" });
      this.svg.addEventListener("pointermove", (event) => this.hover(event));
      this.svg.addEventListener("pointerleave", () => app.tooltip.hide());
      this.svg.addEventListener("click", (event) => {
        const finding = this.nearest(event);
        if (finding) app.select(finding.node ?? finding.value, { move: true });
      });
      this.element = html(
        "section",
        { class: "plot", "aria-label": "Errors" },
        html("div", { class: "bar" }, html("h2", {}, "Error"), this.axis),
        this.svg
      );
      new ResizeObserver(oncePerFrame(() => this.draw())).observe(this.svg);
    }
    /** @param {Finding} finding */
    position(finding) {
      return this.axis.value === "order" ? Math.max(0, finding.order) : finding.node?.depth ?? 0;
    }
    draw() {
      const { width, height } = this.svg.getBoundingClientRect();
      if (!width) return;
      const { findings } = this.app.data;
      const scale = new ErrorScale(findings, height);
      const last = largest(
        findings.map((finding) => this.position(finding)),
        1
      );
      const right = width - MARGIN2.right;
      this.dots = findings.map((finding) => ({
        finding,
        x: MARGIN2.left + this.position(finding) / last * (right - MARGIN2.left),
        y: scale.y(finding)
      }));
      const against = this.axis.value === "order" ? "in the order of execution" : "against depth";
      const range = `errors from 1e${scale.low} to 1e${scale.high}`;
      this.svg.setAttribute("aria-label", `Error ${against}: ${count(findings.length, "value")}, ${range}`);
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      const text = (x, label, anchor) => svg("text", { class: "tiny", x, y: height - 8, "text-anchor": anchor }, label);
      this.svg.replaceChildren(
        ...gridElements(scale, right),
        text(MARGIN2.left, "inputs", "start"),
        text((MARGIN2.left + width) / 2, this.axis.value, "middle"),
        text(right, last.toLocaleString("en"), "end"),
        ...this.dotElements()
      );
    }
    /** All dots of a kind are one path: a line without length and with round ends is a dot. */
    dotElements() {
      const paths = /* @__PURE__ */ new Map();
      for (const { finding, x, y } of this.dots) {
        const classes = `dots ${finding.graph.role} ${statusClass(finding)}`;
        paths.set(classes, `${paths.get(classes) ?? ""}M${x.toFixed(1)} ${y.toFixed(1)}h0`);
      }
      const sorted = [...paths].sort((a, b) => a[0] < b[0] ? 1 : -1);
      const ring = ({ x, y }, kind, r) => svg("circle", { class: kind, cx: x, cy: y, r });
      const { data, selected } = this.app;
      const first = this.dots.filter(({ finding }) => finding === data.firstDivergence);
      const chosen = this.dots.filter(
        ({ finding: { node, value } }) => selected && (selected === node || selected === value)
      );
      return [
        ...sorted.map(([classes, d]) => svg("path", { class: classes, d })),
        ...first.map((dot) => ring(dot, "first-ring", 7)),
        ...chosen.map((dot) => ring(dot, "chosen-ring", 5))
      ];
    }
    /**
     * The finding whose dot is nearest to the mouse, if any is near.
     * @param {MouseEvent} event
     */
    nearest(event) {
      const frame = this.svg.getBoundingClientRect();
      const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
      let nearest = null;
      let least = REACH;
      for (const dot of this.dots) {
        const distance = Math.hypot(dot.x - x, dot.y - y);
        if (distance < least) [nearest, least] = [dot.finding, distance];
      }
      return nearest;
    }
    /** @param {MouseEvent} event */
    hover(event) {
      const finding = this.nearest(event);
      this.svg.classList.toggle("on-dot", Boolean(finding));
      if (finding) this.app.tooltip.show(finding.node ?? finding.value, event);
      else this.app.tooltip.hide();
    }
  };
  function gridElements(scale, right) {
    const line = (y, label, kind = "") => [
      svg("path", { class: `grid ${kind}`, d: `M${MARGIN2.left} ${Math.round(y) + 0.5}H${right}` }),
      svg("text", { class: "tiny", x: MARGIN2.left - 8, y: y + 3.5, "text-anchor": "end" }, label)
    ];
    return [
      ...scale.decades.flatMap((exponent) => line(scale.decade(exponent), `1e${exponent}`)),
      ...line(scale.lines.zero, "0", "lane"),
      ...line(scale.lines.none, "none", "lane"),
      ...scale.hasNonFinite ? line(scale.lines.nonFinite, "NaN, ∞", "lane") : []
    ];
  }

  // src/printing.js
  function listenToPrinter(app) {
    let kept = [];
    addEventListener("beforeprint", () => {
      kept = [];
      for (const pane of app.shownPanes) {
        if (pane instanceof Outline) pane.fill({ all: true });
        else kept.push([pane, { ...pane.view }]);
      }
      for (const [pane] of kept) {
        const { width, height } = pane.arrangement;
        Object.assign(pane.view, { k: 1, x: 0, y: 0, width, height });
        pane.redraw();
        pane.svg.setAttribute("viewBox", `-10 -10 ${width + 20} ${height + 20}`);
      }
      app.table.fill({ all: true });
    });
    addEventListener("afterprint", () => {
      for (const [pane, view] of kept) {
        Object.assign(pane.view, view);
        pane.svg.removeAttribute("viewBox");
        pane.redraw();
      }
      for (const pane of app.shownPanes) if (pane instanceof Outline) pane.redraw();
      app.table.fill();
    });
  }

  // src/search.js
  var SearchIndex = class {
    /** @param {PageData} data */
    constructor({ graphs, reference }) {
      this.items = graphs.flatMap(({ groups, nodes, inputs, outputs, values }) => {
        const weights = reference ? values.filter(({ role }) => role === "parameter") : [];
        return [...groups, ...nodes, ...inputs, ...weights, ...reference ? [] : outputs];
      });
      this.texts = /* @__PURE__ */ new Map();
    }
    /**
     * The items that contain a text in any case: first those whose name begins with it, then those whose name contains it;
     * of each, those of the preferred graph first.
     * @param {string} text
     * @param {Graph} preferred
     */
    find(text, preferred) {
      const wanted = text.trim().toLowerCase();
      if (!wanted) return [];
      const rank = (item) => {
        const name = (item.kind === "group" ? item.path : item.name).toLowerCase();
        return name.startsWith(wanted) ? 0 : name.includes(wanted) ? 1 : 2;
      };
      const other = ({ item }) => Number(item.graph !== preferred);
      return this.items.filter((item) => this.textOf(item).includes(wanted)).map((item) => ({ item, rank: rank(item) })).sort((a, b) => a.rank - b.rank || other(a) - other(b)).map(({ item }) => item);
    }
    /** @param {Item} item */
    textOf(item) {
      let text = this.texts.get(item);
      if (text === void 0) {
        text = searchableTexts(item).filter(Boolean).join("\n").toLowerCase();
        this.texts.set(item, text);
      }
      return text;
    }
  };
  function searchableTexts(item) {
    if (item.kind === "value") return [item.name];
    if (item.kind === "group") return [item.name, item.path, item.type];
    const values = [...item.inputs, ...item.written].map((value) => value?.name);
    return [item.name, item.op, item.module, item.group?.path, ...values];
  }

  // src/searchbox.js
  var MOST_SHOWN2 = 100;
  var SearchBox = class {
    /** @param {App} app */
    constructor(app) {
      this.app = app;
      this.index = new SearchIndex(app.data);
      this.found = [];
      this.chosen = 0;
      this.list = html("ul", { class: "found", role: "listbox", id: "found", "aria-label": "Found", hidden: true });
      this.input = html("input", {
        type: "search",
        placeholder: "Search  ( / )",
        autocomplete: "off",
        spellcheck: "false",
        role: "combobox",
        "aria-label": "Search nodes, values and modules",
        "aria-expanded": "false",
        "aria-controls": "found",
        "aria-autocomplete": "list",
        oninput: () => this.update(),
        onkeydown: (event) => this.key(event),
        onfocus: () => this.input.value && this.update(),
        onblur: () => setTimeout(() => this.close(), 150)
      });
      this.element = html("div", { class: "search", role: "search" }, this.input, this.list);
    }
    update() {
      const found = this.index.find(this.input.value, this.app.active.graph);
      const wanted = this.input.value.trim() !== "";
      this.found = found.slice(0, MOST_SHOWN2);
      this.chosen = 0;
      const note = (text) => html("li", { class: "muted more" }, text);
      const more = found.length - this.found.length;
      const entries = this.found.map((item, index) => this.entry(item, index));
      this.list.replaceChildren(
        ...contents([
          entries,
          more > 0 && note(`and ${more.toLocaleString("en")} more`),
          wanted && !found.length && note("No name contains this text.")
        ])
      );
      this.list.hidden = !wanted;
      this.input.setAttribute("aria-expanded", String(wanted));
      this.keepOnScreen();
      this.markChosen();
    }
    /** The list is wider than the input: moves it to the left where it would be cut off. */
    keepOnScreen() {
      const { right } = this.element.getBoundingClientRect();
      this.list.style.right = `${Math.min(0, right - this.list.offsetWidth - 8)}px`;
    }
    /**
     * @param {Item} item
     * @param {number} index
     */
    entry(item, index) {
      const { data } = this.app;
      const graph = data.graphs.length > 1 && html("span", { class: "tag" }, data.titleOf(item.graph));
      return html(
        "li",
        {
          role: "option",
          id: `found-${index}`,
          onpointerdown: (event) => event.preventDefault(),
          // the input keeps the focus
          onclick: () => this.go(index)
        },
        html("b", {}, nameElement(kindOf(item).slice(0, 80))),
        nameElement(item.name.slice(0, 160)),
        html("small", {}, graph, " ", nameElement(placeOf(item).slice(0, 160)))
      );
    }
    markChosen() {
      for (const [index, entry] of [...this.list.children].entries()) {
        entry.setAttribute("aria-selected", String(index === this.chosen));
      }
      const chosen = this.found.length ? this.list.children[this.chosen] : null;
      if (!chosen) {
        this.input.removeAttribute("aria-activedescendant");
        return;
      }
      chosen.scrollIntoView({ block: "nearest" });
      this.input.setAttribute("aria-activedescendant", chosen.id);
    }
    /** @param {KeyboardEvent} event */
    key(event) {
      const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
      if (step && this.found.length) {
        this.chosen = (this.chosen + step + this.found.length) % this.found.length;
        this.markChosen();
      } else if (event.key === "Enter" && this.found.length) {
        this.go(this.chosen);
      } else if (event.key === "Escape") {
        this.input.value = "";
        this.close();
        this.app.active.takeFocus();
      } else {
        return;
      }
      event.preventDefault();
      event.stopPropagation();
    }
    /**
     * Selects what was found.
     * @param {number} index
     */
    go(index) {
      this.close();
      const item = this.found[index];
      this.app.select(item, { move: true });
      this.app.paneOf(item).takeFocus();
    }
    close() {
      this.list.hidden = true;
      this.input.setAttribute("aria-expanded", "false");
    }
  };
  function kindOf(item) {
    if (item.kind === "node") return item.op;
    if (item.kind === "group") return className(item.type) || "module";
    return item.role === "parameter" ? "weight" : item.role;
  }
  function placeOf(item) {
    if (item.kind === "group") return item.path;
    if (item.kind === "value") return typeLabel(item);
    const [output] = item.written;
    return item.group?.path ?? (output ? typeLabel(output) : "");
  }

  // src/rows.js
  var TEXT_COLUMNS = [
    { title: "module", kind: "text", cell: ({ node }) => node?.module || node?.groupPath.at(-1)?.path || "" },
    { title: "operator", kind: "word", cell: ({ node, value }) => node?.op ?? value.role },
    { title: "value", kind: "text", cell: ({ value }) => value.name },
    { title: "type", kind: "text", cell: ({ value }) => typeLabel(value) }
  ];
  function tableRows({ findings, graphs }) {
    if (findings.length) {
      return findings.map((finding, index) => ({ index, finding, value: finding.value, node: finding.node }));
    }
    const values = graphs.flatMap((graph) => graph.nodes.flatMap((node) => node.written));
    return values.map((value, index) => ({ index, finding: null, value, node: value.producer }));
  }
  function tableColumns({ findings, graphs, before, reference }) {
    const position = ({ node }) => node?.id ?? -1;
    const graphName = ({ role }) => {
      if (reference) return role === "reference" ? "A" : "B";
      return role === "graph" && before ? "compiled" : role === "before" ? "exported" : role;
    };
    const ofFinding = (title, kind, cell, shown = findings.some((finding) => cell(finding) !== null)) => shown ? [{ title, kind, cell: ({ finding }) => finding && cell(finding) }] : [];
    const any = findings.length > 0;
    const measures = new Set(findings.flatMap((finding) => [...finding.measures.keys()]));
    const place = {
      title: "#",
      kind: "number place",
      cell: (row) => reference && !row.node ? null : position(row),
      key: (row) => row.value.graph.index * 1e9 + position(row)
    };
    const graph = { title: "graph", kind: "word", cell: ({ value: value2 }) => graphName(value2.graph) };
    const [module, operator, value, type] = TEXT_COLUMNS;
    return [
      ...ofFinding("error", "number", ({ error }) => error, any && !reference),
      module,
      operator,
      ...ofFinding("status", "status", ({ status }) => status, any),
      value,
      ...graphs.length > 1 ? [graph] : [],
      place,
      type,
      ...[...measures].flatMap(
        (name) => ofFinding(name, "number", (finding) => finding.measures.get(name) ?? null, true)
      ),
      ...ofFinding("seconds", "number", ({ seconds }) => seconds),
      ...ofFinding(
        "call",
        "number",
        ({ call }) => call,
        findings.some(({ call }) => call)
      ),
      ...ofFinding("kind", "word", ({ stage }) => stage, any && !reference),
      ...ofFinding("in the other", "text", ({ places }) => places.map(([name]) => name).join(", "), reference !== null),
      ...ofFinding(
        "reference",
        "text",
        ({ evidence }) => evidence,
        !reference && findings.some(({ evidence }) => evidence)
      ),
      ...ofFinding(
        "in words",
        "text",
        ({ text }) => text,
        findings.some(({ text }) => text)
      )
    ];
  }
  var RowFilter = class {
    constructor() {
      this.texts = /* @__PURE__ */ new WeakMap();
    }
    /**
     * Whether a row has a status and contains a text; "" is any.
     * @param {Row} row
     * @param {string} text
     * @param {string} status
     */
    accepts(row, text, status) {
      return (!status || row.finding?.status === status) && (!text || this.textOf(row).includes(text.toLowerCase()));
    }
    /** @param {Row} row */
    textOf(row) {
      let text = this.texts.get(row);
      if (text === void 0) {
        const cells = TEXT_COLUMNS.map((column) => column.cell(row));
        const finding = row.finding ? `${row.finding.status} ${row.finding.text}` : "";
        text = [...cells, finding].join("\n").toLowerCase();
        this.texts.set(row, text);
      }
      return text;
    }
  };
  function sortRows(rows, column, descending) {
    const key = column.key ?? column.cell;
    const keyed = rows.map((row) => ({ row, key: key(row) }));
    keyed.sort((a, b) => compareCells(a.key, b.key, descending) || a.row.index - b.row.index);
    return keyed.map(({ row }) => row);
  }
  function compareCells(a, b, descending) {
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    const [x, y] = [a, b].map((cell) => Number.isNaN(cell) ? Infinity : cell);
    const ascending = x < y ? -1 : x > y ? 1 : Number(Number.isNaN(a)) - Number(Number.isNaN(b));
    return descending ? -ascending : ascending;
  }

  // src/table.js
  var ROW_HEIGHT2 = 27;
  var EXTRA_ROWS = 8;
  var LONGEST3 = 200;
  var WIDEST2 = 230;
  var LONGEST_NUMBER = "−1.23e−100";
  var CELL_FONT = "400 12.5px";
  var Table = class {
    /** @param {App} app */
    constructor(app) {
      this.app = app;
      this.rows = tableRows(app.data);
      this.columns = tableColumns(app.data);
      this.filter = new RowFilter();
      const [first] = this.columns;
      this.sort = { column: this.columns.find(({ title }) => title === "#") ?? first, descending: false };
      this.shown = [];
      this.range = { from: 0, to: 0 };
      this.text = html("input", {
        type: "search",
        placeholder: "Filter rows",
        "aria-label": "Filter rows",
        oninput: () => this.update()
      });
      const statuses = new Set(app.data.findings.map((finding) => finding.status));
      this.status = html(
        "select",
        { "aria-label": "Status", onchange: () => this.update() },
        html("option", { value: "" }, "any status"),
        [...statuses].map((status) => html("option", { value: status }, status))
      );
      this.summary = html("span", { class: "muted", role: "status" });
      this.headers = this.columns.map((column) => this.header(column));
      this.above = html("tr", { class: "space", "aria-hidden": "true" });
      this.below = html("tr", { class: "space", "aria-hidden": "true" });
      this.body = html("tbody");
      this.table = html(
        "table",
        { class: "rows", "aria-label": "All rows" },
        html(
          "colgroup",
          {},
          this.columns.map((column) => this.columnElement(column))
        ),
        html("thead", {}, html("tr", { "aria-rowindex": 1 }, this.headers)),
        this.body
      );
      this.scroller = html(
        "div",
        {
          class: "scroller",
          tabindex: 0,
          role: "region",
          "aria-label": "Rows: the up and down arrow keys select",
          onscroll: oncePerFrame(() => this.fillIfMoved()),
          onkeydown: (event) => this.key(event)
        },
        this.table
      );
      this.element = html(
        "section",
        { class: "table", "aria-label": "Table" },
        html("div", { class: "bar" }, this.text, statuses.size > 0 && this.status, this.summary),
        this.scroller
      );
      new ResizeObserver(() => this.fillIfMoved()).observe(this.scroller);
      this.update();
    }
    /** @param {Column} column */
    header(column) {
      const { title, kind } = column;
      const measure = unit(title);
      const text = [title, measure && html("small", {}, ` ${measure}`)];
      const button2 = html("button", { type: "button", onclick: () => this.sortBy(column) }, text);
      return html("th", { scope: "col", class: kind, title: meaning(title) || title, "data-name": title }, button2);
    }
    /**
     * A column as wide as its title, and as its longest text up to a limit; numbers all have room.
     * @param {Column} column
     */
    columnElement({ title, kind, cell }) {
      const isNumber = kind.startsWith("number");
      const longest = isNumber ? LONGEST_NUMBER : this.rows.reduce((a, row) => longer(a, String(cell(row))), "");
      const heading = textWidth(`${title} ${unit(title)} ↑`, CELL_FONT);
      const limit = isNumber ? Infinity : WIDEST2;
      const dot = kind === "status" ? 16 : 0;
      const col = html("col");
      col.style.width = `${Math.ceil(Math.max(heading, Math.min(limit, textWidth(longest, CELL_FONT) + dot)) + 24)}px`;
      return col;
    }
    /**
     * Sorts by a column: numbers first from the largest. The second time, in the other direction.
     * @param {Column} column
     */
    sortBy(column) {
      const again = this.sort.column === column;
      this.sort = { column, descending: again ? !this.sort.descending : column.kind === "number" };
      this.update();
    }
    /** Shows the rows that the filter accepts. */
    update() {
      const { column, descending } = this.sort;
      const accepted = this.rows.filter((row) => this.filter.accepts(row, this.text.value, this.status.value));
      this.shown = sortRows(accepted, column, descending);
      const all = count(this.rows.length, "row");
      const some = this.shown.length < this.rows.length;
      this.summary.textContent = some ? `${this.shown.length.toLocaleString("en")} of ${all}` : all;
      this.table.setAttribute("aria-rowcount", String(this.shown.length + 1));
      for (const [index, header] of this.headers.entries()) {
        const order = this.columns[index] !== column ? "none" : descending ? "descending" : "ascending";
        header.setAttribute("aria-sort", order);
      }
      this.scroller.scrollTop = 0;
      this.fill();
    }
    /** The rows that should be elements. */
    visibleRange() {
      const { scrollTop, clientHeight } = this.scroller;
      const from = Math.max(0, Math.floor(scrollTop / ROW_HEIGHT2) - EXTRA_ROWS);
      return { from, to: Math.min(this.shown.length, from + Math.ceil(clientHeight / ROW_HEIGHT2) + 2 * EXTRA_ROWS) };
    }
    /** Makes the visible rows again, or all rows. */
    fill({ all = false } = {}) {
      this.range = all ? { from: 0, to: this.shown.length } : this.visibleRange();
      const { from, to } = this.range;
      this.above.style.height = `${from * ROW_HEIGHT2}px`;
      this.below.style.height = `${(this.shown.length - to) * ROW_HEIGHT2}px`;
      const rows = this.shown.slice(from, to).map((row, index) => this.row(row, from + index));
      this.body.replaceChildren(this.above, ...rows, this.below);
    }
    fillIfMoved() {
      const { from, to } = this.visibleRange();
      if (from !== this.range.from || to !== this.range.to) this.fill();
    }
    /**
     * @param {Row} row
     * @param {number} index
     */
    row(row, index) {
      const { finding } = row;
      const selected = isOf(row, this.app.selected);
      const classes = [selected && "selected", finding && statusClass(finding), finding?.diverged && "diverged"];
      return html(
        "tr",
        {
          class: classes.filter(Boolean).join(" "),
          "aria-rowindex": index + 2,
          "aria-selected": String(selected),
          onclick: () => this.pick(row)
        },
        this.columns.map((column) => cellElement(column, row))
      );
    }
    /** @param {Row} row */
    pick(row) {
      this.app.select(row.node ?? row.value, { move: true, fromTable: true });
    }
    /**
     * Scrolls to the row of an item, unless it is visible.
     * @param {Item} item
     */
    show(item) {
      const index = this.shown.findIndex((row) => isOf(row, item));
      const { scrollTop, clientHeight } = this.scroller;
      const visible = index * ROW_HEIGHT2 >= scrollTop && (index + 3) * ROW_HEIGHT2 <= scrollTop + clientHeight;
      if (index >= 0 && !visible) this.scroller.scrollTop = index * ROW_HEIGHT2 - clientHeight / 2;
      this.fill();
    }
    /** @param {KeyboardEvent} event */
    key(event) {
      const steps = /* @__PURE__ */ new Map([
        ["ArrowDown", 1],
        ["ArrowUp", -1],
        ["PageDown", 10],
        ["PageUp", -10]
      ]);
      const step = steps.get(event.key);
      if (!step || !this.shown.length) return;
      event.preventDefault();
      event.stopPropagation();
      const now = this.shown.findIndex((row) => isOf(row, this.app.selected));
      this.pick(this.shown[Math.max(0, Math.min(this.shown.length - 1, now + step))]);
      if (this.app.selected) this.show(this.app.selected);
    }
  };
  function longer(a, b) {
    return b.length > a.length ? b : a;
  }
  function isOf({ node, value }, item) {
    return item !== null && (item === node || item === value);
  }
  function cellElement({ kind, cell }, row) {
    const content = cell(row);
    if (kind.startsWith("number")) {
      return html("td", { class: kind }, numberElement(
        /** @type {Numeric | null} */
        content
      ));
    }
    const text = String(content);
    const dot = kind === "status" && html("span", { class: "dot" });
    return html("td", { class: kind, title: text.slice(0, 500) }, dot, nameElement(text.slice(0, LONGEST3)));
  }

  // src/tooltip.js
  var LONGEST4 = 120;
  var Tooltip = class {
    constructor() {
      this.element = html("div", { class: "tooltip", role: "tooltip", hidden: true });
      this.item = null;
      this.note = "";
    }
    hide() {
      this.element.hidden = true;
    }
    /**
     * @param {Item} item
     * @param {MouseEvent} event where
     * @param {string} note a further line
     */
    show(item, event, note = "") {
      const { element } = this;
      element.hidden = false;
      if (this.item !== item || this.note !== note) {
        element.replaceChildren(...contents([note && html("p", {}, note), summary(item)]));
      }
      this.item = item;
      this.note = note;
      const { offsetWidth: width, offsetHeight: height } = element;
      const { clientX: x, clientY: y } = event;
      element.style.left = `${Math.max(4, Math.min(innerWidth - width - 8, x + 14))}px`;
      element.style.top = `${y + 18 + height > innerHeight ? y - height - 12 : y + 18}px`;
    }
  };
  function summary(item) {
    const name = nameElement(item.name.slice(0, LONGEST4));
    const muted = (...content) => html("p", { class: "muted" }, content);
    const lines = [];
    if (item.kind === "node") {
      lines.push(html("p", {}, html("b", {}, nameElement(item.op.slice(0, LONGEST4))), " ", name));
      lines.push(...item.written.slice(0, 3).map((value) => muted(`→ ${typeLabel(value).slice(0, LONGEST4)}`)));
    } else {
      lines.push(html("p", {}, html("b", {}, name)));
    }
    if (item.kind === "group") {
      lines.push(muted(nameElement(item.type.slice(0, LONGEST4)), ` ${count(item.size, "operation")}`));
    }
    if (item.kind === "value") lines.push(muted(`${item.role}, ${typeLabel(item).slice(0, LONGEST4)}`));
    if (item.worst) {
      const { status, error } = item.worst;
      const text = error === null ? status : `${status}, error ${shortNumber(error)}`;
      lines.push(html("p", { class: statusClass(item.worst) }, html("span", { class: "dot" }), text));
    }
    if (item.kind !== "value" && item.seconds) lines.push(muted(milliseconds(item.seconds)));
    return lines;
  }

  // src/verdict.js
  var SIGNS = { close: "✓", different: "✗", "not close": "?" };
  function verdictElement(app, pathToggle) {
    const { verdict, firstDivergence } = app.data;
    if (!verdict) return null;
    const badge = html("strong", { class: `badge ${verdict.replace(" ", "-")}` }, `${SIGNS[verdict]} ${verdict}`);
    if (app.data.reference) {
      return html("section", { class: "verdict", "aria-label": "Verdict" }, badge, notableElements(app));
    }
    const culprit = firstDivergence && [culpritElement(firstDivergence, app), pathToggle];
    return html("section", { class: "verdict", "aria-label": "Verdict" }, badge, culprit);
  }
  function culpritElement({ node, value, graph }, app) {
    const onclick = () => app.showFirstDivergence();
    const place = node?.module || node?.group?.path;
    const attributes = { type: "button", class: "link culprit", title: "Show the first divergence (d)", onclick };
    return html(
      "span",
      { class: "first-divergence" },
      "first divergence: ",
      html("button", attributes, node && [html("b", {}, nameElement(node.op)), " "], nameElement((node ?? value).name)),
      place && [" in ", nameElement(place)],
      app.data.graphs.length > 1 && html("small", {}, `, ${app.data.titleOf(graph).toLowerCase()}`)
    );
  }
  function remarksElement({ remarks: [headline, ...others] }) {
    if (!headline) return null;
    const rest = html(
      "div",
      { class: "others" },
      others.map((remark) => html("p", {}, remark))
    );
    const more = html("button", { type: "button", class: "more", hidden: true, "aria-expanded": "false" }, "More");
    more.addEventListener("click", () => {
      const open = rest.classList.toggle("all");
      more.textContent = open ? "Less" : "More";
      more.setAttribute("aria-expanded", String(open));
    });
    new ResizeObserver(() => {
      if (!rest.classList.contains("all")) more.hidden = rest.scrollHeight <= rest.clientHeight + 1;
    }).observe(rest);
    const line = html("p", { class: "headline" }, headline);
    return html("section", { class: "remarks", "aria-label": "Remarks" }, html("div", {}, line, rest), more);
  }

  // src/app.js
  var MOST_REVEALED = 20;
  var App = class {
    /** @param {PageData} data */
    constructor(data) {
      this.data = data;
      this.selected = null;
      this.path = null;
      const { firstDivergence } = data;
      this.first = withGroups(firstDivergence?.node ? [firstDivergence.node] : []);
      this.shown = { tensors: false, weights: data.reference !== null, constants: false, unlinked: false };
      this.colors = new Colors(data);
      this.panes = /* @__PURE__ */ new Map();
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
      this.graph = data.main;
      this.sideBySide = data.reference !== null;
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
      this.select(first ? first.node ?? first.value : null, { move: true, quiet: true });
    }
    /**
     * Shows what an address says.
     * @param {Place} place
     */
    showPlace({ graph, sideBySide, item, open }) {
      const { before, reference } = this.data;
      this.sideBySide = reference !== null || sideBySide && before !== null && graph.role !== "function";
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
      if (!pane) this.panes.set(graph, pane = this.data.reference ? new Outline(this, graph) : new Pane(this, graph));
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
      if (this.selected) this.selectIfAny(readersOf2(this.selected)[0]);
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
  };
  function withGroups(items) {
    const found = new Set(items);
    for (const item of items) if (item.kind !== "value") for (const group of item.groupPath) found.add(group);
    return found;
  }
  function readersOf2(item) {
    if (item.kind === "value") return item.readers;
    return item.kind === "node" ? item.written.flatMap((value) => value.readers) : [];
  }
  function sourcesOf(item) {
    if (item.kind === "value") return item.producer ? [item.producer] : [];
    if (item.kind === "group") return [];
    return item.inputs.flatMap((value) => value?.producer ?? (value?.role === "input" ? value : []));
  }

  // src/main.js
  var raw = (
    /** @type {HTMLElement} */
    document.getElementById("data").textContent
  );
  Object.assign(window, { filch: new App(new PageData(JSON.parse(raw ?? ""))) });
  requestAnimationFrame(() => {
    document.documentElement.dataset.drawn = String(Math.round(performance.now()));
    performance.mark("filch-drawn");
  });
})();
