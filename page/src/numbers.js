// Numbers as text.

/** `1 node`, `2 nodes`. */
export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** A number as it reads back: what Python's `float` and `int` make the very same number of. */
export function exact(number) {
  return Object.is(number, -0) ? "-0.0" : String(number);
}

/** A number, short, for people. */
export function short(number) {
  if (number === null || number === undefined) return "";
  const size = Math.abs(Number(number));
  if (typeof number === "bigint" || (Number.isInteger(number) && size < 1e7)) return number.toLocaleString("en");
  if (!Number.isFinite(number)) return Number.isNaN(number) ? "NaN" : number > 0 ? "∞" : "−∞";
  const text = size >= 1e-3 && size < 1e5 ? String(Number(number.toPrecision(4))) : number.toExponential(2);
  return text.replace("e+", "e").replace(/\.?0+e/, "e");
}

export function milliseconds(seconds) {
  return `${short(seconds * 1e3)} ms`;
}
