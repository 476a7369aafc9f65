import assert from "node:assert/strict";
import { test } from "node:test";
import { runPath } from "../src/drawing.js";

test("a run to the side goes straight past its layer, then in an upright curve", () => {
  assert.equal(runPath([10, 0, 20, 50, 60, 70]), "M10 0V20C10 40 50 40 50 60V70");
});

test("a run that is nearly straight is a straight line", () => {
  assert.equal(runPath([10, 0, 20, 10.4, 60, 70]), "M10 0V70");
});
