// The search box, with the list of what it finds.

import { className } from "./boxes.js";
import { contents, html, nameElement } from "./dom.js";
import { typeLabel } from "./model.js";
import { SearchIndex } from "./search.js";

/** @import { App } from "./app.js" */
/** @import { Item } from "./model.js" */

const MOST_SHOWN = 100;

/** The search box of the toolbar. */
export class SearchBox {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.index = new SearchIndex(app.data);
    /** @type {Item[]} */
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
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
      onfocus: () => this.input.value && this.update(),
      onblur: () => setTimeout(() => this.close(), 150),
    });
    this.element = html("div", { class: "search", role: "search" }, this.input, this.list);
  }

  update() {
    const found = this.index.find(this.input.value, this.app.active.graph);
    const wanted = this.input.value.trim() !== "";
    this.found = found.slice(0, MOST_SHOWN);
    this.chosen = 0;
    const note = (/** @type {string} */ text) => html("li", { class: "muted more" }, text);
    const more = found.length - this.found.length;
    const entries = this.found.map((item, index) => this.entry(item, index));
    this.list.replaceChildren(
      ...contents([
        entries,
        more > 0 && note(`and ${more.toLocaleString("en")} more`),
        wanted && !found.length && note("No name contains this text."),
      ]),
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
        onpointerdown: (/** @type {PointerEvent} */ event) => event.preventDefault(), // the input keeps the focus
        onclick: () => this.go(index),
      },
      html("b", {}, nameElement(kindOf(item).slice(0, 80))),
      nameElement(item.name.slice(0, 160)),
      html("small", {}, graph, " ", nameElement(placeOf(item).slice(0, 160))),
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
}

/** @param {Item} item */
function kindOf(item) {
  if (item.kind === "node") return item.op;
  if (item.kind === "group") return className(item.type) || "module";
  return item.role === "parameter" ? "weight" : item.role;
}

/**
 * The module of an item, else its type.
 * @param {Item} item
 */
function placeOf(item) {
  if (item.kind === "group") return item.path;
  if (item.kind === "value") return typeLabel(item);
  const [output] = item.written;
  return item.group?.path ?? (output ? typeLabel(output) : "");
}
