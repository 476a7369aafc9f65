// The drawer below the graph: plot and table, with an edge that changes its height.

import { html } from "./dom.js";

const LEAST_HEIGHT = 90; // pixels

/**
 * @param {(Element | null)[]} parts
 * @param {boolean} closed
 */
export function drawerElement(parts, closed) {
  const drawer = html("div", { class: closed ? "drawer closed" : "drawer" });
  drawer.append(resizeHandle(drawer), ...parts.filter((part) => part !== null));
  return drawer;
}

/** @param {HTMLElement} drawer */
function resizeHandle(drawer) {
  const resize = (/** @type {number} */ height) => {
    const limited = Math.max(LEAST_HEIGHT, Math.min(innerHeight * 0.8, height));
    drawer.style.setProperty("--height", `${limited}px`);
  };
  const label = "Height of the table: the up and down arrow keys change it";
  const handle = html("button", { type: "button", class: "grip", "aria-label": label });
  handle.addEventListener("pointerdown", (event) => handle.setPointerCapture(event.pointerId));
  handle.addEventListener("pointermove", (event) => {
    if (handle.hasPointerCapture(event.pointerId)) resize(innerHeight - event.clientY);
  });
  handle.addEventListener("keydown", (event) => {
    const step = event.key === "ArrowUp" ? 40 : event.key === "ArrowDown" ? -40 : 0;
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    resize(drawer.clientHeight + step);
  });
  return handle;
}
