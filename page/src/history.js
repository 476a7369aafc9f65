// Keeps the address of the page up to date, and goes back to earlier ones.

import { addressOf, placeAt } from "./address.js";

/** @import { App } from "./app.js" */

const DELAY = 150; // milliseconds: keys that are held down make one entry of the history, and browsers limit their number

/** The history of what was shown. */
export class History {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.timer = 0;
    addEventListener("hashchange", () => this.restore());
  }

  /** The address of what is shown now. */
  get address() {
    const { active, selected, sideBySide } = this.app;
    const graph = selected?.graph ?? active.graph;
    const open = this.app.panes.get(graph)?.openGroups ?? null;
    return addressOf({ graph, sideBySide, item: selected, open });
  }

  /** Sets the address soon: a new entry of the history if another item or graph is shown, else in the same entry. */
  note() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.write(), DELAY);
  }

  write() {
    clearTimeout(this.timer);
    const { address } = this;
    if (address === location.hash) return;
    const withoutFolds = (/** @type {string} */ text) => text.replace(/&open=[^&]*/, "");
    const same = withoutFolds(address) === withoutFolds(location.hash);
    try {
      history[same ? "replaceState" : "pushState"](null, "", address);
    } catch {
      // A page inside another one may not change its address.
    }
  }

  /** Shows what the address says; without one, what the page began with. */
  restore() {
    clearTimeout(this.timer);
    const place = location.hash ? placeAt(location.hash, this.app.data) : null;
    if (place) this.app.showPlace(place);
    else this.app.showStart();
  }
}
