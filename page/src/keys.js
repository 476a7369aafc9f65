// What the keys do, and the list of them.

import { h } from "./dom.js";

const KEYS = [
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
  ["Escape", "nothing selected", (app) => app.select(null)],
];
const SIGNS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", "-": "−", Escape: "Esc" };

export function listenToKeys(app) {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, dialog");
    const pressing = event.key === "Enter" && event.target.closest("button, summary, a");
    if (typing || pressing || event.ctrlKey || event.metaKey || event.altKey) return;
    const found = KEYS.find(([key]) => key === event.key || (key === "+" && event.key === "="));
    if (!found) return;
    event.preventDefault();
    found[2](app);
  });
}

export function helpOn() {
  const rows = []; // a key without words of its own stands with the one before it
  for (const [key, words] of KEYS) {
    const sign = h("kbd", {}, SIGNS[key] || key);
    if (words) rows.push(h("tr", {}, h("th", { scope: "row" }, sign), h("td", {}, words)));
    else rows.at(-1).firstChild.append(" ", sign);
  }
  const close = h(
    "button",
    { type: "button", class: "close", "aria-label": "Close", onclick: () => dialog.close() },
    "×",
  );
  const mouse = h(
    "p",
    { class: "muted" },
    "The wheel and two fingers zoom, dragging moves, a double click opens and closes a layer.",
  );
  const dialog = h(
    "dialog",
    { "aria-label": "Keys", onclick: (event) => event.target === dialog && dialog.close() },
    h("div", {}, close, h("h2", {}, "Keys"), h("table", { class: "keys" }, h("tbody", {}, rows)), mouse),
  );
  return dialog;
}
