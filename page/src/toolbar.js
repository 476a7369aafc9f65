// The bar at the top of the page: title, search, choices and buttons; and the legend.

import { html, nameElement } from "./dom.js";

/** @import { App } from "./app.js" */
/** @import { LegendEntry, ColorMode } from "./color.js" */

const LINK = "Copy link";

/** The bar at the top of the page. */
export class Toolbar {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.toggles = {
      path: toggleButton("Path", "p", () => app.togglePath()),
      tensors: toggleButton("Values", "v", () => app.toggleShown("tensors")),
      weights: toggleButton("Weights", "w", () => app.toggleShown("weights")),
      constants: toggleButton("Constants", "x", () => app.toggleShown("constants")),
      unlinked: toggleButton("All operations", "a", () => app.toggleShown("unlinked")),
    };
    for (const [name, shown] of Object.entries(app.shown)) {
      this.setPressed(/** @type {keyof Toolbar["toggles"]} */ (name), shown);
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
      reference
        ? hasOperations && [weights, unlinked]
        : [this.graphSelect, this.colorSelect, tensors, weights, constants],
      button("Table", "t", () => app.toggleDrawer()),
      this.link,
      !reference && save,
      iconButton("Light or dark (l)", "◐", () => app.toggleTheme()),
      iconButton("Keys (?)", "?", () => app.help.showModal()),
    );
    const heading = html("h1", { title: title.slice(0, 500) }, nameElement(title || "Graph"));
    this.element = html("header", {}, heading, app.search.element, tools);
  }

  makeColorSelect() {
    const { colors } = this.app;
    const option = (/** @type {ColorMode} */ mode) =>
      html("option", { value: mode, selected: mode === colors.mode }, `Color: ${mode}`);
    const onchange = () => this.app.setColorMode(/** @type {ColorMode} */ (this.colorSelect.value));
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
    link.style.minWidth = `${link.getBoundingClientRect().width}px`; // buttons beside it stay where they are
    link.textContent = copied ? "Copied" : "See address bar";
    setTimeout(() => (link.textContent = LINK), 1500);
  }
}

/**
 * @param {string} text
 * @param {string} key that does the same
 * @param {() => void} onclick
 */
function button(text, key, onclick, kind = "") {
  return html("button", { type: "button", class: kind, title: `${text} (${key})`, onclick }, text);
}

/**
 * @param {string} text
 * @param {string} key
 * @param {() => void} onclick
 */
function toggleButton(text, key, onclick) {
  const element = button(text, key, onclick, "toggle");
  element.setAttribute("aria-pressed", "false");
  return element;
}

/**
 * @param {string} title
 * @param {string} text
 * @param {() => void} onclick
 */
function textButton(title, text, onclick) {
  return html("button", { type: "button", title, onclick }, text);
}

/**
 * @param {string} title
 * @param {string} icon
 * @param {() => void} onclick
 */
function iconButton(title, icon, onclick) {
  return html("button", { type: "button", class: "icon", "aria-label": title, title, onclick }, icon);
}

/**
 * What the colors mean.
 * @param {{ mode: ColorMode, legend: () => LegendEntry[] }} colors
 */
export function legendElements(colors) {
  const titles = {
    error: "Error",
    status: "Status",
    operator: "Operators",
    time: "Time",
    module: "A color for each module",
  };
  const entry = (/** @type {LegendEntry} */ [cssClass, text]) => {
    const swatch = cssClass === "words" ? null : html("i", { class: "swatch" });
    return html("span", { class: `entry ${cssClass}` }, swatch, text && html("span", {}, text));
  };
  // The steps of a scale stay in one line, after their words.
  /** @type {LegendEntry[][]} */
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
