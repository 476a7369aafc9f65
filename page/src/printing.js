// What the printer gets: the graph as it is drawn, fitted onto a page, or all lines of outlines; and all rows of the
// table.

import { Outline } from "./outline.js";

/** @import { App } from "./app.js" */
/** @import { View } from "./drawing.js" */
/** @import { Pane } from "./pane.js" */

/** @param {App} app */
export function listenToPrinter(app) {
  /** @type {[Pane, View][]} */
  let kept = [];
  addEventListener("beforeprint", () => {
    kept = [];
    for (const pane of app.shownPanes) {
      if (pane instanceof Outline) pane.fill({ all: true });
      else kept.push([pane, { ...pane.view }]);
    }
    for (const [pane] of kept) {
      const { width, height } = pane.arrangement;
      // In full detail: paper is read from nearby.
      Object.assign(pane.view, { k: 1, x: 0, y: 0, width, height });
      pane.redraw();
      pane.svg.setAttribute("viewBox", `-10 -10 ${width + 20} ${height + 20}`);
    }
    app.table.fill({ all: true });
  });
  addEventListener("afterprint", () => {
    for (const [pane, view] of kept) {
      Object.assign(pane.view, view);
      pane.svg.removeAttribute("viewBox");
      pane.redraw();
    }
    for (const pane of app.shownPanes) if (pane instanceof Outline) pane.redraw();
    app.table.fill();
  });
}
