// Finds nodes, values and modules by any part of what they are called.

import { h, name } from "./dom.js";
import { typed } from "./model.js";

const MOST_FOUND = 100;

export class Search {
  constructor(app) {
    this.app = app;
    this.entries = app.data.graphs.flatMap((graph) => [
      ...graph.groups,
      ...graph.nodes,
      ...graph.inputs,
      ...graph.outputs,
    ]);
    this.list = h("ul", { class: "found", role: "listbox", id: "found", "aria-label": "Found", hidden: true });
    this.input = h("input", {
      ...{
        type: "search",
        placeholder: "Search  ( / )",
        "aria-label": "Search nodes, values and modules",
        autocomplete: "off",
        spellcheck: "false",
      },
      ...{ role: "combobox", "aria-expanded": "false", "aria-controls": "found", "aria-autocomplete": "list" },
      ...{
        oninput: () => this.find(),
        onkeydown: (event) => this.key(event),
        onfocus: () => this.input.value && this.find(),
        onblur: () => setTimeout(() => this.close(), 150),
      },
    });
    this.element = h("div", { class: "search", role: "search" }, this.input, this.list);
  }

  find() {
    const wanted = this.input.value.trim().toLowerCase();
    const all = wanted ? this.entries.filter((thing) => wordsOf(thing).includes(wanted)) : [];
    // What begins with it is what was meant.
    const rank = (thing) => (own(thing).startsWith(wanted) ? 0 : own(thing).includes(wanted) ? 1 : 2);
    this.found = all
      .map((thing) => [rank(thing), thing])
      .sort((a, b) => a[0] - b[0])
      .slice(0, MOST_FOUND)
      .map(([, thing]) => thing);
    this.chosen = 0;
    const more =
      all.length > MOST_FOUND
        ? h("li", { class: "muted more" }, `and ${(all.length - MOST_FOUND).toLocaleString("en")} more`)
        : null;
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
    const op = { node: () => thing.op, group: () => thing.type.split(".").at(-1) || "module", value: () => thing.role }[
      thing.kind
    ]();
    const where =
      thing.graph === this.app.data.main ? "" : `${{ before: "exported", function: "function" }[thing.graph.role]} · `;
    const path =
      thing.kind === "group"
        ? thing.path
        : thing.kind === "node" && thing.group
          ? thing.group.path
          : typed(thing.kind === "value" ? thing : thing.outputs.find(Boolean) || {});
    return h(
      "li",
      {
        role: "option",
        id: `found-${at}`,
        onpointerdown: (event) => event.preventDefault(),
        onclick: () => this.go(at),
      },
      h("b", {}, name(op.slice(0, 80))),
      name(thing.name.slice(0, 160)),
      h("small", {}, where, name(path.slice(0, 160))),
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
}

function own(thing) {
  return (thing.lower ||= (thing.kind === "group" ? thing.path : thing.name).toLowerCase());
}

function wordsOf(thing) {
  if (thing.words) return thing.words;
  const values =
    thing.kind === "node" ? [...thing.inputs, ...thing.outputs].filter(Boolean).map((value) => value.name) : [];
  thing.words = [thing.name, thing.op, thing.path, thing.type, thing.module, thing.group && thing.group.path, ...values]
    .filter(Boolean)
    .join("\n")
    .toLowerCase();
  return thing.words;
}
