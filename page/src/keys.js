// The keys of the page, and the list of them.

import { html } from "./dom.js";

/** @import { App } from "./app.js" */
/** @typedef {[key: string, act: (app: App) => void]} Key */

/** Each line of the list: what its keys do. @type {[string, ...Key[]][]} */
const KEYS = [
  ["search", ["/", (app) => app.search.input.focus()]],
  ["show the whole graph", ["f", (app) => app.active.fit()]],
  ["zoom in and out", ["+", (app) => app.active.zoom(1.4)], ["-", (app) => app.active.zoom(1 / 1.4)]],
  [
    "move the graph",
    ["ArrowLeft", (app) => app.active.pan(80, 0, true)],
    ["ArrowRight", (app) => app.active.pan(-80, 0, true)],
    ["ArrowUp", (app) => app.active.pan(0, 80, true)],
    ["ArrowDown", (app) => app.active.pan(0, -80, true)],
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
  ["table", ["t", (app) => app.toggleDrawer()]],
  ["light or dark", ["l", (app) => app.toggleTheme()]],
  ["this list", ["?", (app) => app.help.showModal()]],
  ["select nothing", ["Escape", (app) => app.select(null)]],
];
const ACTIONS = new Map(KEYS.flatMap(([, ...keys]) => keys));
const SYMBOLS = new Map([
  ["ArrowLeft", "←"],
  ["ArrowRight", "→"],
  ["ArrowUp", "↑"],
  ["ArrowDown", "↓"],
  ["-", "−"],
  ["Escape", "Esc"],
]);

/** @param {App} app */
export function listenToKeys(app) {
  document.addEventListener("keydown", (event) => {
    const target = event.target instanceof Element ? event.target : document.body;
    const typing = target.closest("input, select, textarea, dialog");
    const pressing = event.key === "Enter" && target.closest("button, summary, a");
    if (typing || pressing || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = ACTIONS.get(event.key === "=" ? "+" : event.key);
    if (!act) return;
    event.preventDefault();
    act(app);
  });
}

/** The list of keys, as a dialog. */
export function helpDialog() {
  const rows = KEYS.map(([text, ...keys]) => {
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
      html("p", { class: "muted" }, "Wheel: zoom. Drag: move. Double-click: open or close a group."),
    ),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // outside of its content
  });
  return dialog;
}
