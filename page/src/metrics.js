// What the columns and the rows of facts mean, in the words of `Difference`, `Finding` and `Statistics`.

import { html } from "./dom.js";

const ELEMENTS = "elements";
/** What a name means, and its unit; without a unit, it is a ratio or not a number. @type {Map<string, [text: string, unit?: string]>} */
const METRICS = new Map([
  ["error", ["the largest harmonic error |a - e| / (|e| + 1) of an element: a is its value, e the reference's"]],
  ["mean_error", ["the mean of the harmonic errors of all elements"]],
  ["absolute", ["the largest absolute difference"]],
  ["relative", ["the largest relative difference, over the elements whose expected value is not 0"]],
  ["scale", ["the largest absolute difference relative to the largest expected magnitude"]],
  ["rms", ["the root mean square of the difference relative to that of the expected tensor"]],
  ["snr", ["the signal-to-noise ratio in decibel, -20 log10(rms); inf for equal tensors", "dB"]],
  ["mismatched", ["the number of elements whose error exceeds the harmonic limit and rounding", ELEMENTS]],
  ["nonfinite", ["the number of elements that are NaN or infinite on one side and different on the other", ELEMENTS]],
  ["overflowed", ["the number of elements that are NaN or infinite and should be finite", ELEMENTS]],
  [
    "clipped",
    [
      "the number of elements that are the largest number of their dtype, or of the integers that they were quantized to, and should be larger",
      ELEMENTS,
    ],
  ],
  ["zeroed", ["the number of elements that are 0 and should not be", ELEMENTS]],
  ["count", ["the number of elements", ELEMENTS]],
  ["times rounding", ["the distance from the float64 result in units of the rounding level, in the whole run", "×"]],
  ["own times rounding", ["the same, of the node by itself, on the reference's inputs", "×"]],
  ["flips", ["integers that differ because rounding decides them"]],
  ["margin", ["how far the numbers that these decisions compare are from the other decision, in float64"]],
  ["decided", ["how much earlier decisions that differ change the value; its own error is beside this"]],
  ["what", ["dtype and shape"]],
  ["minimum", ["of the finite elements"]],
  ["maximum", ["of the finite elements"]],
  ["mean", ["of the finite elements, summed in float64"]],
  ["std", ["the population standard deviation of the finite elements"]],
  ["nan", ["the number of NaNs", ELEMENTS]],
  ["inf", ["the number of infinities", ELEMENTS]],
  ["#", ["the node's place in the order of execution"]],
  ["graph", ["the graph that the value is in"]],
  ["status", ["whether the value differs from its reference, or why it was not compared"]],
  ["seconds", ["the run time of the node", "s"]],
  ["call", ["which call of the model"]],
  ["in the other", ["the values of the other implementation that have its numbers"]],
  ["kind", ["the role of the value in its graph: node, fused, inserted, constant or output"]],
  ["reference", ["where the reference comes from"]],
  ["in words", ["the difference from the reference in words, or why there is none"]],
  ["value", ["the name of the value"]],
  ["operator", ["what computes the value"]],
  ["module", ["the module whose call computes the value"]],
  ["type", ["dtype and shape"]],
]);

/**
 * What a name means; "" if it is not known.
 * @param {string} name
 */
export function meaning(name) {
  return METRICS.get(name)?.[0] ?? "";
}

/**
 * The unit of a number; "" for a ratio and for what is not known.
 * @param {string} name
 */
export function unit(name) {
  return METRICS.get(name)?.[1] ?? "";
}

/**
 * A name with its unit, which says what it means.
 * @param {string} name
 */
export function metricElement(name) {
  const text = meaning(name);
  const measure = unit(name);
  return html(text ? "abbr" : "span", { title: text || null }, name, measure && html("small", {}, ` ${measure}`));
}
