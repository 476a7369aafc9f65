import assert from "node:assert/strict";
import { test } from "node:test";
import { count, exactNumber, largest, milliseconds, shortNumber, smallest } from "../src/numbers.js";

test("a noun is in the singular for one thing only", () => {
  const counts = [0, 1, 2, 1234].map((number) => count(number, "row"));
  assert.deepEqual(counts, ["0 rows", "1 row", "2 rows", "1,234 rows"]);
});

test("an exact number reads back as the same number", () => {
  for (const number of [0.1 + 0.2, 5e-324, -1e300, 2 ** 53]) assert.equal(Number(exactNumber(number)), number);
  assert.equal(exactNumber(-0), "-0.0");
  assert.equal(exactNumber(2n ** 63n + 1n), "9223372036854775809");
});

test("a short number has at most four significant digits, unless it is an integer", () => {
  const shown = [
    [0, "0"],
    [1234567, "1,234,567"],
    [12345678, "1.23e7"],
    [0.123456, "0.1235"],
    [0.001, "0.001"],
    [0.00012345, "1.23e-4"],
    [1e-7, "1e-7"],
    [99999.5, "100000"],
    [2.5e100, "2.5e100"],
    [-1.5, "-1.5"],
    [NaN, "NaN"],
    [Infinity, "∞"],
    [-Infinity, "−∞"],
    [2n ** 63n, "9,223,372,036,854,775,808"],
    [null, ""],
  ];
  for (const [number, text] of shown) assert.equal(shortNumber(number), text);
});

test("times are in milliseconds", () => {
  assert.equal(milliseconds(0.0123), "12.3 ms");
});

test("the least and the largest of very many numbers are found", () => {
  const numbers = Array.from({ length: 300_000 }, (_, index) => index);
  assert.deepEqual([smallest(numbers), largest(numbers)], [0, 299_999]);
  assert.deepEqual([smallest([], 5), largest([], 5), largest([7], 5)], [5, 5, 7]);
});
