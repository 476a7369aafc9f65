// Draws what is in sight of a scene as SVG. Seen from afar, boxes are rectangles alone, all those of one colour one
// path: thousands of elements would make moving about a slide show.

import { FONTS, markOf } from "./boxes.js";
import { family } from "./colour.js";
import { clip, s, textWidth } from "./dom.js";
import { typed } from "./model.js";

const FAR = 0.4; // under this scale nobody can read a box
const DETAIL = 0.62; // over this one, small print, too
const LABELS = 0.8; // and the types on the lines

export class Drawing {
  constructor(svg) {
    this.svg = svg;
    this.world = s("g", { class: "world" });
    this.labels = s("g", { class: "far-labels" });
    svg.append(this.world, this.labels);
    this.drawn = new Map();
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
    const wanted = new Map();
    this.scene.boxes.forEach((box, at) => {
      if (!(box.x < right && box.x + box.w > left && box.y < bottom && box.y + box.h > top)) return;
      wanted.set(`b${at}`, () => this.box(box));
      if (box.kind === "open") wanted.set(`h${at}`, () => this.heading(box));
    });
    this.scene.edges.forEach((edge, at) => {
      const { x, y, right: end, bottom: low } = edge.box;
      if (x < right && end > left && y < bottom && low > top) wanted.set(`e${at}`, () => this.edge(edge));
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
    return [selected === thing && "selected", marked.has(thing) && "marked", dim && "dim", first && "first"]
      .filter(Boolean)
      .join(" ");
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
        rx: kind === "value" ? box.h / 2 : kind === "node" ? 6 : 9,
      }),
    );
    if (kind === "node") {
      element.append(
        s("path", {
          class: `strip family-${family(thing.op)}`,
          d: `M6 0.5H5.5A5 5 0 0 0 .5 5.5V${box.h - 5.5}A5 5 0 0 0 5.5 ${box.h - 0.5}H6Z`,
        }),
      );
    }
    if (kind === "group") element.append(...sign(false));
    if (kind !== "open") element.append(...this.lines(box));
    return element;
  }

  /** What is written on an opened group: over the lines that come in through it. */
  heading({ thing, x, y, w }) {
    const type = thing.type.slice(thing.type.lastIndexOf(".") + 1);
    const own = clip(thing.name, w - 60, FONTS.op);
    const at = 34 + textWidth(own, FONTS.op) + 10;
    const element = s("g", { class: `heading ${this.state(thing)}`, transform: `translate(${x} ${y})` });
    element.dataset.layer = "boxes";
    element.append(...sign(true), s("text", { class: "op", x: 34, y: 20.5 }, own));
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
        clip(text, room, font),
      );
    });
    if (error && thing.kind !== "value")
      made.push(
        s(
          "text",
          { class: "small error", x: w - 9, y: thing.kind === "group" ? 20.5 : 18.5, "text-anchor": "end" },
          error,
        ),
      );
    return made;
  }

  edge(edge) {
    const { selected, lit } = this.look;
    const { value } = edge;
    const near = selected && (selected === value || selected === value.producer || value.readers.includes(selected));
    const dim =
      lit &&
      !(
        value.producer &&
        lit.has(value.producer) &&
        (value.role === "output" || value.readers.some((node) => lit.has(node)))
      );
    const element = s("g", { class: `edge ${near ? "near" : ""} ${dim ? "dim" : lit ? "on-path" : ""}` });
    element.dataset.layer = "edges";
    element.append(s("path", { class: "line", d: (edge.d ||= edge.runs.map(curve).join("")) }));
    if (edge.heads.length)
      element.append(s("path", { class: "head", d: edge.heads.map(([x, y]) => `M${x} ${y}l-3.5-6.5h7z`).join("") }));
    if (this.level === 3 && edge.label && edge.room > 24 && typed(value)) {
      const text = `${value.dtype || "?"} ${value.shape ? value.shape.join("×") || "scalar" : ""}`;
      element.append(
        s(
          "text",
          { class: "tiny type", x: edge.label[0] + 5, y: edge.label[1] + 12 },
          clip(text, edge.room, FONTS.tiny),
        ),
      );
    }
    return element;
  }

  /** All of it, in a few paths. */
  afar() {
    const kinds = { opened: new Map(), boxes: new Map() };
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
    const all = this.scene.edges.map((edge) => (edge.d ||= edge.runs.map(curve).join(""))).join("");
    this.layers.edges.append(
      s("g", { class: `edge ${this.look.lit ? "dim" : ""}` }, s("path", { class: "line", d: all })),
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
      if (
        width < 34 ||
        height < 15 ||
        text.length < 2 ||
        left > view.width ||
        top > view.height ||
        left + width < 0 ||
        top < -20
      )
        continue;
      const box = { left, top, right: left + textWidth(text, "600 11px") + 6, bottom: top + 15 };
      if (
        taken.some(
          (other) =>
            box.left < other.right && box.right > other.left && box.top < other.bottom && box.bottom > other.top,
        )
      )
        continue;
      taken.push(box);
      signs.push(s("text", { class: "sign", x: left, y: top + 11 }, text));
    }
    this.labels.replaceChildren(...signs);
  }
}

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

/** What opens and closes a group. */
function sign(open) {
  const cross = open ? "M13 16h8" : "M13 16h8M17 12v8";
  return [
    s("rect", { class: "fold", x: 10, y: 9, width: 14, height: 14, rx: 4 }),
    s("path", { class: "fold-sign", d: cross }),
  ];
}
