// How a tensor and its reference are distributed: histograms and statistics.

import { html, numberElement, svg } from "./dom.js";
import { metricElement } from "./metrics.js";
import { parseNumber } from "./model.js";
import { shortNumber } from "./numbers.js";

/** @import { Child } from "./dom.js" */
/** @import { RawHistogram, Statistics } from "./model.js" */

const WIDTH = 300;
const HEIGHT = 90;

/**
 * Both histograms in one picture, over the same bins.
 * @param {RawHistogram} histogram
 */
export function histogramElement([rawLow, rawHigh, expected, actual]) {
  const [low, high] = [parseNumber(rawLow), parseNumber(rawHigh)];
  const most = Math.max(1, ...expected, ...actual);
  const step = WIDTH / expected.length;
  const bars = (/** @type {number[]} */ counts, /** @type {string} */ kind) => {
    const bar = (/** @type {number} */ number, /** @type {number} */ index) => {
      const height = number ? Math.max(1, (number / most) * HEIGHT) : 0; // one of a million is visible, too
      return `M${index * step + 0.5} ${HEIGHT}v${-height}h${step - 1}v${height}z`;
    };
    return svg("path", { class: `bars ${kind}`, d: counts.map(bar).join("") });
  };
  const range = `${expected.length} bins from ${shortNumber(low)} to ${shortNumber(high)}`;
  const picture = svg(
    "svg",
    {
      class: "histogram",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `Histogram of ${range}: reference ${expected.join(", ")}; actual ${actual.join(", ")}`,
    },
    bars(expected, "expected"),
    bars(actual, "actual"),
  );
  const key = (/** @type {string} */ kind, /** @type {string} */ text) => html("span", { class: `key ${kind}` }, text);
  const keys = html("span", {}, key("expected", "reference"), key("actual", "actual"));
  return html("figure", {}, picture, html("figcaption", {}, numberElement(low), keys, numberElement(high)));
}

/**
 * The statistics of both, side by side.
 * @param {Statistics | null} expected
 * @param {Statistics | null} actual
 */
export function statisticsTable(expected, actual) {
  const cell = (/** @type {Child} */ content) => html("td", {}, content ?? "–");
  const row = (/** @type {string} */ title, /** @type {Child[]} */ ...cells) =>
    html("tr", {}, html("th", { scope: "row" }, metricElement(title)), cells);
  const column = (/** @type {string} */ title) => html("th", { scope: "col" }, title);
  const numbers = /** @type {const} */ (["minimum", "maximum", "mean", "std", "nan", "inf"]);
  const equalBits = expected && actual && expected.content && expected.content === actual.content;
  return html(
    "table",
    { class: "facts" },
    html("thead", {}, html("tr", {}, html("th"), column("reference"), column("actual"))),
    html(
      "tbody",
      {},
      row("type", cell(expected?.what), cell(actual?.what)),
      numbers.map((name) => row(name, cell(numberElement(expected?.[name])), cell(numberElement(actual?.[name])))),
      equalBits && row("bits", html("td", { colspan: 2 }, "all equal")),
    ),
  );
}
