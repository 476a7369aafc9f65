// One graph in its frame: moved by hand, wheel, fingers and keys; what is clicked is told to `app`.

import { h, s } from "./dom.js";
import { count } from "./numbers.js";
import { Drawing } from "./drawing.js";
import { HEAD, Scene, openWell } from "./scene.js";

const CALM = matchMedia("(prefers-reduced-motion: reduce)");

export class Pane {
  constructor(app, graph) {
    Object.assign(this, { app, graph, view: { k: 1, x: 0, y: 0, width: 0, height: 0 }, pointers: new Map() });
    this.svg = s("svg", {
      class: "graph",
      tabindex: 0,
      role: "application",
      "aria-label": `Graph ${graph.name}: arrows move, Enter opens, ? shows all keys`,
    });
    const button = (words, text, act) =>
      h("button", { type: "button", title: words, "aria-label": words, onclick: act }, text);
    this.tools = h(
      "div",
      { class: "zoom" },
      button("Zoom in (+)", "+", () => this.zoom(1.4)),
      button("Zoom out (−)", "−", () => this.zoom(1 / 1.4)),
      button("Fit (f)", "⤢", () => this.fit()),
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
      function: `Function ${this.graph.of}`,
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
    // What was in the middle stays there.
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
    const k = Math.max(0.005, Math.min(4, this.view.k * by));
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
    const inner = [...(thing.chain || []), thing].map((each) => this.arranged.boxOf.get(each)).filter(Boolean);
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
    const y = atTop
      ? this.top - box.y * k
      : this.view.height / 2 - (box.y + Math.min(box.h, this.view.height / k) / 2) * k;
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
      rx: 12,
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
    // Values come and go; operations and groups stay.
    const steady = this.arranged.boxes.filter((box) => box.kind !== "open" && box.kind !== "value");
    return steady.length ? steady.reduce((a, b) => (far(b) < far(a) ? b : a)).thing : null;
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
      (event.clientY - frame.top - this.view.y) / this.view.k,
    ];
    const inside = (box) =>
      x >= box.x &&
      x <= box.x + box.w &&
      y >= box.y &&
      y <= box.y + (box.kind === "open" ? Math.max(HEAD, 14 / this.view.k) : box.h);
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
    svg.addEventListener("pointermove", (event) => (pointers.size ? this.drag(event) : this.app.hover(this, event)));
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
    const by = Math.exp(-Math.max(-120, Math.min(120, event.deltaY * lines)) * (event.ctrlKey ? 0.01 : 0.0022));
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
    // Not `dblclick`: the first click draws the box anew, and browsers then see clicks on two things. And not
    // all count a finger's taps in `detail`, as they do a mouse's clicks.
    const { tapped } = this;
    const twice = tapped && hit && tapped.thing === hit.thing && event.timeStamp - tapped.time < 400;
    this.tapped = hit && !twice ? { thing: hit.thing, time: event.timeStamp } : null;
    if (folds && (hit.onSign || twice || event.detail === 2)) this.toggle(hit.thing);
    else this.app.select(hit ? hit.thing : null, { from: this });
  }
}
