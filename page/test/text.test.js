import assert from "node:assert/strict";
import { test } from "node:test";
import { textWidth, truncate } from "../src/text.js";
import { LETTER_WIDTH } from "./graphs.js";

const FONT = "400 11px";

test("text that fits stays whole", () => {
  assert.equal(truncate("abcdef", 6 * LETTER_WIDTH, FONT), "abcdef");
});

test("longer text keeps as many letters as fit, with an ellipsis", () => {
  assert.equal(truncate("abcdef", 5.5 * LETTER_WIDTH, FONT), "abcd…");
  assert.equal(truncate("abcdef", 0, FONT), "…");
});

test("text is never cut inside a letter of two code units", () => {
  assert.equal(truncate("🦊🦊🦊🦊", 4 * LETTER_WIDTH, FONT), "🦊…");
});

test("control characters and line breaks become spaces", () => {
  assert.equal(truncate("a\nb\u2028c\u0000d", 1000, FONT), "a b c d");
});

test("what is longer than any box says so", () => {
  assert.equal(truncate("x".repeat(10_000), 1e6, FONT), `${"x".repeat(160)}…`);
});

test("widths depend on the font", () => {
  const measured = [];
  const { createElement } = globalThis.document;
  assert.equal(textWidth("unmeasured", "600 20px"), 10 * LETTER_WIDTH);
  globalThis.document.createElement = () => measured.push("again");
  assert.equal(textWidth("unmeasured", "600 20px"), 10 * LETTER_WIDTH);
  globalThis.document.createElement = createElement;
  assert.deepEqual(measured, []);
});
