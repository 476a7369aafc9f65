// Built from page/src by `npm run build`. Change the files there, not this one.
"use strict";
(() => {
  // src/numbers.js
  function count(number, noun) {
    return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  }
  function exact(number) {
    return Object.is(number, -0) ? "-0.0" : String(number);
  }
  function short(number) {
    if (number === null || number === void 0) return "";
    const size = Math.abs(Number(number));
    if (typeof number === "bigint" || Number.isInteger(number) && size < 1e7) return number.toLocaleString("en");
    if (!Number.isFinite(number)) return Number.isNaN(number) ? "NaN" : number > 0 ? "∞" : "−∞";
    const text = size >= 1e-3 && size < 1e5 ? String(Number(number.toPrecision(4))) : number.toExponential(2);
    return text.replace("e+", "e").replace(/\.?0+e/, "e");
  }
  function milliseconds(seconds) {
    return `${short(seconds * 1e3)} ms`;
  }

  // src/colour.js
  var FAMILIES = [
    ["norm", /norm/, "normalise"],
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
  var STATUSES = ["same", "different", "shape or dtype differs", "no value", "not mapped"];
  var families = /* @__PURE__ */ new Map();
  function family(op) {
    if (!families.has(op)) {
      const own2 = bare(op).slice(0, 80).toLowerCase();
      families.set(op, (FAMILIES.find(([, pattern]) => pattern.test(own2)) || ["other"])[0]);
    }
    return families.get(op);
  }
  function bare(op) {
    return op.slice(op.includes("::") ? op.lastIndexOf("::") + 2 : 0);
  }
  var Scale = class {
    constructor(kind, steps, errors) {
      Object.assign(this, { kind, steps, any: errors.length > 0 });
      this.high = errors.reduce((a, b) => Math.max(a, b), 0);
      this.low = Math.max(
        errors.reduce((a, b) => Math.min(a, b), Infinity),
        this.high * 1e-8
      );
    }
    of(error) {
      const part = Number.isFinite(error) && this.high > this.low ? Math.log(error / this.low) / Math.log(this.high / this.low) : 1;
      return `${this.kind}-${Math.max(0, Math.min(this.steps - 1, Math.floor(part * this.steps)))}`;
    }
    /** Pairs of class and words; the first and the last step say where it begins and ends. */
    legend() {
      if (!this.any) return [];
      if (!(this.high > this.low)) return [[`${this.kind}-${this.steps - 1}`, short(this.high)]];
      const words = (step) => step === 0 ? short(this.low) : step === this.steps - 1 ? short(this.high) : "";
      return Array.from({ length: this.steps }, (_, step) => [`${this.kind}-${step}`, words(step)]);
    }
  };
  var Colours = class {
    constructor(data) {
      this.judged = data.findings.length > 0;
      const sized = data.findings.filter((found) => found.error > 0 && Number.isFinite(found.error));
      const errors = (diverged) => sized.filter((found) => found.diverged === diverged).map((found) => found.error);
      this.calm = new Scale("calm", 4, errors(false));
      this.alarm = new Scale("error", 7, errors(true));
      const times = data.graphs.flatMap((graph) => graph.nodes.map((node) => node.seconds)).filter((time) => time !== null);
      times.sort((a, b) => a - b);
      this.times = [0.7, 0.9, 0.95].map((part) => times[Math.floor(part * (times.length - 1))]);
      this.timed = times.length > 0;
      this.modes = ["operator", "module", ...this.judged ? ["error", "status"] : [], ...this.timed ? ["time"] : []];
      this.mode = data.findings.some((found) => found.error !== null) ? "error" : this.judged ? "status" : "operator";
    }
    /** The class of a box; `thing` is a node, a group or a value. */
    of(thing) {
      if (this.mode === "error") return this.ofError(thing.worst);
      if (this.mode === "status") return thing.worst ? `status-${STATUSES.indexOf(thing.worst.status)}` : "plain";
      if (this.mode === "time") return this.ofTime(thing);
      if (this.mode === "module") return this.ofModule(thing);
      return thing.kind === "node" ? `family-${family(thing.op)}` : thing.kind === "value" ? `role-${thing.role}` : "plain";
    }
    ofError(found) {
      if (!found) return "plain";
      if (found.error === null) return `status-${STATUSES.indexOf(found.status)}`;
      if (found.diverged) return this.alarm.of(found.error);
      return found.error === 0 ? "zero" : this.calm.of(found.error);
    }
    ofTime(thing) {
      if (thing.kind === "group") {
        const inside = thing.graph.nodes.filter((node) => node.chain.includes(thing)).map((node) => this.ofTime(node));
        return inside.sort().at(-1) || "plain";
      }
      if (thing.seconds === null || thing.seconds === void 0) return "plain";
      return `time-${this.times.filter((limit) => thing.seconds >= limit && thing.seconds > 0).length}`;
    }
    ofModule(thing) {
      const chain = thing.chain || (thing.producer ? thing.producer.chain : []);
      const level2 = chain.findIndex((group) => siblings(group).length > 1);
      return level2 < 0 ? "plain" : `module-${siblings(chain[level2]).indexOf(chain[level2]) % 8}`;
    }
    /** Pairs of class and words. */
    legend() {
      if (this.mode === "operator")
        return [...FAMILIES.map(([key, , words]) => [`family-${key}`, words]), ["family-other", "other"]];
      if (this.mode === "status") return STATUSES.map((status, at) => [`status-${at}`, status]);
      if (this.mode === "module") return [];
      if (this.mode === "time") return ["under p70", "p70", "p90", "p95"].map((words, at) => [`time-${at}`, words]);
      return [
        ["zero", "0"],
        ["words", "same"],
        ...this.calm.legend(),
        ["words", "different"],
        ...this.alarm.legend(),
        ["status-3", "not judged"]
      ].filter(([kind, words]) => kind !== "words" || { same: this.calm, different: this.alarm }[words].any);
    }
  };
  function siblings(group) {
    return group.parent === null ? group.graph.top : group.graph.groups[group.parent].groups;
  }

  // src/dom.js
  var SVG = "http://www.w3.org/2000/svg";
  function h(tag, attributes, ...children) {
    return furnish(document.createElement(tag), attributes, children);
  }
  function s(tag, attributes, ...children) {
    return furnish(document.createElementNS(SVG, tag), attributes, children);
  }
  function furnish(element, attributes, children) {
    for (const [name2, value] of Object.entries(attributes || {})) {
      if (value === void 0 || value === null || value === false) continue;
      if (name2.startsWith("on")) element.addEventListener(name2.slice(2), value);
      else element.setAttribute(name2, value === true ? "" : value);
    }
    element.append(...children.flat(3).filter((child) => child !== null && child !== void 0 && child !== false));
    return element;
  }
  function name(text) {
    return h("bdi", { class: "name" }, text);
  }
  function numberCell(number) {
    if (number === null || number === void 0) return null;
    return h(
      "data",
      { class: "number", value: exact(number), "data-value": exact(number), title: exact(number) },
      short(number)
    );
  }
  var FONT = 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif';
  var pen = document.createElement("canvas").getContext("2d");
  var widths = /* @__PURE__ */ new Map();
  function textWidth(text, font) {
    const key = font + text;
    if (!widths.has(key)) {
      pen.font = `${font} ${FONT}`;
      widths.set(key, pen.measureText(text).width);
    }
    return widths.get(key);
  }
  function clip(text, room, font) {
    let letters = Array.from(text.slice(0, 160)).map((letter) => /[\p{Cc}\p{Zl}\p{Zp}]/u.test(letter) ? " " : letter);
    const all = letters.join("");
    if (text.length <= 160 && textWidth(all, font) <= room) return all;
    let [low, high] = [0, letters.length];
    while (low < high) {
      const middle = low + high + 1 >> 1;
      if (textWidth(letters.slice(0, middle).join("") + "…", font) <= room) low = middle;
      else high = middle - 1;
    }
    return letters.slice(0, low).join("") + "…";
  }
  function soon(act) {
    let asked = false;
    return () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => {
        asked = false;
        act();
      });
    };
  }

  // src/keys.js
  var KEYS = [
    ["/", "search", (app) => app.search.input.focus()],
    ["f", "fit the graph into its frame", (app) => app.active.fit()],
    ["+", "zoom in and out", (app) => app.active.zoom(1.4)],
    ["-", "", (app) => app.active.zoom(1 / 1.4)],
    ["ArrowLeft", "move", (app) => app.active.pan(80, 0, true)],
    ["ArrowRight", "", (app) => app.active.pan(-80, 0, true)],
    ["ArrowUp", "", (app) => app.active.pan(0, 80, true)],
    ["ArrowDown", "", (app) => app.active.pan(0, -80, true)],
    ["Enter", "open or close the selected group, or the one around the selected operation", (app) => app.fold()],
    ["o", "open all groups in sight, close all", (app) => app.active.openAll(true)],
    ["c", "", (app) => app.active.openAll(false)],
    ["j", "follow the data to what reads it, and back to what made it", (app) => app.follow(1)],
    ["k", "", (app) => app.follow(-1)],
    ["d", "first divergence", (app) => app.toFirst()],
    ["n", "next divergence, and the one before", (app) => app.toNext(1)],
    ["N", "", (app) => app.toNext(-1)],
    ["p", "path from the first divergence", (app) => app.togglePath()],
    ["s", "one graph, or both side by side", (app) => app.toggleSides()],
    ["v", "values between the operations", (app) => app.toggleShown("tensors")],
    ["w", "weights", (app) => app.toggleShown("weights")],
    ["t", "table", (app) => app.toggleDrawer()],
    ["l", "light or dark", (app) => app.toggleTheme()],
    ["?", "this list", (app) => app.help.showModal()],
    ["Escape", "nothing selected", (app) => app.select(null)]
  ];
  var SIGNS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", "-": "−", Escape: "Esc" };
  function listenToKeys(app) {
    document.addEventListener("keydown", (event) => {
      const typing = event.target.closest("input, select, textarea, dialog");
      const pressing = event.key === "Enter" && event.target.closest("button, summary, a");
      if (typing || pressing || event.ctrlKey || event.metaKey || event.altKey) return;
      const found = KEYS.find(([key]) => key === event.key || key === "+" && event.key === "=");
      if (!found) return;
      event.preventDefault();
      found[2](app);
    });
  }
  function helpOn() {
    const rows = [];
    for (const [key, words] of KEYS) {
      const sign2 = h("kbd", {}, SIGNS[key] || key);
      if (words) rows.push(h("tr", {}, h("th", { scope: "row" }, sign2), h("td", {}, words)));
      else rows.at(-1).firstChild.append(" ", sign2);
    }
    const close = h(
      "button",
      { type: "button", class: "close", "aria-label": "Close", onclick: () => dialog.close() },
      "×"
    );
    const mouse = h(
      "p",
      { class: "muted" },
      "The wheel and two fingers zoom, dragging moves, a double click opens and closes a layer."
    );
    const dialog = h(
      "dialog",
      { "aria-label": "Keys", onclick: (event) => event.target === dialog && dialog.close() },
      h("div", {}, close, h("h2", {}, "Keys"), h("table", { class: "keys" }, h("tbody", {}, rows)), mouse)
    );
    return dialog;
  }

  // src/model.js
  var ROLES = ["intermediate", "view", "input", "output", "parameter"];
  var JUDGED = ["same", "different", "shape or dtype differs"];
  var DIVERGED = ["different", "shape or dtype differs"];
  function numeric(number) {
    if (number === void 0 || number === null) return null;
    if (typeof number === "number") return number;
    return /^-?\d+$/.test(number) ? BigInt(number) : Number(number);
  }
  function weight(finding) {
    const error = finding.error === null ? 0 : Number.isNaN(finding.error) ? Infinity : finding.error;
    return [finding.diverged ? 1 : 0, finding.judged ? 0 : 1, error];
  }
  function worse(one, other) {
    if (!one || !other) return one || other || null;
    const [a, b] = [weight(one), weight(other)];
    const place2 = a.findIndex((part, index) => part !== b[index]);
    return place2 < 0 || a[place2] > b[place2] ? one : other;
  }
  var Data = class {
    constructor(raw) {
      this.strings = raw.strings;
      this.lists = raw.lists;
      this.remarks = raw.remarks;
      this.graphs = raw.graphs.map((graph, place2) => new Graph(this, graph, place2));
      this.main = this.graphs[0];
      this.before = this.graphs.find((graph) => graph.role === "before") || null;
      this.findings = this.graphs.flatMap((graph) => graph.findings);
      if (this.before) this.tie();
    }
    text(place2) {
      return place2 === null || place2 === void 0 ? "" : this.strings[place2];
    }
    texts(place2) {
      return place2 === null || place2 === void 0 ? [] : this.lists[place2].map((text) => this.strings[text]);
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
      return this.findings.find((finding) => finding.first) || this.findings.filter((finding) => finding.diverged).sort((a, b) => a.order - b.order)[0] || null;
    }
  };
  var Graph = class {
    constructor(data, raw, place2) {
      Object.assign(this, { place: place2, name: raw.name, role: raw.role, of: raw.of || "" });
      this.values = raw.values.map(([own2, role, dtype, shape], id) => ({
        ...{ kind: "value", graph: this, id, name: data.text(own2), role: ROLES[role], dtype: data.text(dtype) },
        shape: shape === null || shape === void 0 ? null : data.texts(shape),
        ...{ producer: null, readers: [], findings: [], worst: null }
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
          counterparts: []
        }
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
        own2,
        op,
        group,
        inputs,
        outputs,
        stack2,
        module,
        source,
        attributes,
        origins,
        target,
        code,
        forward,
        captured
      ] = raw;
      const calls = data.texts(stack2);
      const given = data.texts(attributes);
      const of = (place2) => place2 === null ? null : this.values[place2];
      const node = {
        ...{ kind: "node", graph: this, id, name: data.text(own2), op: data.text(op), target: data.text(target) },
        ...{
          module: data.text(module),
          source: data.text(source),
          code: data.text(code),
          gradientOf: data.text(forward)
        },
        group: group === null || group === void 0 ? null : this.groups[group],
        inputs: (inputs || []).map(of),
        outputs: (outputs || []).map(of),
        captured: (captured || []).map(of),
        stack: Array.from({ length: calls.length / 3 }, (_, at) => calls.slice(3 * at, 3 * at + 3)),
        attributes: Array.from({ length: given.length / 2 }, (_, at) => given.slice(2 * at, 2 * at + 2)),
        origins: data.texts(origins),
        ...{ counterparts: [], findings: [], worst: null, seconds: null, depth: 1 }
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
        histogram2
      ] = raw;
      const found = {
        ...{ graph: this, value: this.values[value], status: data.text(status), stage: data.text(kind), call: call || 0 },
        ...{ first: Boolean(first), error: numeric(error), text: data.text(text), evidence: data.text(evidence) },
        measures: new Map(data.texts(names).map((measure, at) => [measure, numeric(measures[at])])),
        ...{ seconds: numeric(seconds), expected: statistics(expected), actual: statistics(actual) },
        histogram: histogram2 || null
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
        node.fixed = node.reads.every((value) => value.producer ? value.producer.fixed : value.role === "parameter");
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
  };
  function statistics(raw) {
    if (!raw) return null;
    const [what, minimum, maximum, mean, std, nan, inf, content] = raw;
    const [least, largest, middle, spread2, nans, infs] = [minimum, maximum, mean, std, nan, inf].map(numeric);
    return { what, minimum: least, maximum: largest, mean: middle, std: spread2, nan: nans, inf: infs, content };
  }
  function typed(value) {
    if (!value.dtype && !value.shape) return "";
    return `${value.dtype || "?"}[${value.shape ? value.shape.join(", ") : "?"}]`;
  }
  function reach(node) {
    const wrong = (each) => each.worst !== null && each.worst.diverged;
    const blind = (each) => each.worst === null || !each.worst.judged;
    const seen = /* @__PURE__ */ new Set([node]);
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
    const kept = /* @__PURE__ */ new Set();
    for (const each of [...seen].sort((a, b) => b.id - a.id)) {
      const goesOn = each.outputs.some((value) => value && value.readers.some((reader) => kept.has(reader)));
      if (each === node || wrong(each) || goesOn) kept.add(each);
    }
    return kept;
  }

  // src/boxes.js
  var FONTS = { op: "600 12.5px", small: "400 11px", tiny: "400 10px" };
  function measured(thing, role, shown = {}) {
    const lines = textOf(thing, role, shown);
    const width = lines.reduce(
      (most, [text, font]) => Math.max(most, Math.min(220, textWidth(text.slice(0, 60), font))),
      0
    );
    const marks = ["error", "time"].map((mode) => textWidth(markOf(thing, mode), FONTS.small));
    const mark = Math.max(...marks) && Math.max(...marks) + 14;
    const lead2 = textWidth(lines[0][0].slice(0, 60), lines[0][1]);
    const room = thing.kind === "group" ? 58 : 26;
    const w = Math.ceil(
      Math.max(role === "input" || role === "output" ? 60 : 76, width + room, Math.min(220, lead2) + mark + room)
    );
    return { lines, w, h: 10 + 15 * lines.length + (thing.kind === "group" ? 4 : 0) };
  }
  function markOf(thing, mode) {
    if (mode === "time") return thing.seconds === null || thing.seconds === void 0 ? "" : milliseconds(thing.seconds);
    return thing.worst && thing.worst.error !== null ? short(thing.worst.error) : "";
  }
  function textOf(thing, role, shown) {
    if (thing.kind === "group") {
      const type = thing.type.slice(thing.type.lastIndexOf(".") + 1);
      const size = count(thing.size, "operation");
      if (role === "open") return [[`${thing.name}   ${type}`, FONTS.op]];
      return [
        [thing.name, FONTS.op],
        [type ? `${type} · ${size}` : size, FONTS.small]
      ];
    }
    if (thing.kind === "value")
      return [
        [thing.name, FONTS.small],
        [typed(thing), FONTS.tiny]
      ];
    const lines = [
      [bare(thing.op), FONTS.op],
      [thing.name, FONTS.small]
    ];
    if (shown.weights) return lines;
    const chips = [...new Set(thing.reads.map(chip).filter(Boolean))];
    if (chips.length) lines.push([chips.slice(0, 3).join("  ·  ") + (chips.length > 3 ? "  …" : ""), FONTS.tiny]);
    return lines;
  }
  function chip(value) {
    if (value.role !== "parameter" && !(value.producer && value.producer.fixed)) return "";
    let root = value;
    while (root.producer && root.producer.reads.length) [root] = root.producer.reads;
    if (root.role !== "parameter") return "";
    const shape = (value.shape || root.shape || []).join("×");
    return `${root.name.slice(-80).split(".").at(-1)}${shape ? ` ${shape}` : ""}`;
  }

  // src/drawing.js
  var FAR = 0.4;
  var DETAIL = 0.62;
  var LABELS = 0.8;
  var Drawing = class {
    constructor(svg) {
      this.svg = svg;
      this.world = s("g", { class: "world" });
      this.labels = s("g", { class: "far-labels" });
      svg.append(this.world, this.labels);
      this.drawn = /* @__PURE__ */ new Map();
    }
    /** Draws all anew; `look` says `colours`, `selected`, `marked` and `lit` (sets, `lit` null for all). */
    draw(scene, view, look) {
      Object.assign(this, { scene, look, level: level(view.k) });
      this.drawn.clear();
      this.layers = Object.fromEntries(["opened", "edges", "boxes"].map((layer) => [layer, s("g", { class: layer })]));
      this.world.replaceChildren(...Object.values(this.layers));
      this.svg.dataset.level = this.level;
      if (this.level === 0) this.afar();
      this.move(view);
    }
    /** The same, seen otherwise: what came into sight is drawn, what went out of it is not kept. */
    move(view) {
      if (!this.scene) return;
      if (level(view.k) !== this.level) {
        this.draw(this.scene, view, this.look);
        return;
      }
      this.world.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.k})`);
      this.world.style.setProperty("--k", view.k);
      if (this.level === 0) this.signs(view);
      else {
        this.labels.replaceChildren();
        this.sight(view);
      }
    }
    sight(view) {
      const [left, top] = [-view.x / view.k - 60, -view.y / view.k - 60];
      const [right, bottom] = [left + view.width / view.k + 120, top + view.height / view.k + 120];
      const wanted = /* @__PURE__ */ new Map();
      this.scene.boxes.forEach((box, at) => {
        if (!(box.x < right && box.x + box.w > left && box.y < bottom && box.y + box.h > top)) return;
        wanted.set(`b${at}`, () => this.box(box));
        if (box.kind === "open") wanted.set(`h${at}`, () => this.heading(box));
      });
      this.scene.edges.forEach((edge2, at) => {
        const { x, y, right: end, bottom: low } = edge2.box;
        if (x < right && end > left && y < bottom && low > top) wanted.set(`e${at}`, () => this.edge(edge2));
      });
      for (const [key, element] of this.drawn) {
        if (wanted.has(key)) continue;
        element.remove();
        this.drawn.delete(key);
      }
      for (const [key, make] of wanted) {
        if (this.drawn.has(key)) continue;
        const element = make();
        this.drawn.set(key, element);
        this.layers[element.dataset.layer].append(element);
      }
    }
    state(thing) {
      const { selected, marked, lit } = this.look;
      const first = thing.kind === "node" && thing.findings.some((found) => found.first);
      const dim = lit && !lit.has(thing);
      return [selected === thing && "selected", marked.has(thing) && "marked", dim && "dim", first && "first"].filter(Boolean).join(" ");
    }
    box(box) {
      const { thing, kind } = box;
      const depth = kind === "open" ? `nested-${thing.chain.length % 2}` : "";
      const classes = ["box", kind, depth, this.look.colours.of(thing), roleClass(box), this.state(thing)].join(" ");
      const element = s("g", { class: classes, transform: `translate(${box.x} ${box.y})` });
      element.dataset.layer = kind === "open" ? "opened" : "boxes";
      element.dataset[thing.kind] = thing.id;
      if (kind === "group") element.append(s("rect", { class: "stack", x: 4, y: 4, width: box.w, height: box.h, rx: 8 }));
      element.append(
        s("rect", {
          class: "card",
          width: box.w,
          height: box.h,
          rx: kind === "value" ? box.h / 2 : kind === "node" ? 6 : 9
        })
      );
      if (kind === "node") {
        element.append(
          s("path", {
            class: `strip family-${family(thing.op)}`,
            d: `M6 0.5H5.5A5 5 0 0 0 .5 5.5V${box.h - 5.5}A5 5 0 0 0 5.5 ${box.h - 0.5}H6Z`
          })
        );
      }
      if (kind === "group") element.append(...sign(false));
      if (kind !== "open") element.append(...this.lines(box));
      return element;
    }
    /** What is written on an opened group: over the lines that come in through it. */
    heading({ thing, x, y, w }) {
      const type = thing.type.slice(thing.type.lastIndexOf(".") + 1);
      const own2 = clip(thing.name, w - 60, FONTS.op);
      const at = 34 + textWidth(own2, FONTS.op) + 10;
      const element = s("g", { class: `heading ${this.state(thing)}`, transform: `translate(${x} ${y})` });
      element.dataset.layer = "boxes";
      element.append(...sign(true), s("text", { class: "op", x: 34, y: 20.5 }, own2));
      if (type && w - at > 50)
        element.append(s("text", { class: "small", x: at, y: 20.5 }, clip(type, w - at - 16, FONTS.small)));
      return element;
    }
    lines(box) {
      const { thing, cell, w } = box;
      const [left, anchor] = thing.kind === "value" ? [w / 2, "middle"] : [thing.kind === "group" ? 34 : 15, "start"];
      const error = markOf(thing, this.look.colours.mode);
      const mark = error ? textWidth(error, FONTS.small) + 10 : 0;
      const made = cell.lines.map(([text, font], at) => {
        const kind = font === FONTS.op ? "op" : font === FONTS.small ? "small" : "tiny";
        const room = w - (thing.kind === "value" ? 18 : left + 10) - (at === 0 ? mark : 0);
        return s(
          "text",
          { class: kind, x: left, y: 18.5 + 15 * at + (thing.kind === "group" ? 2 : 0), "text-anchor": anchor },
          clip(text, room, font)
        );
      });
      if (error && thing.kind !== "value")
        made.push(
          s(
            "text",
            { class: "small error", x: w - 9, y: thing.kind === "group" ? 20.5 : 18.5, "text-anchor": "end" },
            error
          )
        );
      return made;
    }
    edge(edge2) {
      const { selected, lit } = this.look;
      const { value } = edge2;
      const near = selected && (selected === value || selected === value.producer || value.readers.includes(selected));
      const dim = lit && !(value.producer && lit.has(value.producer) && (value.role === "output" || value.readers.some((node) => lit.has(node))));
      const element = s("g", { class: `edge ${near ? "near" : ""} ${dim ? "dim" : lit ? "on-path" : ""}` });
      element.dataset.layer = "edges";
      element.append(s("path", { class: "line", d: edge2.d ||= edge2.runs.map(curve).join("") }));
      if (edge2.heads.length)
        element.append(s("path", { class: "head", d: edge2.heads.map(([x, y]) => `M${x} ${y}l-3.5-6.5h7z`).join("") }));
      if (this.level === 3 && edge2.label && edge2.room > 24 && typed(value)) {
        const text = `${value.dtype || "?"} ${value.shape ? value.shape.join("×") || "scalar" : ""}`;
        element.append(
          s(
            "text",
            { class: "tiny type", x: edge2.label[0] + 5, y: edge2.label[1] + 12 },
            clip(text, edge2.room, FONTS.tiny)
          )
        );
      }
      return element;
    }
    /** All of it, in a few paths. */
    afar() {
      const kinds = { opened: /* @__PURE__ */ new Map(), boxes: /* @__PURE__ */ new Map() };
      for (const box of this.scene.boxes) {
        const colour = box.kind === "open" ? "plain" : this.look.colours.of(box.thing);
        const classes = ["box far", box.kind, colour, roleClass(box), this.state(box.thing)].join(" ");
        const parts = kinds[box.kind === "open" ? "opened" : "boxes"];
        parts.set(classes, `${parts.get(classes) || ""}M${box.x} ${box.y}h${box.w}v${box.h}h${-box.w}z`);
      }
      for (const [layer, parts] of Object.entries(kinds)) {
        for (const [classes, d] of parts)
          this.layers[layer].append(s("g", { class: classes }, s("path", { class: "card", d })));
      }
      const all = this.scene.edges.map((edge2) => edge2.d ||= edge2.runs.map(curve).join("")).join("");
      this.layers.edges.append(
        s("g", { class: `edge ${this.look.lit ? "dim" : ""}` }, s("path", { class: "line", d: all }))
      );
    }
    /** Names of groups, as large as on a map, where there is room for them; the outer ones first. */
    signs(view) {
      const taken = [];
      const signs = [];
      for (const { kind, thing, x, y, w, h: high } of this.scene.boxes) {
        if (kind === "node" || kind === "value" || signs.length > 60) continue;
        const [width, height] = [w * view.k, high * view.k];
        const text = clip(thing.name, width - 6, "600 11px");
        const [left, top] = [x * view.k + view.x + 4, y * view.k + view.y + 2];
        if (width < 34 || height < 15 || text.length < 2 || left > view.width || top > view.height || left + width < 0 || top < -20)
          continue;
        const box = { left, top, right: left + textWidth(text, "600 11px") + 6, bottom: top + 15 };
        if (taken.some(
          (other) => box.left < other.right && box.right > other.left && box.top < other.bottom && box.bottom > other.top
        ))
          continue;
        taken.push(box);
        signs.push(s("text", { class: "sign", x: left, y: top + 11 }, text));
      }
      this.labels.replaceChildren(...signs);
    }
  };
  function roleClass({ cell }) {
    return cell.role && cell.role !== "node" ? `role-${cell.role}` : "";
  }
  function level(scale) {
    return scale < FAR ? 0 : scale < DETAIL ? 1 : scale < LABELS ? 2 : 3;
  }
  function curve([x1, y1, bend, x2, end, y2]) {
    const middle = (bend + end) / 2;
    if (Math.abs(x1 - x2) < 0.6) return `M${x1} ${y1}V${y2}`;
    return `M${x1} ${y1}V${bend}C${x1} ${middle} ${x2} ${middle} ${x2} ${end}V${y2}`;
  }
  function sign(open) {
    const cross = open ? "M13 16h8" : "M13 16h8M17 12v8";
    return [
      s("rect", { class: "fold", x: 10, y: 9, width: 14, height: 14, rx: 4 }),
      s("path", { class: "fold-sign", d: cross })
    ];
  }

  // src/order.js
  function order(layers) {
    const number = () => layers.forEach((layer) => layer.forEach((spot, at) => spot.at = at));
    const size = layers.reduce((sum, layer) => sum + layer.length, 0);
    number();
    let [best, least] = [null, Infinity];
    for (let sweep2 = 0; sweep2 < (size > 4e3 ? 4 : 12) && least; sweep2++) {
      const down = sweep2 % 2 === 0;
      for (const layer of down ? layers : [...layers].reverse()) arrange(layer, down);
      const crossings = layers.reduce((sum, layer) => sum + crossed(layer), 0);
      if (crossings < least) [best, least] = [layers.map((layer) => [...layer]), crossings];
    }
    best.forEach((layer, at) => layers[at] = layer);
    number();
  }
  function arrange(layer, down) {
    const middle = (spot) => {
      const pairs = down ? spot.up : spot.down;
      if (!pairs.length) return spot.at;
      return pairs.reduce((sum, pair) => sum + farEnd(pair, down), 0) / pairs.length;
    };
    const goal = new Map(layer.map((spot) => [spot, middle(spot)]));
    layer.sort((a, b) => goal.get(a) - goal.get(b) || a.at - b.at);
    layer.forEach((spot, at) => spot.at = at);
  }
  function farEnd(pair, down) {
    const far = down ? pair.above : pair.below;
    return far.at + (far.w ? portOf(far, pair, down ? "out" : "into") / far.w : 0) * 0.9;
  }
  function portOf(spot, pair, side) {
    return spot.fixed ? spot.fixed[side].get(pair.link.key) || 0 : pair[side];
  }
  function crossed(layer) {
    const pairs = layer.flatMap((spot) => spot.down);
    if (pairs.length < 2) return 0;
    pairs.sort((a, b) => farEnd(a, true) - farEnd(b, true) || farEnd(a, false) - farEnd(b, false));
    const size = pairs.reduce((most, pair) => Math.max(most, pair.below.at), 0) + 2;
    const tree = new Int32Array(size + 1);
    let crossings = 0;
    pairs.forEach((pair, before) => {
      let smaller = 0;
      for (let at = pair.below.at + 1; at > 0; at -= at & -at) smaller += tree[at];
      crossings += before - smaller;
      for (let at = pair.below.at + 1; at <= size; at += at & -at) tree[at] += 1;
    });
    return crossings;
  }
  function spread(spots) {
    for (const spot of spots) {
      for (const [pairs, side, down] of [
        [spot.up, "into", true],
        [spot.down, "out", false]
      ]) {
        const lines = /* @__PURE__ */ new Map();
        for (const pair of [...pairs].sort((a, b) => farEnd(a, down) - farEnd(b, down))) {
          if (!lines.has(pair.link)) lines.set(pair.link, lines.size);
        }
        const room = Math.min(spot.w * 0.7, 22 * (lines.size - 1));
        const step = lines.size > 1 ? room / (lines.size - 1) : 0;
        for (const pair of pairs)
          pair[side] = spot.fixed ? portOf(spot, pair, side) : lines.get(pair.link) * step - room / 2;
      }
    }
  }

  // src/places.js
  var BESIDE = { box: 24, lane: 12 };
  var BETWEEN = 30;
  function place(layers) {
    for (const layer of layers) settle(layer, () => [0, 1e-3]);
    const size = layers.reduce((sum, layer) => sum + layer.length, 0);
    sweep(layers, size > 4e3 ? 5 : 13);
    const inner = layers.filter((layer) => !layer.some(pinned));
    if (!inner.length || inner.length === layers.length) return;
    const spots = inner.flat();
    const [left] = bounds(spots.map((spot) => spot.x - spot.w / 2));
    const [, right] = bounds(spots.map((spot) => spot.x + spot.w / 2));
    for (const layer of layers) if (layer.some(pinned)) settle(layer, () => [(left + right) / 2, 1]);
    sweep(inner, 3);
  }
  function sweep(layers, times) {
    const out = (pair) => pair.above.fixed ? 0 : pair.out;
    const into = (pair) => pair.below.fixed ? 0 : pair.into;
    const above = (spot) => spot.up.map((pair) => [pair.above.x + out(pair) - into(pair), pair.worth]);
    const below = (spot) => spot.down.map((pair) => [pair.below.x + into(pair) - out(pair), pair.worth]);
    for (let time = 0; time < times; time++) {
      const [near, turn] = time % 2 === 0 ? [above, layers] : [below, [...layers].reverse()];
      for (const layer of turn) settle(layer, (spot) => median(near(spot), spot));
    }
  }
  function pinned(spot) {
    return Boolean(spot.item && spot.item.pin);
  }
  function bounds(numbers) {
    return numbers.reduce(
      ([least, most], number) => [Math.min(least, number), Math.max(most, number)],
      [Infinity, -Infinity]
    );
  }
  function median(wanted, spot) {
    if (!wanted.length) return [spot.x, 0.05];
    wanted.sort((a, b) => a[0] - b[0]);
    const all = wanted.reduce((sum2, [, worth]) => sum2 + worth, 0);
    let sum = 0;
    for (let at = 0; at < wanted.length; at++) {
      sum += wanted[at][1];
      if (sum === all / 2) return [(wanted[at][0] + wanted[at + 1][0]) / 2, all];
      if (sum > all / 2) return [wanted[at][0], all];
    }
    return [spot.x, all];
  }
  function settle(layer, wanted) {
    const blocks = [];
    let shift = 0;
    layer.forEach((spot, at) => {
      if (at) shift += (layer[at - 1].w + spot.w) / 2 + (layer[at - 1].item && spot.item ? BESIDE.box : BESIDE.lane);
      const [x, worth] = wanted(spot);
      let block = { x: x - shift, worth, spots: [[spot, shift]] };
      while (blocks.length && blocks.at(-1).x >= block.x) {
        const last = blocks.pop();
        const worths = last.worth + block.worth;
        last.x = (last.x * last.worth + block.x * block.worth) / worths;
        last.worth = worths;
        for (const each of block.spots) last.spots.push(each);
        block = last;
      }
      blocks.push(block);
    });
    for (const { x, spots } of blocks) for (const [spot, offset] of spots) spot.x = x + offset;
  }
  function stack(layers) {
    const spots = layers.flat();
    const left = spots.reduce((least, spot) => Math.min(least, spot.x - spot.w / 2), Infinity);
    const right = spots.reduce((most, spot) => Math.max(most, spot.x + spot.w / 2), -Infinity);
    for (const spot of spots) spot.x -= left;
    let y = 0;
    for (const layer of layers) {
      const height = layer.reduce((most, spot) => Math.max(most, spot.h), 0);
      let far = 0;
      for (const spot of layer) {
        Object.assign(spot, { top: y, bottom: y + height, y: y + (height - spot.h) / 2 });
        if (spot.item) Object.assign(spot.item, { x: spot.x, y: spot.y });
        for (const pair of spot.down) far = Math.max(far, Math.abs(spot.x + pair.out - pair.below.x - pair.into));
      }
      y += height + BETWEEN + Math.min(24, far / 16);
    }
    const last = layers.at(-1) || [];
    return { width: spots.length ? right - left : 0, height: last.length ? last[0].bottom : 0 };
  }
  function lead(link) {
    const runs = [];
    const ends = [];
    for (const { above, below, out, into } of link.pairs) {
      const [x1, x2] = [above.x + out, below.x + into];
      const from = above.item ? above.y + above.h : above.top;
      const to = below.item ? below.y : below.top;
      runs.push([x1, from, above.bottom, x2, below.top, to]);
      if (below.item) ends.push([x2, to, below.item]);
    }
    return { link, runs, ends };
  }

  // src/ranks.js
  var MOST_LANES = 4e4;
  function rank(spots, links) {
    const readers = spots.map(() => /* @__PURE__ */ new Set());
    const sources = spots.map(() => /* @__PURE__ */ new Set());
    const given = spots.map(() => 0);
    for (const link of links) {
      given[link.from] += 1;
      for (const to of link.to) {
        readers[link.from].add(to);
        sources[to].add(link.from);
      }
    }
    const waits = sources.map((set) => set.size);
    const top = spots.some((spot) => spot.item.pin === "top") ? 1 : 0;
    for (const spot of spots) spot.rank = spot.item.pin === "top" ? 0 : top;
    const ready = [...spots.keys()].filter((at) => !waits[at]);
    for (let next = 0; next < ready.length; next++) {
      for (const to of readers[ready[next]]) {
        spots[to].rank = Math.max(spots[to].rank, spots[ready[next]].rank + 1);
        if (!--waits[to]) ready.push(to);
      }
    }
    for (const at of ready.reverse()) {
      if (spots[at].item.pin || !readers[at].size || sources[at].size >= given[at]) continue;
      spots[at].rank = Math.min(...[...readers[at]].map((to) => spots[to].rank)) - 1;
    }
    const last = spots.reduce((most, spot) => spot.item.pin === "bottom" ? most : Math.max(most, spot.rank), 0);
    for (const spot of spots) if (spot.item.pin === "bottom") spot.rank = last + 1;
  }
  function connect(spots, links) {
    const limit = [Infinity, 256, 64, 16, 4].find((most) => lanesOf(spots, links, most) <= MOST_LANES) || 4;
    const lanes = [];
    for (const link of links) {
      let last = spots[link.from];
      link.pairs = [];
      const passes = (to) => to.rank > last.rank && to.rank - last.rank <= limit;
      const goals = link.to.map((at) => spots[at]).filter(passes).sort((a, b) => a.rank - b.rank);
      link.left = link.to.map((at) => spots[at]).filter((to) => !goals.includes(to));
      while (goals.length) {
        while (goals.length && goals[0].rank === last.rank + 1) join(link, last, goals.shift());
        if (!goals.length) break;
        const lane = { w: 0, h: 0, rank: last.rank + 1, up: [], down: [], x: 0 };
        lanes.push(lane);
        join(link, last, lane);
        last = lane;
      }
    }
    return lanes;
  }
  function lanesOf(spots, links, most) {
    const length = (link, to) => spots[to].rank - spots[link.from].rank;
    const longest = (link) => Math.max(0, ...link.to.map((to) => length(link, to)).filter((ranks) => ranks <= most));
    return links.reduce((sum, link) => sum + Math.max(0, longest(link) - 1), 0);
  }
  function join(link, above, below) {
    const worth = above.item && below.item ? 1e3 : above.item || below.item ? 1 : 4;
    const pair = { link, above, below, out: 0, into: 0, worth };
    above.down.push(pair);
    below.up.push(pair);
    link.pairs.push(pair);
  }
  function sorted(spots) {
    const layers = [];
    for (const spot of spots) (layers[spot.rank] ||= []).push(spot);
    return Array.from(layers, (layer) => layer || []);
  }

  // src/layers.js
  function layered(items, links) {
    const spots = items.map((item, at) => ({
      item,
      at,
      w: item.w,
      h: item.h,
      up: [],
      down: [],
      x: 0,
      fixed: item.ports
    }));
    rank(spots, links);
    const lanes = connect(spots, links);
    const layers = sorted([...spots, ...lanes]);
    order(layers);
    spread(spots);
    place(layers);
    return { ...stack(layers), links: links.map((link) => lead(link)) };
  }

  // src/scene.js
  var HEAD = 32;
  var PAD = 18;
  var Scene = class {
    constructor(graph, shown) {
      this.graph = graph;
      this.open = /* @__PURE__ */ new Set();
      this.kept = /* @__PURE__ */ new Map();
      this.show(shown);
    }
    /** What is drawn beside operations: `tensors` between them, `weights` that they read. */
    show(shown) {
      this.shown = shown;
      this.kept.clear();
      this.cells = [];
      this.cellOf = /* @__PURE__ */ new Map();
      const { graph } = this;
      for (const value of graph.inputs) this.add(value, [], "input");
      for (const node of graph.nodes) if (shown.weights || !node.fixed) this.add(node, node.chain, "node");
      if (shown.weights) {
        for (const value of graph.values) if (weightOf(value)) this.add(value, common(value), "parameter");
      }
      for (const value of graph.values)
        if (shown.tensors && this.between(value)) this.add(value, value.producer.chain, value.role);
      for (const value of graph.outputs) this.add(value, [], "output");
      this.wires = graph.values.map((value) => this.wire(value)).filter(Boolean);
      this.content = /* @__PURE__ */ new Map([[null, []]]);
      for (const group of graph.groups) this.content.set(group, []);
      const holding = new Set(this.cells.flatMap((cell) => cell.chain));
      for (const group of graph.groups) if (holding.has(group)) this.content.get(group.chain.at(-2) || null).push(group);
      for (const cell of this.cells) this.content.get(cell.chain.at(-1) || null).push(cell);
    }
    between(value) {
      return value.producer && this.cellOf.has(value.producer) && (value.role === "intermediate" || value.role === "view");
    }
    add(thing, chain, role) {
      const cell = {
        kind: thing.kind === "node" ? "node" : "value",
        thing,
        chain,
        role,
        ...measured(thing, role, this.shown)
      };
      this.cells.push(cell);
      this.cellOf.set(role === "output" ? `out ${thing.id}` : thing, cell);
    }
    /** From where a value comes to where it goes; null if it is not drawn. */
    wire(value) {
      const { cellOf } = this;
      const own2 = cellOf.get(value);
      const maker = value.producer && cellOf.get(value.producer);
      const from = own2 || maker;
      if (!from) return null;
      const to = [...new Set(value.readers)].map((node) => cellOf.get(node)).filter(Boolean);
      if (cellOf.has(`out ${value.id}`)) to.push(cellOf.get(`out ${value.id}`));
      return { value, from, to, maker: own2 && maker };
    }
    /** Opens or closes a group; what is around it is laid out anew. */
    toggle(group, open = !this.open.has(group)) {
      if (open) this.open.add(group);
      else this.open.delete(group);
      for (const around of [null, ...group.chain]) this.kept.delete(around);
    }
    /** Opens all groups around a node or a group. */
    reveal(thing) {
      const around = thing.kind === "group" ? thing.chain.slice(0, -1) : thing.chain || [];
      const closed = around.filter((group) => !this.open.has(group));
      for (const group of closed) this.toggle(group, true);
      return closed.length > 0;
    }
    /** Lays it out: `boxes` from the outermost on, `edges`, `width` and `height`. */
    arrange() {
      this.join();
      const whole = this.container(null);
      const scene = { boxes: [], edges: [], width: whole.width, height: whole.height, boxOf: /* @__PURE__ */ new Map() };
      this.flatten(whole, 0, 0, scene);
      makeRoom(scene.edges);
      return scene;
    }
    /** The containers that are there to be seen around a cell, and what of the innermost one stands for it. */
    way(cell) {
      let depth = 0;
      while (depth < cell.chain.length && this.open.has(cell.chain[depth])) depth += 1;
      return [null, ...cell.chain.slice(0, depth), depth < cell.chain.length ? cell.chain[depth] : cell];
    }
    /** For each container, what each wire does there: from which item to which, and whether it comes in or goes out. */
    join() {
      this.ties = /* @__PURE__ */ new Map();
      const ways = new Map(this.cells.map((cell) => [cell, this.way(cell)]));
      for (const wire of this.wires) {
        if (wire.maker) this.tie(wire, `${wire.value.id} made`, ways.get(wire.maker), ways.get(wire.from));
        for (const cell of wire.to) this.tie(wire, wire.value.id, ways.get(wire.from), ways.get(cell));
      }
    }
    tie(wire, key, from, to) {
      let shared = 0;
      while (shared < from.length - 1 && shared < to.length - 1 && from[shared] === to[shared]) shared += 1;
      if (from[shared] === to[shared]) return;
      this.knot(from[shared - 1], wire, key, from[shared], to[shared]);
      for (let at = shared; at < from.length - 1; at++) this.knot(from[at], wire, key, from[at + 1], "bottom");
      for (let at = shared; at < to.length - 1; at++) this.knot(to[at], wire, key, "top", to[at + 1]);
    }
    knot(container, wire, key, from, to) {
      if (!this.ties.has(container)) this.ties.set(container, /* @__PURE__ */ new Map());
      const knots = this.ties.get(container);
      if (!knots.has(key)) knots.set(key, { key, wire, from, to: /* @__PURE__ */ new Set() });
      knots.get(key).to.add(to);
    }
    container(group) {
      if (this.kept.has(group)) return this.kept.get(group);
      const items = this.content.get(group).map((thing) => this.item(thing));
      const places = new Map(items.map((item, at) => [item.thing, at]));
      const pinned2 = (pin, key) => items.push({ pin, key, w: 0, h: 0 }) - 1;
      const links = [...(this.ties.get(group) || /* @__PURE__ */ new Map()).values()].map(({ key, wire, from, to }) => ({
        ...{ key, wire, from: from === "top" ? pinned2("top", key) : places.get(from) },
        to: [...to].map((thing) => thing === "bottom" ? pinned2("bottom", key) : places.get(thing))
      }));
      const made = { group, items, ...layered(items, links) };
      this.frame(made);
      this.kept.set(group, made);
      return made;
    }
    /** The room around what is in a container, and its ports, from its middle. */
    frame(made) {
      const { group, items } = made;
      const title = group ? measured(group, "open").w + 40 : 0;
      made.shift = { x: PAD + Math.max(0, (title - made.width - 2 * PAD) / 2), y: group ? HEAD : PAD };
      made.inner = made.height;
      made.width = Math.max(made.width + 2 * PAD, title);
      made.height += made.shift.y + (group ? 12 : PAD);
      const of = (pin) => items.filter((item) => item.pin === pin);
      const port = (item) => [item.key, made.shift.x + item.x - made.width / 2];
      made.ports = { into: new Map(of("top").map(port)), out: new Map(of("bottom").map(port)) };
    }
    item(thing) {
      if (thing.kind !== "group") return { thing, w: thing.w, h: thing.h };
      if (!this.open.has(thing)) return { thing, ...measured(thing, "folded") };
      const inside = this.container(thing);
      return { thing, inside, w: inside.width, h: inside.height, ports: inside.ports };
    }
    /** Where all is in the end. */
    flatten(container, x, y, scene) {
      const [left, top] = [x + container.shift.x, y + container.shift.y];
      for (const item of container.items.filter(({ thing }) => thing)) {
        const thing = item.thing.kind === "group" ? item.thing : item.thing.thing;
        const kind = item.inside ? "open" : item.thing.kind;
        const cell = item.thing.kind === "group" ? item : item.thing;
        const box = { kind, thing, cell, x: left + item.x - item.w / 2, y: top + item.y, w: item.w, h: item.h };
        scene.boxes.push(box);
        scene.boxOf.set(cell.role === "output" ? `out ${thing.id}` : thing, box);
        if (item.inside) this.flatten(item.inside, box.x, box.y, scene);
      }
      const lines = /* @__PURE__ */ new Map();
      for (const { link } of container.links) lines.set(link.from, (lines.get(link.from) || 0) + 1);
      for (const { link, runs, ends } of container.links) {
        if (runs.length) scene.edges.push(edge(link, runs, ends, left, top, container, y, lines.get(link.from) === 1));
      }
    }
  };
  function makeRoom(edges) {
    const labelled = edges.filter((edge2) => edge2.label);
    labelled.sort((a, b) => a.label[1] - b.label[1] || a.label[0] - b.label[0]);
    labelled.forEach((edge2, at) => {
      const [, y] = edge2.label;
      edge2.room = 130;
      for (let next = at + 1; next < labelled.length && labelled[next].label[1] - y < 12; next++) {
        const [left, right] = [edge2, labelled[next]].sort((a, b) => a.label[0] - b.label[0]);
        left.room = Math.min(left.room ?? 130, right.label[0] - left.label[0] - 4);
      }
    });
  }
  function edge(link, runs, ends, left, top, container, y, alone) {
    const last = y + container.height;
    const start = container.items[link.from];
    const from = (at) => start.pin && at === 0 ? y : at + top;
    const placed = runs.map(([x1, y1, bend, x2, end, y2]) => [
      x1 + left,
      from(y1),
      bend + top,
      x2 + left,
      end + top,
      y2 + top
    ]);
    const heads = [];
    for (const [x, at, item] of ends) {
      if (item.pin) placed.push([x + left, at + top, last, x + left, last, last]);
      else if (!item.inside) heads.push([x + left, at + top]);
    }
    const xs = placed.flatMap((run) => [run[0], run[3]]);
    const ys = placed.flatMap((run) => [run[1], run[5]]);
    const box = { x: Math.min(...xs), y: Math.min(...ys), right: Math.max(...xs), bottom: Math.max(...ys) };
    const labelled = alone && !start.pin && !start.inside;
    const low = start.thing && start.thing.kind === "group" ? 4 : 0;
    return {
      value: link.wire.value,
      runs: placed,
      heads,
      box,
      label: labelled ? [placed[0][0], placed[0][1] + low] : null
    };
  }
  function weightOf(value) {
    return value.role === "parameter" && !value.producer && value.readers.length > 0;
  }
  function common(value) {
    const [first, ...others] = value.readers.map((node) => node.chain);
    return first.filter((group, depth) => others.every((chain) => chain[depth] === group));
  }
  function openWell(scene) {
    const boxes = (group) => scene.content.get(group).length;
    let shown = boxes(null);
    let level2 = scene.content.get(null).filter((thing) => thing.kind === "group");
    while (level2.length && shown < 40) {
      const next = [];
      for (const group of level2.sort((a, b) => boxes(a) - boxes(b))) {
        const inside = scene.content.get(group);
        if (inside.length === 1 && inside[0].kind !== "group") continue;
        const alone = inside.length === 1 || shown < 10;
        if (shown + boxes(group) - 1 > (alone ? 60 : 40)) continue;
        scene.toggle(group, true);
        shown += boxes(group) - 1;
        next.push(...scene.content.get(group).filter((thing) => thing.kind === "group"));
      }
      level2 = next;
    }
  }

  // src/pane.js
  var CALM = matchMedia("(prefers-reduced-motion: reduce)");
  var Pane = class {
    constructor(app, graph) {
      Object.assign(this, { app, graph, view: { k: 1, x: 0, y: 0, width: 0, height: 0 }, pointers: /* @__PURE__ */ new Map() });
      this.svg = s("svg", {
        class: "graph",
        tabindex: 0,
        role: "application",
        "aria-label": `Graph ${graph.name}: arrows move, Enter opens, ? shows all keys`
      });
      const button = (words, text, act) => h("button", { type: "button", title: words, "aria-label": words, onclick: act }, text);
      this.tools = h(
        "div",
        { class: "zoom" },
        button("Zoom in (+)", "+", () => this.zoom(1.4)),
        button("Zoom out (−)", "−", () => this.zoom(1 / 1.4)),
        button("Fit (f)", "⤢", () => this.fit())
      );
      const size = h("small", {}, count(graph.nodes.length, "operation"));
      this.heading = h("h2", {}, h("span", {}, this.title), " ", size);
      this.element = h("section", { class: "pane", "aria-label": this.title }, this.heading, this.svg, this.tools);
      this.drawing = new Drawing(this.svg);
      this.scene = new Scene(graph, app.shown);
      openWell(this.scene);
      this.arrange();
      this.listen();
      new ResizeObserver(() => this.resize()).observe(this.svg);
    }
    get title() {
      return {
        graph: this.app.data.before ? "Compiled" : "Graph",
        before: "Exported",
        function: `Function ${this.graph.of}`
      }[this.graph.role];
    }
    arrange() {
      this.arranged = this.scene.arrange();
    }
    redraw() {
      if (this.view.width) this.drawing.draw(this.arranged, this.view, this.app.look);
    }
    /** Takes the room that it has; `anew`: as if it were seen for the first time. */
    resize(anew = false) {
      const { width, height } = this.svg.getBoundingClientRect();
      const { view } = this;
      const first = width > 0 && (anew || !view.width);
      if (width && !first)
        Object.assign(view, { x: view.x + (width - view.width) / 2, y: view.y + (height - view.height) / 2 });
      if (width) Object.assign(view, { width, height });
      if (first) this.start();
      else if (width) this.redraw();
    }
    /** What is seen first: all of it if it can be read, else its beginning, or what is selected. */
    start() {
      const { width } = this.arranged;
      const wide = (this.view.width - 24) / width;
      const k = Math.max(Math.min(1, this.whole()), Math.min(0.8, Math.max(0.45, wide)));
      Object.assign(this.view, this.inFrame(k));
      if (width * k > this.view.width && this.graph.inputs.length)
        this.center(this.boxOf(this.graph.inputs[0]), false, true);
      if (this.app.selected && this.app.selected.graph === this.graph) this.show(this.app.selected, false);
      this.redraw();
    }
    fit() {
      this.go(this.inFrame(Math.min(1.25, this.whole())));
    }
    /** Where the graph begins: below the frame's own heading, where it has one. */
    get top() {
      const { offsetTop, offsetHeight } = this.heading;
      return offsetHeight ? offsetTop + offsetHeight + 6 : 8;
    }
    /** The scale at which all of it is seen. */
    whole() {
      const { width, height } = this.arranged;
      return Math.min((this.view.width - 24) / width, (this.view.height - this.top - 12) / height);
    }
    /** The view at a scale: in the middle, or from its beginning on if it is too tall. */
    inFrame(k) {
      const { width, height } = this.arranged;
      const middle = (this.view.height - height * k) / 2;
      return { k, x: (this.view.width - width * k) / 2, y: Math.max(this.top, middle) };
    }
    zoom(by, x = this.view.width / 2, y = this.view.height / 2, animated = true) {
      const k = Math.max(5e-3, Math.min(4, this.view.k * by));
      const change = k / this.view.k;
      this.go({ k, x: x - (x - this.view.x) * change, y: y - (y - this.view.y) * change }, animated);
    }
    pan(x, y, animated = false) {
      this.go({ k: this.view.k, x: this.view.x + x, y: this.view.y + y }, animated);
    }
    /** To another view, in a fifth of a second. */
    go(to, animated = true) {
      cancelAnimationFrame(this.going);
      const from = { ...this.view };
      const begin = performance.now();
      const step = (now) => {
        const part = animated && !CALM.matches && !document.hidden ? Math.min(1, Math.max(0, now - begin) / 200) : 1;
        const eased = 1 - (1 - part) ** 3;
        for (const axis of ["k", "x", "y"]) this.view[axis] = from[axis] + (to[axis] - from[axis]) * eased;
        this.drawing.move(this.view);
        if (part < 1) this.going = requestAnimationFrame(step);
      };
      if (animated && !CALM.matches) this.going = requestAnimationFrame(step);
      else step(begin);
    }
    boxOf(thing) {
      const { boxOf } = this.arranged;
      return boxOf.get(thing) || boxOf.get(`out ${thing.id}`);
    }
    /** The box of a node, or of the closed group that it is in. */
    visible(thing) {
      if (thing.kind === "value" && !this.boxOf(thing)) return thing.producer ? this.visible(thing.producer) : null;
      const inner = [...thing.chain || [], thing].map((each) => this.arranged.boxOf.get(each)).filter(Boolean);
      return inner.at(-1) || this.boxOf(thing) || null;
    }
    /** Opens what is around it, and moves to it. */
    show(thing, animated = true) {
      if (thing.kind === "node" && thing.fixed && !this.app.shown.weights) this.app.toggleShown("weights");
      if (this.scene.reveal(thing.kind === "value" && thing.producer ? thing.producer : thing)) this.arrange();
      this.redraw();
      this.center(this.visible(thing), animated);
    }
    center(box, animated = true, atTop = false) {
      if (!box) return;
      const k = Math.max(this.view.k, Math.min(1, this.view.width / (box.w + 40), 0.85));
      const x = this.view.width / 2 - (box.x + box.w / 2) * k;
      const y = atTop ? this.top - box.y * k : this.view.height / 2 - (box.y + Math.min(box.h, this.view.height / k) / 2) * k;
      this.go({ k, x, y }, animated);
    }
    flash(thing) {
      const box = this.visible(thing);
      if (!box) return;
      const ring = s("rect", {
        class: "flash",
        x: box.x - 6,
        y: box.y - 6,
        width: box.w + 12,
        height: box.h + 12,
        rx: 12
      });
      this.drawing.world.append(ring);
      setTimeout(() => ring.remove(), 1200);
    }
    /** Opens or closes a group, which stays where it is on the screen. */
    toggle(group) {
      this.change(() => this.scene.toggle(group), group);
      this.app.say(`${group.name} ${this.scene.open.has(group) ? "opened" : "closed"}`);
    }
    /** Changes the scene and lays it out anew; a thing stays where it is on the screen. */
    change(scene, kept) {
      const before = kept && this.visible(kept);
      scene();
      this.arrange();
      const after = before && this.visible(kept);
      if (after) {
        this.view.x += (before.x - after.x) * this.view.k;
        this.view.y += (before.y - after.y) * this.view.k;
      }
      this.redraw();
    }
    /** What is looked at: what is selected, if that is in sight, else what is nearest to the middle. */
    get lookedAt() {
      const { x, y, k, width, height } = this.view;
      const aside = (box) => [box.x + box.w / 2 - (width / 2 - x) / k, box.y + box.h / 2 - (height / 2 - y) / k];
      const chosen = this.app.selected && this.visible(this.app.selected);
      if (chosen) {
        const [right, down] = aside(chosen);
        if (Math.abs(right) * k < width / 2 && Math.abs(down) * k < height / 2) return this.app.selected;
      }
      const far = (box) => Math.hypot(...aside(box));
      const steady = this.arranged.boxes.filter((box) => box.kind !== "open" && box.kind !== "value");
      return steady.length ? steady.reduce((a, b) => far(b) < far(a) ? b : a).thing : null;
    }
    /** Opens all groups that can be seen, or closes all. */
    openAll(open) {
      const shown = this.arranged.boxes.filter((box) => box.kind === "group").map((box) => box.thing);
      for (const group of open ? shown : [...this.scene.open]) this.scene.toggle(group, open);
      this.arrange();
      this.start();
    }
    /** What is at a place on the screen, and whether it is where a group opens. */
    at(event) {
      const frame = this.svg.getBoundingClientRect();
      const [x, y] = [
        (event.clientX - frame.left - this.view.x) / this.view.k,
        (event.clientY - frame.top - this.view.y) / this.view.k
      ];
      const inside = (box2) => x >= box2.x && x <= box2.x + box2.w && y >= box2.y && y <= box2.y + (box2.kind === "open" ? Math.max(HEAD, 14 / this.view.k) : box2.h);
      const box = this.arranged.boxes.findLast(inside);
      if (!box) return null;
      const folds = box.kind === "open" || box.kind === "group";
      return { box, thing: box.thing, onSign: folds && x - box.x < 30 && y - box.y < HEAD };
    }
    listen() {
      const { svg, pointers } = this;
      svg.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      svg.addEventListener("pointerdown", (event) => {
        pointers.set(event.pointerId, event);
        this.moved = false;
        this.app.focus(this);
      });
      svg.addEventListener("pointermove", (event) => pointers.size ? this.drag(event) : this.app.hover(this, event));
      for (const end of ["pointerup", "pointercancel"])
        svg.addEventListener(end, (event) => pointers.delete(event.pointerId));
      svg.addEventListener("pointerleave", () => this.app.hover(this, null));
      svg.addEventListener("click", (event) => this.click(event));
      svg.addEventListener("focus", () => this.app.focus(this));
    }
    wheel(event) {
      event.preventDefault();
      const frame = this.svg.getBoundingClientRect();
      const lines = event.deltaMode === 1 ? 16 : 1;
      const by = Math.exp(-Math.max(-120, Math.min(120, event.deltaY * lines)) * (event.ctrlKey ? 0.01 : 22e-4));
      this.zoom(by, event.clientX - frame.left, event.clientY - frame.top, false);
    }
    /** One pointer moves the graph; two move and zoom it. */
    drag(event) {
      const before = this.pointers.get(event.pointerId);
      if (!before) return;
      const other = [...this.pointers.values()].find((each) => each.pointerId !== event.pointerId);
      const [x, y] = [event.clientX - before.clientX, event.clientY - before.clientY];
      if (!this.moved && Math.hypot(x, y) < 4) return;
      if (!this.moved) this.svg.setPointerCapture(event.pointerId);
      this.moved = true;
      this.pointers.set(event.pointerId, event);
      this.pan(other ? x / 2 : x, other ? y / 2 : y);
      if (!other) return;
      const far = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
      const frame = this.svg.getBoundingClientRect();
      const middle = [(event.clientX + other.clientX) / 2 - frame.left, (event.clientY + other.clientY) / 2 - frame.top];
      this.zoom(far(event) / Math.max(1, far(before)), ...middle, false);
    }
    click(event) {
      if (this.moved) return;
      const hit = this.at(event);
      const folds = hit && hit.thing.kind === "group";
      const { tapped } = this;
      const twice = tapped && hit && tapped.thing === hit.thing && event.timeStamp - tapped.time < 400;
      this.tapped = hit && !twice ? { thing: hit.thing, time: event.timeStamp } : null;
      if (folds && (hit.onSign || twice || event.detail === 2)) this.toggle(hit.thing);
      else this.app.select(hit ? hit.thing : null, { from: this });
    }
  };

  // src/figures.js
  var BARS = { width: 300, height: 90 };
  function histogram([low, high, expected, actual]) {
    const most = Math.max(1, ...expected, ...actual);
    const step = BARS.width / expected.length;
    const bars = (counts, kind) => {
      const bar = (number, at) => {
        const tall = number ? Math.max(1, number / most * BARS.height) : 0;
        return `M${at * step + 0.5} ${BARS.height}v${-tall}h${step - 1}v${tall}z`;
      };
      return s("path", { class: `bars ${kind}`, d: counts.map(bar).join("") });
    };
    const words = `Histogram over ${expected.length} bins from ${short(low)} to ${short(high)}: reference ${expected.join(", ")}; actual ${actual.join(", ")}`;
    const picture = s(
      "svg",
      {
        class: "histogram",
        viewBox: `0 0 ${BARS.width} ${BARS.height}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": words
      },
      bars(expected, "expected"),
      bars(actual, "actual")
    );
    const key = (kind, text) => h("span", { class: `key ${kind}` }, text);
    return h(
      "figure",
      {},
      picture,
      h(
        "figcaption",
        {},
        numberCell(numeric(low)),
        h("span", {}, key("expected", "reference"), key("actual", "actual")),
        numberCell(numeric(high))
      )
    );
  }
  function statisticsTable(expected, actual) {
    const rows = ["what", "minimum", "maximum", "mean", "std", "nan", "inf"];
    const cell = (of, row) => h("td", {}, !of || of[row] === null ? "–" : row === "what" ? of[row] : numberCell(of[row]));
    const alike = expected && actual && expected.content && expected.content === actual.content;
    return h(
      "table",
      { class: "facts" },
      h(
        "thead",
        {},
        h("tr", {}, h("th", {}), h("th", { scope: "col" }, "reference"), h("th", { scope: "col" }, "actual"))
      ),
      h(
        "tbody",
        {},
        rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row), cell(expected, row), cell(actual, row))),
        alike && h("tr", {}, h("th", { scope: "row" }, "bits"), h("td", { colspan: 2 }, "all equal"))
      )
    );
  }

  // src/panel.js
  var Panel = class {
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
          onclick: () => this.app.select(null)
        },
        "×"
      );
      const parts = {
        node: () => this.ofNode(thing),
        group: () => this.ofGroup(thing),
        value: () => this.ofValue(thing)
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
          `${count(graph.nodes.length, "operation")}, ${count(graph.values.length, "value")}, ${count(graph.groups.length, "module call")}`
        )
      ]);
      return [
        h(
          "p",
          { class: "hint" },
          "Click a box for what is known of it. Double click opens a layer. ",
          h("kbd", {}, "?"),
          " shows all keys."
        ),
        ...facts
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
        this.origin(node)
      ];
    }
    ofGroup(group) {
      const ops = /* @__PURE__ */ new Map();
      for (const node of group.graph.nodes) if (node.chain.includes(group)) ops.set(node.op, (ops.get(node.op) || 0) + 1);
      const sorted2 = [...ops].sort((a, b) => b[1] - a[1]);
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
            pane.scene.open.has(group) ? "Close this layer" : "Open this layer"
          )
        ),
        group.seconds !== null ? this.facts("Time", [["all operations", milliseconds(group.seconds)]]) : null,
        group.worst ? [h("h3", {}, "Worst inside"), h("p", {}, this.link(group.worst.value)), this.finding(group.worst)] : null,
        this.facts(
          count(group.size, "operation"),
          sorted2.map(([op, number]) => [name(op), number.toLocaleString("en")])
        )
      ];
    }
    ofValue(value) {
      return [
        h("p", { class: "kind" }, { parameter: "weight", view: "view of another value" }[value.role] || value.role),
        h("h2", {}, name(value.name)),
        h("p", { class: "full-name" }, typed(value)),
        value.findings.map((found) => this.finding(found)),
        value.producer ? [h("h3", {}, "Made by"), h("ul", { class: "links" }, h("li", {}, this.link(value.producer)))] : null,
        value.readers.length ? [
          h("h3", {}, "Read by"),
          h(
            "ul",
            { class: "links" },
            value.readers.map((node) => h("li", {}, this.link(node)))
          )
        ] : null
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
          onclick: () => this.app.select(thing, { move: true })
        },
        words
      );
    }
    breadcrumb(thing) {
      const around = thing.kind === "group" ? thing.chain.slice(0, -1) : thing.chain;
      if (!around.length) return null;
      return h(
        "nav",
        { class: "path", "aria-label": "Modules around it" },
        around.map((group) => [this.link(group), h("span", { class: "sep", "aria-hidden": "true" }, "›")])
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
          found.first ? h("small", { class: "first-mark" }, " first divergence") : null
        ),
        found.error !== null ? h("p", { class: "big" }, numberCell(found.error), h("small", {}, " error")) : null,
        found.text ? h("p", {}, found.text) : null,
        found.evidence ? h("p", { class: "muted" }, `reference: ${found.evidence}`) : null,
        found.seconds !== null ? h(
          "p",
          {},
          "takes ",
          h("data", { class: "number", "data-value": exact(found.seconds) }, milliseconds(found.seconds))
        ) : null,
        facts.length ? this.facts("", facts) : null,
        found.expected || found.actual ? statisticsTable(found.expected, found.actual) : null,
        found.histogram ? histogram(found.histogram) : null
      );
    }
    values(title, values) {
      if (!values.length) return null;
      const row = (value) => value ? h("li", {}, this.link(value), h("small", {}, typed(value))) : h("li", { class: "muted" }, "left out");
      return [h("h3", {}, title), h("ul", { class: "links" }, values.map(row))];
    }
    attributes(node) {
      return node.attributes.length ? this.facts(
        "Attributes",
        node.attributes.map(([key, text]) => [name(key), h("code", {}, name(text))])
      ) : null;
    }
    origin(node) {
      const known = this.app.data.before && node.graph.role === "graph" ? this.app.data.before.byName : /* @__PURE__ */ new Map();
      const unknown = node.origins.filter((origin) => !known.has(origin));
      const forward = node.gradientOf && (node.graph.byName.get(node.gradientOf) || known.get(node.gradientOf));
      const facts = [
        node.target && ["translates", name(node.target)],
        node.source && ["source", name(node.source)],
        node.code && ["generated code", name(node.code)],
        node.gradientOf && ["gradient of", forward ? this.link(forward) : name(node.gradientOf)],
        node.module && ["module", name(node.module)],
        unknown.length && ["computes", unknown.map((origin) => h("div", {}, name(origin)))]
      ].filter(Boolean);
      const calls = node.stack.map(
        ([path, type, source]) => h("li", {}, name(path || "(the model)"), " ", h("small", {}, [type, source].filter(Boolean).join(" · ")))
      );
      return [
        facts.length ? this.facts("From", facts) : null,
        calls.length ? [h("h3", {}, "Calls around it"), h("ol", { class: "stack" }, calls)] : null
      ];
    }
    facts(title, rows) {
      const table = h(
        "table",
        { class: "facts" },
        h(
          "tbody",
          {},
          rows.map(([key, held]) => h("tr", {}, h("th", { scope: "row" }, key), h("td", {}, held)))
        )
      );
      return [title ? h("h3", {}, title) : null, table];
    }
  };

  // src/paper.js
  function listenToPrinter(app) {
    let kept = [];
    addEventListener("beforeprint", () => {
      const panes = [...app.panes.values()].filter((pane) => pane.element.isConnected);
      kept = panes.map((pane) => [pane, { ...pane.view }]);
      for (const pane of panes) {
        const { width, height } = pane.arranged;
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

  // src/plot.js
  var MARGIN = { left: 52, right: 14, top: 10, bottom: 26, lane: 15 };
  var Plot = class {
    constructor(app) {
      this.app = app;
      this.axis = h(
        "select",
        { "aria-label": "Against", onchange: () => this.draw() },
        h("option", { value: "depth" }, "against depth"),
        h("option", { value: "order" }, "against order")
      );
      this.svg = s("svg", { role: "img", class: "errors" });
      this.svg.addEventListener("pointermove", (event) => this.hover(event));
      this.svg.addEventListener("pointerleave", () => app.tip.show(null));
      this.svg.addEventListener("click", (event) => this.pick(event));
      this.element = h(
        "section",
        { class: "plot", "aria-label": "Error against depth" },
        h("div", { class: "bar" }, h("h2", {}, "Error"), this.axis),
        this.svg
      );
      new ResizeObserver(soon(() => this.draw())).observe(this.svg);
    }
    at(found) {
      if (this.axis.value === "order") return Math.max(0, found.order);
      return found.node ? found.node.depth : 0;
    }
    /** Lines for what has no place on a logarithmic scale: NaN and infinities, zero, and what was not judged. */
    height(found) {
      const { error } = found;
      if (!found.judged || error === null) return this.lanes.none;
      if (!Number.isFinite(error)) return this.lanes.bad;
      if (error === 0) return this.lanes.zero;
      return this.bottom - (Math.log10(error) - this.low) / (this.high - this.low) * (this.bottom - this.top);
    }
    draw() {
      const { width, height } = this.svg.getBoundingClientRect();
      if (!width) return;
      const { findings } = this.app.data;
      const errors = findings.map((found) => Math.log10(found.error)).filter(Number.isFinite);
      this.low = Math.floor(errors.reduce((a, b) => Math.min(a, b), 0));
      this.high = Math.max(this.low + 1, Math.ceil(errors.reduce((a, b) => Math.max(a, b), -Infinity)));
      const bad = findings.some((found) => found.error !== null && !Number.isFinite(found.error));
      const low = height - MARGIN.bottom;
      this.lanes = { none: low - 6, zero: low - 6 - MARGIN.lane, bad: MARGIN.top + 4 };
      [this.top, this.bottom] = [MARGIN.top + (bad ? MARGIN.lane + 6 : 0), low - 2 * MARGIN.lane - 6];
      const most = findings.reduce((far, found) => Math.max(far, this.at(found)), 1);
      this.spots = findings.map((found) => ({
        found,
        x: MARGIN.left + this.at(found) / most * (width - MARGIN.left - MARGIN.right),
        y: this.height(found)
      }));
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.svg.setAttribute(
        "aria-label",
        `Error ${this.axis.value === "order" ? "in the order of the run" : "against depth"}: ${count(findings.length, "value")}, errors from 1e${this.low} to 1e${this.high}`
      );
      this.svg.replaceChildren(...this.grid(width, bad), ...this.axisText(width, height, most), ...this.dots());
    }
    grid(width, bad) {
      const line = (y, text, kind = "") => [
        s("path", { class: `grid ${kind}`, d: `M${MARGIN.left} ${Math.round(y) + 0.5}H${width - MARGIN.right}` }),
        s("text", { class: "tiny", x: MARGIN.left - 8, y: y + 3.5, "text-anchor": "end" }, text)
      ];
      const step = Math.ceil((this.high - this.low) / Math.max(1, Math.floor((this.bottom - this.top) / 22)));
      const decades = [];
      for (let at = this.low; at <= this.high; at += step) {
        decades.push(
          ...line(this.bottom - (at - this.low) / (this.high - this.low) * (this.bottom - this.top), `1e${at}`)
        );
      }
      return [
        ...decades,
        ...line(this.lanes.zero, "0", "lane"),
        ...line(this.lanes.none, "none", "lane"),
        ...bad ? line(this.lanes.bad, "NaN, ∞", "lane") : []
      ];
    }
    axisText(width, height, most) {
      const text = (x, words, anchor) => s("text", { class: "tiny", x, y: height - 8, "text-anchor": anchor }, words);
      return [
        text(MARGIN.left, "inputs", "start"),
        text((MARGIN.left + width) / 2, this.axis.value, "middle"),
        text(width - MARGIN.right, most.toLocaleString("en"), "end")
      ];
    }
    /** One path for all dots of a kind: a line of no length with round ends is one. */
    dots() {
      const kinds = /* @__PURE__ */ new Map();
      for (const { found, x, y } of this.spots) {
        const kind = `dots ${found.graph.role} status-${STATUSES.indexOf(found.status)}`;
        kinds.set(kind, `${kinds.get(kind) || ""}M${x.toFixed(1)} ${y.toFixed(1)}h0`);
      }
      const dots = [...kinds].sort((a, b) => a[0] < b[0] ? 1 : -1).map(([kind, d]) => s("path", { class: kind, d }));
      const first = this.spots.find((spot) => spot.found === this.app.data.first);
      if (first) dots.push(s("circle", { class: "first-ring", cx: first.x, cy: first.y, r: 7 }));
      const chosen = this.spots.filter(
        ({ found }) => this.app.selected && (found.node === this.app.selected || found.value === this.app.selected)
      );
      return [...dots, ...chosen.map(({ x, y }) => s("circle", { class: "chosen-ring", cx: x, cy: y, r: 5 }))];
    }
    near(event) {
      const frame = this.svg.getBoundingClientRect();
      const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
      let [best, least] = [null, 18];
      for (const spot of this.spots || []) {
        const far = Math.hypot(spot.x - x, spot.y - y);
        if (far < least) [best, least] = [spot, far];
      }
      return best && best.found;
    }
    hover(event) {
      const found = this.near(event);
      this.svg.classList.toggle("on-dot", Boolean(found));
      this.app.tip.show(found ? found.node || found.value : null, event);
    }
    pick(event) {
      const found = this.near(event);
      if (found) this.app.select(found.node || found.value, { move: true });
    }
  };

  // src/search.js
  var MOST_FOUND = 100;
  var Search = class {
    constructor(app) {
      this.app = app;
      this.entries = app.data.graphs.flatMap((graph) => [
        ...graph.groups,
        ...graph.nodes,
        ...graph.inputs,
        ...graph.outputs
      ]);
      this.list = h("ul", { class: "found", role: "listbox", id: "found", "aria-label": "Found", hidden: true });
      this.input = h("input", {
        ...{
          type: "search",
          placeholder: "Search  ( / )",
          "aria-label": "Search nodes, values and modules",
          autocomplete: "off",
          spellcheck: "false"
        },
        ...{ role: "combobox", "aria-expanded": "false", "aria-controls": "found", "aria-autocomplete": "list" },
        ...{
          oninput: () => this.find(),
          onkeydown: (event) => this.key(event),
          onfocus: () => this.input.value && this.find(),
          onblur: () => setTimeout(() => this.close(), 150)
        }
      });
      this.element = h("div", { class: "search", role: "search" }, this.input, this.list);
    }
    find() {
      const wanted = this.input.value.trim().toLowerCase();
      const all = wanted ? this.entries.filter((thing) => wordsOf(thing).includes(wanted)) : [];
      const rank2 = (thing) => own(thing).startsWith(wanted) ? 0 : own(thing).includes(wanted) ? 1 : 2;
      this.found = all.map((thing) => [rank2(thing), thing]).sort((a, b) => a[0] - b[0]).slice(0, MOST_FOUND).map(([, thing]) => thing);
      this.chosen = 0;
      const more = all.length > MOST_FOUND ? h("li", { class: "muted more" }, `and ${(all.length - MOST_FOUND).toLocaleString("en")} more`) : null;
      const none = wanted && !all.length ? h("li", { class: "muted more" }, "Nothing is called so.") : null;
      this.list.replaceChildren(...[...this.found.map((thing, at) => this.entry(thing, at)), more, none].filter(Boolean));
      this.list.hidden = !wanted;
      this.input.setAttribute("aria-expanded", wanted ? "true" : "false");
      this.intoSight();
      this.mark();
    }
    /** The list is wider than the box above it, which stands at the left, in the middle or at the right of the page. */
    intoSight() {
      const { right } = this.element.getBoundingClientRect();
      this.list.style.right = `${Math.min(0, right - this.list.offsetWidth - 8)}px`;
    }
    entry(thing, at) {
      const op = { node: () => thing.op, group: () => thing.type.split(".").at(-1) || "module", value: () => thing.role }[thing.kind]();
      const where = thing.graph === this.app.data.main ? "" : `${{ before: "exported", function: "function" }[thing.graph.role]} · `;
      const path = thing.kind === "group" ? thing.path : thing.kind === "node" && thing.group ? thing.group.path : typed(thing.kind === "value" ? thing : thing.outputs.find(Boolean) || {});
      return h(
        "li",
        {
          role: "option",
          id: `found-${at}`,
          onpointerdown: (event) => event.preventDefault(),
          onclick: () => this.go(at)
        },
        h("b", {}, name(op.slice(0, 80))),
        name(thing.name.slice(0, 160)),
        h("small", {}, where, name(path.slice(0, 160)))
      );
    }
    mark() {
      for (const [at, entry] of [...this.list.children].entries())
        entry.setAttribute("aria-selected", at === this.chosen ? "true" : "false");
      const chosen = this.found.length ? this.list.children[this.chosen] : null;
      if (chosen) {
        chosen.scrollIntoView({ block: "nearest" });
        this.input.setAttribute("aria-activedescendant", chosen.id);
      } else this.input.removeAttribute("aria-activedescendant");
    }
    key(event) {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step && this.found && this.found.length) {
        this.chosen = (this.chosen + step + this.found.length) % this.found.length;
        this.mark();
      } else if (event.key === "Enter" && this.found && this.found.length) this.go(this.chosen);
      else if (event.key === "Escape") {
        this.input.value = "";
        this.close();
        this.app.active.svg.focus();
      } else return;
      event.preventDefault();
      event.stopPropagation();
    }
    go(at) {
      this.close();
      const thing = this.found[at];
      this.app.select(thing, { move: true });
      this.app.paneOf(thing).svg.focus({ preventScroll: true });
    }
    close() {
      this.list.hidden = true;
      this.input.setAttribute("aria-expanded", "false");
    }
  };
  function own(thing) {
    return thing.lower ||= (thing.kind === "group" ? thing.path : thing.name).toLowerCase();
  }
  function wordsOf(thing) {
    if (thing.words) return thing.words;
    const values = thing.kind === "node" ? [...thing.inputs, ...thing.outputs].filter(Boolean).map((value) => value.name) : [];
    thing.words = [thing.name, thing.op, thing.path, thing.type, thing.module, thing.group && thing.group.path, ...values].filter(Boolean).join("\n").toLowerCase();
    return thing.words;
  }

  // src/table.js
  var ROW = 27;
  var TEXT = {
    value: (row) => row.value.name,
    operator: (row) => row.node ? row.node.op : row.value.role,
    module: (row) => row.node ? row.node.module || row.node.chain.at(-1)?.path || "" : "",
    type: (row) => typed(row.value)
  };
  var Table = class {
    constructor(app) {
      this.app = app;
      this.rows = rowsOf(app.data);
      this.columns = columnsOf(app.data);
      this.sort = { column: this.columns[0], down: false };
      this.filter = h("input", {
        type: "search",
        placeholder: "Filter rows",
        "aria-label": "Filter rows",
        oninput: () => this.choose()
      });
      const statuses = [...new Set(this.rows.map((row) => row.found && row.found.status).filter(Boolean))];
      this.status = h(
        "select",
        { "aria-label": "Status", onchange: () => this.choose() },
        h("option", { value: "" }, "any status"),
        statuses.map((status) => h("option", { value: status }, status))
      );
      this.number = h("span", { class: "muted", role: "status" });
      this.head = h(
        "tr",
        { "aria-rowindex": 1 },
        this.columns.map((column) => this.header(column))
      );
      this.above = h("tr", { class: "space", "aria-hidden": "true" });
      this.below = h("tr", { class: "space", "aria-hidden": "true" });
      this.body = h("tbody", {});
      const widths2 = h(
        "colgroup",
        {},
        this.columns.map((column) => h("col", { class: column.kind }))
      );
      this.table = h("table", { class: "rows", "aria-label": "All rows" }, widths2, h("thead", {}, this.head), this.body);
      this.scroller = h(
        "div",
        {
          class: "scroller",
          tabindex: 0,
          role: "region",
          "aria-label": "Rows: up and down select",
          onscroll: soon(() => this.fill()),
          onkeydown: (event) => this.key(event)
        },
        this.table
      );
      this.element = h(
        "section",
        { class: "table", "aria-label": "Table" },
        h("div", { class: "bar" }, this.filter, statuses.length ? this.status : null, this.number),
        this.scroller
      );
      new ResizeObserver(() => this.fill()).observe(this.scroller);
      this.choose();
    }
    header(column) {
      const button = h("button", { type: "button", onclick: () => this.order(column) }, column.title);
      return h("th", { scope: "col", class: column.kind, title: column.title }, button);
    }
    order(column) {
      this.sort = { column, down: this.sort.column === column ? !this.sort.down : column.kind === "number" };
      this.choose();
    }
    choose() {
      const wanted = this.filter.value.toLowerCase();
      const status = this.status.value;
      const fits = (row) => (!status || row.found.status === status) && (!wanted || row.words().includes(wanted));
      const { column, down } = this.sort;
      this.shown = this.rows.filter(fits);
      const keys = new Map(this.shown.map((row) => [row, (column.key || column.of)(row)]));
      this.shown.sort((a, b) => compared(keys.get(a), keys.get(b), down) || a.at - b.at);
      this.number.textContent = this.shown.length === this.rows.length ? count(this.rows.length, "row") : `${this.shown.length.toLocaleString("en")} of ${count(this.rows.length, "row")}`;
      this.table.setAttribute("aria-rowcount", this.shown.length + 1);
      for (const [at, header] of [...this.head.children].entries()) {
        const sorted2 = this.columns[at] === column;
        header.setAttribute("aria-sort", sorted2 ? down ? "descending" : "ascending" : "none");
      }
      this.scroller.scrollTop = 0;
      this.fill(true);
    }
    /** Makes the rows in sight, or all for the printer. */
    fill(anew = false, all = false) {
      const from = all ? 0 : Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - 8);
      const to = all ? this.shown.length : Math.min(this.shown.length, from + Math.ceil(this.scroller.clientHeight / ROW) + 16);
      if (!anew && from === this.from && to === this.to) return;
      Object.assign(this, { from, to });
      this.above.style.height = `${from * ROW}px`;
      this.below.style.height = `${(this.shown.length - to) * ROW}px`;
      const rows = this.shown.slice(from, to).map((row, at) => this.row(row, from + at));
      this.body.replaceChildren(this.above, ...rows, this.below);
    }
    row(row, at) {
      const chosen = this.app.selected && (this.app.selected === row.node || this.app.selected === row.value);
      const classes = [
        chosen && "selected",
        row.found && `status-${STATUSES.indexOf(row.found.status)}`,
        row.found && row.found.diverged && "diverged"
      ];
      const cells = this.columns.map((column) => {
        const held = column.of(row);
        if (column.kind.startsWith("number")) return h("td", { class: column.kind }, numberCell(held));
        return h(
          "td",
          { class: column.kind, title: String(held).slice(0, 500) },
          column.kind === "status" && h("span", { class: "dot" }),
          name(String(held).slice(0, 200))
        );
      });
      const element = h(
        "tr",
        {
          class: classes.filter(Boolean).join(" "),
          "aria-rowindex": at + 2,
          "aria-selected": chosen ? "true" : "false",
          onclick: () => this.pick(row)
        },
        cells
      );
      element.dataset.row = row.at;
      return element;
    }
    pick(row) {
      this.app.select(row.node || row.value, { move: true, from: this });
    }
    /** The selected row is shown, if it was not clicked here. */
    show(thing) {
      const at = this.shown.findIndex((row) => row.node === thing || row.value === thing);
      const { scrollTop, clientHeight } = this.scroller;
      if (at >= 0 && (at * ROW < scrollTop || (at + 3) * ROW > scrollTop + clientHeight))
        this.scroller.scrollTop = at * ROW - clientHeight / 2;
      this.fill(true);
    }
    key(event) {
      const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
      if (!step || !this.shown.length) return;
      event.preventDefault();
      event.stopPropagation();
      const now = this.shown.findIndex(
        (row) => this.app.selected && (row.node === this.app.selected || row.value === this.app.selected)
      );
      this.pick(this.shown[Math.max(0, Math.min(this.shown.length - 1, now + step))]);
      this.show(this.app.selected);
    }
  };
  function rowsOf(data) {
    const values = () => data.graphs.flatMap((graph) => graph.nodes.flatMap((node) => node.outputs.filter(Boolean)));
    const rows = data.findings.length ? data.findings.map((found) => ({ found, value: found.value })) : values().map((value) => ({ found: null, value }));
    rows.forEach((row, at) => {
      Object.assign(row, { at, node: row.value.producer, graph: row.value.graph });
      row.words = () => row.kept ||= [
        ...Object.values(TEXT).map((of) => of(row)),
        row.found ? `${row.found.status} ${row.found.text}` : ""
      ].join("\n").toLowerCase();
    });
    return rows;
  }
  function columnsOf(data) {
    const found = (title, kind, of) => ({ title, kind, of: (row) => of(row.found) });
    const some = (of) => data.findings.some((each) => of(each));
    const measures = [...new Set(data.findings.flatMap((each) => [...each.measures.keys()]))];
    const graphs = { graph: data.before ? "compiled" : "graph", before: "exported", function: "function" };
    return [
      {
        title: "#",
        kind: "number place",
        of: (row) => row.node ? row.node.id : -1,
        key: (row) => row.graph.place * 1e9 + (row.node ? row.node.id : -1)
      },
      data.graphs.length > 1 && { title: "graph", kind: "word", of: (row) => graphs[row.graph.role] },
      data.findings.length && found("status", "status", (each) => each.status),
      data.findings.length && found("error", "number", (each) => each.error),
      ...Object.keys(TEXT).map((title) => ({ title, kind: title === "operator" ? "word" : "text", of: TEXT[title] })),
      ...measures.map((measure) => found(measure, "number", (each) => each.measures.get(measure) ?? null)),
      some((each) => each.seconds !== null) && found("seconds", "number", (each) => each.seconds),
      some((each) => each.call) && found("call", "number", (each) => each.call),
      data.findings.length && found("kind", "word", (each) => each.stage),
      some((each) => each.evidence) && found("reference", "text", (each) => each.evidence),
      some((each) => each.text) && found("in words", "text", (each) => each.text)
    ].filter(Boolean);
  }
  function compared(a, b, down) {
    const [none, other] = [a === null, b === null];
    if (none || other) return none - other;
    const sign2 = down ? -1 : 1;
    if (typeof a === "string") return sign2 * (a < b ? -1 : a > b ? 1 : 0);
    const [x, y] = [Number.isNaN(a) ? Infinity : a, Number.isNaN(b) ? Infinity : b];
    return sign2 * (x < y ? -1 : x > y ? 1 : Number.isNaN(a) - Number.isNaN(b));
  }

  // src/tip.js
  var Tip = class {
    constructor() {
      this.element = h("div", { class: "tooltip", role: "tooltip", hidden: true });
    }
    show(thing, event) {
      const { element } = this;
      element.hidden = !thing;
      if (!thing) return;
      if (this.of !== thing) element.replaceChildren(...tipOf(thing));
      this.of = thing;
      const { offsetWidth: width, offsetHeight: height } = element;
      const [x, y] = [event.clientX, event.clientY];
      element.style.left = `${Math.max(4, Math.min(innerWidth - width - 8, x + 14))}px`;
      element.style.top = `${y + 18 + height > innerHeight ? y - height - 12 : y + 18}px`;
    }
  };
  function tipOf(thing) {
    const lines = [
      h(
        "p",
        {},
        h("b", {}, name((thing.op || thing.name).slice(0, 120))),
        thing.op ? [" ", name(thing.name.slice(0, 120))] : null
      )
    ];
    if (thing.kind === "node")
      lines.push(
        ...thing.outputs.filter(Boolean).slice(0, 3).map((value) => h("p", { class: "muted" }, `→ ${typed(value).slice(0, 120)}`))
      );
    if (thing.kind === "group")
      lines.push(h("p", { class: "muted" }, name(thing.type.slice(0, 120)), ` ${count(thing.size, "operation")}`));
    if (thing.kind === "value") lines.push(h("p", { class: "muted" }, `${thing.role}, ${typed(thing).slice(0, 120)}`));
    if (thing.worst)
      lines.push(
        h(
          "p",
          { class: `status-${STATUSES.indexOf(thing.worst.status)}` },
          h("span", { class: "dot" }),
          thing.worst.status,
          thing.worst.error !== null ? `, error ${short(thing.worst.error)}` : ""
        )
      );
    if (thing.seconds) lines.push(h("p", { class: "muted" }, milliseconds(thing.seconds)));
    return lines;
  }

  // src/top.js
  var MODES = { error: "error", status: "status", operator: "operator", time: "time", module: "module" };
  var Top = class {
    constructor(app) {
      this.app = app;
      this.toggles = {
        path: this.toggle("Path", "p", () => app.togglePath()),
        tensors: this.toggle("Values", "v", () => app.toggleShown("tensors")),
        weights: this.toggle("Weights", "w", () => app.toggleShown("weights"))
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
        this.icon("Keys (?)", "?", () => app.help.showModal())
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
  };
  function remarksOf(data) {
    const [headline, ...others] = data.remarks;
    if (!headline) return [];
    const lines = [h("p", { class: "headline" }, headline), others.map((remark) => h("p", {}, remark))];
    return [h("section", { class: "remarks", "aria-label": "Remarks" }, lines)];
  }
  function legendOf(colours) {
    const titles = { error: "Error", status: "Status", operator: "Operators", time: "Time" };
    const entry = ([kind, words]) => {
      const swatch = kind === "words" ? null : h("i", { class: "swatch" });
      return h("span", { class: `entry ${kind}` }, swatch, words ? h("span", {}, words) : null);
    };
    return [h("b", {}, titles[colours.mode] || "A colour for each module"), ...colours.legend().map(entry)];
  }
  function gripOf(drawer) {
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

  // src/main.js
  var App = class {
    constructor(data) {
      this.data = data;
      this.selected = null;
      this.path = null;
      this.shown = { tensors: false, weights: false };
      this.colours = new Colours(data);
      this.panes = /* @__PURE__ */ new Map();
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
      const marked = this.withGroups(selected && selected.counterparts || []);
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
          thing ? `${thing.op || ""} ${thing.name.slice(0, 200)}${thing.worst ? `, ${thing.worst.status}` : ""}` : "Nothing selected"
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
      if (this.path) {
        for (const value of start.graph.outputs) if (this.path.has(value.producer)) this.path.add(value);
      }
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
  };
  function readersOf(thing) {
    if (thing.kind === "value") return thing.readers;
    return (thing.outputs || []).flatMap((value) => value ? value.readers : []);
  }
  function makersOf(thing) {
    if (thing.kind === "value") return [thing.producer];
    const of = (value) => value && (value.producer || (value.role === "input" ? value : null));
    return (thing.inputs || []).map(of);
  }
  window.filch = new App(new Data(JSON.parse(document.getElementById("data").textContent)));
  requestAnimationFrame(() => {
    document.documentElement.dataset.drawn = String(Math.round(performance.now()));
    performance.mark("filch-drawn");
  });
})();
