// What the printer gets.

/** Paper gets the graph as it is drawn, fitted onto a page, and then all rows. */
export function listenToPrinter(app) {
  let kept = [];
  addEventListener("beforeprint", () => {
    const panes = [...app.panes.values()].filter((pane) => pane.element.isConnected);
    kept = panes.map((pane) => [pane, { ...pane.view }]);
    for (const pane of panes) {
      const { width, height } = pane.arranged;
      // Paper is read from near: what would be small print on a screen is drawn, too.
      Object.assign(pane.view, { k: 1, x: 0, y: 0, width, height });
      pane.redraw();
      pane.svg.setAttribute("viewBox", `-10 -10 ${width + 20} ${height + 20}`);
    }
    app.table.fill(true, true);
  });
  addEventListener("afterprint", () => {
    for (const [pane, view] of kept) {
      Object.assign(pane.view, view);
      pane.svg.removeAttribute("viewBox");
      pane.redraw();
    }
    app.table.fill(true);
  });
}
