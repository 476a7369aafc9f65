import assert from "node:assert/strict";
import { test } from "node:test";
import { ErrorScale } from "../src/plot.js";

const finding = (error, compared = true) => ({ error, compared });

test("larger errors are higher, by powers of ten", () => {
  const scale = new ErrorScale([finding(1e-6), finding(1e-2)], 200);
  assert.deepEqual([scale.low, scale.high], [-6, -2]);
  assert.equal(scale.y(finding(1e-6)), scale.bottom);
  assert.equal(scale.y(finding(1e-2)), scale.top);
  assert.ok(Math.abs(scale.y(finding(1e-4)) - (scale.top + scale.bottom) / 2) < 1e-9);
});

test("what has no logarithm has lines of its own, which overlap nothing", () => {
  const scale = new ErrorScale([finding(1e-6), finding(1), finding(0), finding(NaN), finding(null, false)], 200);
  const heights = [finding(NaN), finding(1), finding(1e-6), finding(0), finding(null, false)].map((each) =>
    scale.y(each),
  );
  assert.equal(scale.y(finding(Infinity)), heights[0]);
  assert.equal(scale.y(finding(1, false)), heights[4]);
  for (const [index, y] of heights.slice(1).entries()) assert.ok(y - heights[index] >= 10, `${heights}`);
});

test("without NaN and infinity there is no line for them", () => {
  assert.equal(new ErrorScale([finding(1)], 200).hasNonFinite, false);
  assert.equal(new ErrorScale([finding(Infinity)], 200).hasNonFinite, true);
});

test("a line for each power of ten, or fewer where there is no room", () => {
  const findings = [finding(1e-6), finding(1e-2)];
  assert.deepEqual(new ErrorScale(findings, 400).decades, [-6, -5, -4, -3, -2]);
  assert.deepEqual(new ErrorScale(findings, 130).decades, [-6, -4, -2]);
});
