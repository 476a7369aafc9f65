// What a comparison says about the whole graph: its verdict, the first divergence, and its remarks.

import { html, nameElement } from "./dom.js";
import { notableElements } from "./overview.js";

/** @import { App } from "./app.js" */
/** @import { Finding, PageData, Verdict } from "./model.js" */

/** The sign of each verdict: colors alone would say nothing to some readers. @type {Record<Verdict, string>} */
const SIGNS = { close: "✓", different: "✗", "not close": "?" };

/**
 * The verdict as a badge, with a link to the first divergence; null if nothing was compared.
 * @param {App} app
 * @param {HTMLButtonElement} pathToggle
 */
export function verdictElement(app, pathToggle) {
  const { verdict, firstDivergence } = app.data;
  if (!verdict) return null;
  const badge = html("strong", { class: `badge ${verdict.replace(" ", "-")}` }, `${SIGNS[verdict]} ${verdict}`);
  if (app.data.reference) {
    return html("section", { class: "verdict", "aria-label": "Verdict" }, badge, notableElements(app));
  }
  const culprit = firstDivergence && [culpritElement(firstDivergence, app), pathToggle];
  return html("section", { class: "verdict", "aria-label": "Verdict" }, badge, culprit);
}

/**
 * @param {Finding} finding
 * @param {App} app
 */
function culpritElement({ node, value, graph }, app) {
  const onclick = () => app.showFirstDivergence();
  const place = node?.module || node?.group?.path;
  const attributes = { type: "button", class: "link culprit", title: "Show the first divergence (d)", onclick };
  return html(
    "span",
    { class: "first-divergence" },
    "first divergence: ",
    html("button", attributes, node && [html("b", {}, nameElement(node.op)), " "], nameElement((node ?? value).name)),
    place && [" in ", nameElement(place)],
    app.data.graphs.length > 1 && html("small", {}, `, ${app.data.titleOf(graph).toLowerCase()}`),
  );
}

/**
 * The headline, whole, and the other remarks, of which the first lines are shown until a button shows all.
 * @param {PageData} data
 */
export function remarksElement({ remarks: [headline, ...others] }) {
  if (!headline) return null;
  const rest = html(
    "div",
    { class: "others" },
    others.map((remark) => html("p", {}, remark)),
  );
  const more = html("button", { type: "button", class: "more", hidden: true, "aria-expanded": "false" }, "More");
  more.addEventListener("click", () => {
    const open = rest.classList.toggle("all");
    more.textContent = open ? "Less" : "More";
    more.setAttribute("aria-expanded", String(open));
  });
  new ResizeObserver(() => {
    if (!rest.classList.contains("all")) more.hidden = rest.scrollHeight <= rest.clientHeight + 1;
  }).observe(rest);
  const line = html("p", { class: "headline" }, headline);
  return html("section", { class: "remarks", "aria-label": "Remarks" }, html("div", {}, line, rest), more);
}
