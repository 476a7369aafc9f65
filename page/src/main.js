// Starts the page.

import { App } from "./app.js";
import { PageData } from "./model.js";

const raw = /** @type {HTMLElement} */ (document.getElementById("data")).textContent;
// For the console, and for tests.
Object.assign(window, { filch: new App(new PageData(JSON.parse(raw ?? ""))) });
requestAnimationFrame(() => {
  document.documentElement.dataset.drawn = String(Math.round(performance.now()));
  performance.mark("filch-drawn");
});
