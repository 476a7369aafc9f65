// Numbers as text, and the least and the largest of many.

/**
 * The largest of some numbers and `least`. `Math.max(...numbers)` fails for very many numbers.
 * @param {number[]} numbers
 */
export function largest(numbers, least = -Infinity) {
  return numbers.reduce((a, b) => Math.max(a, b), least);
}

/**
 * The smallest of some numbers and `most`.
 * @param {number[]} numbers
 */
export function smallest(numbers, most = Infinity) {
  return numbers.reduce((a, b) => Math.min(a, b), most);
}

/**
 * A count with its noun: `1 node`, `2 nodes`.
 * @param {number} number
 * @param {string} noun
 */
export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/**
 * A number with all its digits: Python's `float` or `int` reads the same number back.
 * @param {number | bigint} number
 */
export function exactNumber(number) {
  return Object.is(number, -0) ? "-0.0" : String(number);
}

/**
 * A number with up to four significant digits, for reading; "" for no number.
 * @param {number | bigint | null | undefined} number
 */
export function shortNumber(number) {
  if (number === null || number === undefined) return "";
  if (typeof number === "bigint") return number.toLocaleString("en");
  const size = Math.abs(number);
  if (Number.isInteger(number) && size < 1e7) return number.toLocaleString("en");
  if (!Number.isFinite(number)) return Number.isNaN(number) ? "NaN" : number > 0 ? "∞" : "−∞";
  const text = size >= 1e-3 && size < 1e5 ? String(Number(number.toPrecision(4))) : number.toExponential(2);
  return text.replace("e+", "e").replace(/\.?0+e/, "e");
}

/** @param {number | bigint} seconds */
export function milliseconds(seconds) {
  return `${shortNumber(Number(seconds) * 1e3)} ms`;
}
