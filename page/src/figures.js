// Small pictures of numbers: how a tensor and its reference are spread.

import { h, numberCell, s } from "./dom.js";
import { short } from "./numbers.js";
import { numeric } from "./model.js";

const BARS = { width: 300, height: 90 };

/** The histograms of both, one upon the other, over the same bins. */
export function histogram([low, high, expected, actual]) {
  const most = Math.max(1, ...expected, ...actual);
  const step = BARS.width / expected.length;
  const bars = (counts, kind) => {
    const bar = (number, at) => {
      const tall = number ? Math.max(1, (number / most) * BARS.height) : 0; // one of a million is to be seen, too
      return `M${at * step + 0.5} ${BARS.height}v${-tall}h${step - 1}v${tall}z`;
    };
    return s("path", { class: `bars ${kind}`, d: counts.map(bar).join("") });
  };
  const words = `Histogram over ${expected.length} bins from ${short(low)} to ${short(high)}: reference ${expected.join(", ")}; actual ${actual.join(", ")}`;
  const picture = s(
    "svg",
    {
      class: "histogram",
      viewBox: `0 0 ${BARS.width} ${BARS.height}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": words,
    },
    bars(expected, "expected"),
    bars(actual, "actual"),
  );
  const key = (kind, text) => h("span", { class: `key ${kind}` }, text);
  return h(
    "figure",
    {},
    picture,
    h(
      "figcaption",
      {},
      numberCell(numeric(low)),
      h("span", {}, key("expected", "reference"), key("actual", "actual")),
      numberCell(numeric(high)),
    ),
  );
}

/** The statistics of both, side by side; equal bits are said to be. */
export function statisticsTable(expected, actual) {
  const rows = ["what", "minimum", "maximum", "mean", "std", "nan", "inf"];
  const cell = (of, row) => h("td", {}, !of || of[row] === null ? "–" : row === "what" ? of[row] : numberCell(of[row]));
  const alike = expected && actual && expected.content && expected.content === actual.content;
  return h(
    "table",
    { class: "facts" },
    h(
      "thead",
      {},
      h("tr", {}, h("th", {}), h("th", { scope: "col" }, "reference"), h("th", { scope: "col" }, "actual")),
    ),
    h(
      "tbody",
      {},
      rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row), cell(expected, row), cell(actual, row))),
      alike && h("tr", {}, h("th", { scope: "row" }, "bits"), h("td", { colspan: 2 }, "all equal")),
    ),
  );
}
