import assert from "node:assert/strict";
import { test } from "node:test";
import { plainColor } from "../src/picture.js";

test("mixed colors become plain ones, others stay", () => {
  assert.equal(plainColor("color(srgb 1 0.5 0)"), "rgb(255, 128, 0)");
  assert.equal(plainColor("color(srgb -0.1 2 3e-1)"), "rgb(0, 255, 77)");
  for (const color of ["rgb(1, 2, 3)", "none", "rgba(0, 0, 0, 0)"]) assert.equal(plainColor(color), color);
});
