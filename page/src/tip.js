// A few words on what is under the mouse.

import { STATUSES } from "./colour.js";
import { h, name } from "./dom.js";
import { typed } from "./model.js";
import { count, milliseconds, short } from "./numbers.js";

export class Tip {
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
}

function tipOf(thing) {
  const lines = [
    h(
      "p",
      {},
      h("b", {}, name((thing.op || thing.name).slice(0, 120))),
      thing.op ? [" ", name(thing.name.slice(0, 120))] : null,
    ),
  ];
  if (thing.kind === "node")
    lines.push(
      ...thing.outputs
        .filter(Boolean)
        .slice(0, 3)
        .map((value) => h("p", { class: "muted" }, `→ ${typed(value).slice(0, 120)}`)),
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
        thing.worst.error !== null ? `, error ${short(thing.worst.error)}` : "",
      ),
    );
  if (thing.seconds) lines.push(h("p", { class: "muted" }, milliseconds(thing.seconds)));
  return lines;
}
