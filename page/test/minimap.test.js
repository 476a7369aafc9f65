import assert from "node:assert/strict";
import { test } from "node:test";
import "./graphs.js";
import { minimapScale } from "../src/minimap.js";

test("the minimap shows all of a graph, whatever its shape", () => {
  for (const [width, height] of [
    [100, 100],
    [500, 90_000],
    [90_000, 500],
    [20, 30],
  ]) {
    const scale = minimapScale({ width, height }, { width: 1000, height: 600 });
    assert.ok(scale);
    assert.ok(scale.width >= 56 && scale.width <= 150 && scale.height >= 56 && scale.height <= 190);
    assert.ok(Math.abs(width * scale.x - scale.width) < 1e-6 && Math.abs(height * scale.y - scale.height) < 1e-6);
  }
});

test("the minimap keeps the shape of a graph that is not very long", () => {
  const scale = minimapScale({ width: 1000, height: 800 }, { width: 1000, height: 600 });
  assert.ok(scale && Math.abs(scale.x - scale.y) < 0.01 * scale.x);
});

test("the minimap is smaller in a small pane, and gone where there is no room", () => {
  const graph = { width: 1000, height: 5000 };
  const small = minimapScale(graph, { width: 400, height: 250 });
  assert.ok(small && small.width <= 100 && small.height <= 120);
  assert.equal(minimapScale(graph, { width: 768, height: 180 }), null);
});
