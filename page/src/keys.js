// The keys of the page, and the list of them.

import { html } from "./dom.js";

/** @import { App } from "./app.js" */
/** @typedef {[key: string, act: (app: App) => void]} Key */
/** @typedef {[text: string, ...keys: Key[]]} KeyLine what some keys do */

/** The keys of pages that draw graphs. @type {KeyLine[]} */
const DRAWING_KEYS = [
  ["search", ["/", (app) => app.search.input.focus()]],
  ["show the whole graph", ["f", (app) => app.drawing?.fit()]],
  ["zoom in and out", ["+", (app) => app.drawing?.zoom(1.4)], ["-", (app) => app.drawing?.zoom(1 / 1.4)]],
  [
    "move the graph",
    ["ArrowLeft", (app) => app.drawing?.pan(80, 0, true)],
    ["ArrowRight", (app) => app.drawing?.pan(-80, 0, true)],
    ["ArrowUp", (app) => app.drawing?.pan(0, 80, true)],
    ["ArrowDown", (app) => app.drawing?.pan(0, -80, true)],
  ],
  ["open or close the selected group, or the group around what is selected", ["Enter", (app) => app.toggleGroup()]],
  [
    "open all groups that are shown, close all",
    ["o", (app) => app.active.openAll()],
    ["c", (app) => app.active.closeAll()],
  ],
  [
    "select what reads the selected value, or what writes it",
    ["j", (app) => app.selectReader()],
    ["k", (app) => app.selectSource()],
  ],
  ["first divergence", ["d", (app) => app.showFirstDivergence()]],
  [
    "next divergence, previous divergence",
    ["n", (app) => app.selectNextDivergence()],
    ["N", (app) => app.selectPreviousDivergence()],
  ],
  ["highlight what the first divergence affects", ["p", (app) => app.togglePath()]],
  ["one graph, or both side by side", ["s", (app) => app.toggleSideBySide()]],
  ["values between operations", ["v", (app) => app.toggleShown("tensors")]],
  ["weights", ["w", (app) => app.toggleShown("weights")]],
  ["constants", ["x", (app) => app.toggleShown("constants")]],
];
/** The keys of pages with two outlines. @type {KeyLine[]} */
const OUTLINE_KEYS = [
  ["search", ["/", (app) => app.search.input.focus()]],
  [
    "previous line, next line",
    ["ArrowUp", (app) => app.outline?.step(-1)],
    ["ArrowDown", (app) => app.outline?.step(1)],
  ],
  [
    "close a module or go out of it, open it or go in",
    ["ArrowLeft", (app) => app.outline?.goOut()],
    ["ArrowRight", (app) => app.outline?.goIn()],
  ],
  ["open or close the selected module, or the module around what is selected", ["Enter", (app) => app.toggleGroup()]],
  ["go to the place in the other implementation", ["s", (app) => app.selectPlace()]],
  [
    "open all modules of this side, close all",
    ["o", (app) => app.active.openAll()],
    ["c", (app) => app.active.closeAll()],
  ],
  ["where B leaves A first", ["d", (app) => app.showFirstDivergence()]],
  [
    "next place where B leaves A, previous one",
    ["n", (app) => app.selectNextDivergence()],
    ["N", (app) => app.selectPreviousDivergence()],
  ],
  ["weights", ["w", (app) => app.toggleShown("weights")]],
  ["also operations that are not compared", ["a", (app) => app.toggleShown("unlinked")]],
];
/** The keys of all pages. @type {KeyLine[]} */
const COMMON_KEYS = [
  ["table", ["t", (app) => app.toggleDrawer()]],
  ["light or dark", ["l", (app) => app.toggleTheme()]],
  ["this list", ["?", (app) => app.help.showModal()]],
  ["select nothing", ["Escape", (app) => app.select(null)]],
];
const SYMBOLS = new Map([
  ["ArrowLeft", "←"],
  ["ArrowRight", "→"],
  ["ArrowUp", "↑"],
  ["ArrowDown", "↓"],
  ["-", "−"],
  ["Escape", "Esc"],
]);

/** @param {App} app */
function keysOf({ data }) {
  return [...(data.reference ? OUTLINE_KEYS : DRAWING_KEYS), ...COMMON_KEYS];
}

/** @param {App} app */
export function listenToKeys(app) {
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

/**
 * The list of keys, as a dialog.
 * @param {App} app
 */
export function helpDialog(app) {
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
      !app.data.reference &&
        html("p", { class: "muted" }, "Wheel: zoom. Drag: move. Double-click: open or close a group."),
    ),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // outside of its content
  });
  return dialog;
}
