// What was found of two implementations: where B leaves A, what it lacks, weights, and the evidence for values.

import { EVIDENCE, statusClass } from "./color.js";
import { html, nameElement } from "./dom.js";
import { count } from "./numbers.js";

/** @import { App } from "./app.js" */
/** @import { Child } from "./dom.js" */
/** @import { Finding, Graph, Item, PageData } from "./model.js" */
/** @typedef {[title: string, findings: Finding[]]} Section */

const MOST_SHOWN = 3; // departures beside the verdict
const MOST_LISTED = 40;

/**
 * What needs a look.
 * @param {PageData} data
 */
export function notable({ findings, main, reference }) {
  const of = (/** @type {Graph | null} */ graph, /** @type {string[]} */ ...statuses) =>
    findings.filter((finding) => finding.graph === graph && statuses.includes(finding.status));
  const isWeight = (/** @type {Finding} */ { value }) => value.role === "parameter";
  return {
    departures: of(main, "leaves A"),
    missing: of(reference, "not in B"),
    contradicted: of(reference, "contradicted"),
    notFound: of(main, "not found", "in part").filter(isWeight),
    unused: of(reference, "unused"),
  };
}

/**
 * Where B leaves A, and what else needs a look, beside the verdict.
 * @param {App} app
 * @returns {Child[]}
 */
export function notableElements(app) {
  const { departures, missing, contradicted, notFound, unused } = notable(app.data);
  const shown = departures.slice(0, MOST_SHOWN);
  const all = (/** @type {string} */ text, /** @type {boolean} */ some) =>
    some && html("button", { type: "button", class: "link", onclick: () => app.showOverview() }, text);
  const first = shown.map(({ value, node }) => {
    const place = node?.module || "the model";
    const line = node?.source.replace(/^.*[\\/]/, "");
    const onclick = () => app.select(node ?? value, { move: true });
    const name = node ? [html("b", {}, nameElement(node.op)), " in ", nameElement(place)] : nameElement(value.name);
    const button = html("button", { type: "button", class: "link culprit", title: "Next: n", onclick }, name);
    return html("span", { class: "departure" }, button, line && html("small", {}, nameElement(line)));
  });
  return [
    shown.length > 0 && html("span", { class: "first-divergence" }, "B leaves A: ", first),
    all(`and ${departures.length - shown.length} more`, departures.length > shown.length),
    all(`${count(contradicted.length, "row")} of the mapping contradicted`, contradicted.length > 0),
    all(`${count(missing.length, "operation")} of A not in B`, missing.length > 0),
    all(`${count(notFound.length, "weight")} of B not found`, notFound.length > 0),
    all(`${count(unused.length, "weight")} of A unused`, unused.length > 0),
  ];
}

/**
 * The same as lists, and what the evidence is.
 * @param {App} app
 * @param {(item: Item) => HTMLElement} link a button that selects an item
 * @returns {Child[]}
 */
export function overviewElements(app, link) {
  const { departures, missing, contradicted, notFound, unused } = notable(app.data);
  /** @type {Section[]} */
  const sections = [
    ["B leaves A", departures],
    ["Contradicted rows of the mapping", contradicted],
    ["Operations of A that are not in B", missing],
    ["Weights of B that are not in A", notFound],
    ["Weights of A that are not in B", unused],
  ];
  return [
    html(
      "p",
      { class: "hint" },
      "Select a line to see where it is in the other one. ",
      html("kbd", {}, "?"),
      " lists all keys.",
    ),
    sections.filter(([, findings]) => findings.length).map((section) => sectionElements(section, link)),
    evidenceElements(app.data),
  ];
}

/**
 * @param {Section} section
 * @param {(item: Item) => HTMLElement} link
 */
function sectionElements([title, findings], link) {
  const rows = findings.slice(0, MOST_LISTED).map(({ node, value, text, status }) => {
    const note = text || (status === "in part" ? "only some of its numbers" : "");
    return html("li", {}, link(node ?? value), note && html("small", {}, note));
  });
  const more = findings.length - rows.length;
  return [
    html("h3", {}, title),
    html("ul", { class: "links" }, rows, more > 0 && html("li", { class: "muted" }, `and ${more} more: see the table`)),
  ];
}

/**
 * How many values there are for each kind of evidence, and what it means.
 * @param {PageData} data
 */
function evidenceElements({ findings, main }) {
  const values = findings.filter(({ value }) => value.role !== "parameter");
  const rows = EVIDENCE.flatMap((status) => {
    const same = values.filter((finding) => finding.status === status);
    if (!same.length) return [];
    const ofB = same.filter(({ graph }) => graph === main);
    const number = (/** @type {number} */ size) => html("td", {}, size ? size.toLocaleString("en") : "–");
    const text = (same.find(({ graph }) => graph !== main) ?? same[0]).evidence;
    return html(
      "tr",
      {},
      html(
        "th",
        { scope: "row", class: statusClass(same[0]) },
        html("span", { class: "dot" }),
        status,
        html("small", {}, text),
      ),
      number(same.length - ofB.length),
      number(ofB.length),
    );
  });
  if (!rows.length) return [];
  const heading = (/** @type {string} */ text) => html("th", { scope: "col" }, text);
  return [
    html("h3", {}, "Evidence that values are the same"),
    html(
      "table",
      { class: "facts evidence" },
      html("thead", {}, html("tr", {}, html("td"), heading("in A"), heading("in B"))),
      html("tbody", {}, rows),
    ),
  ];
}
