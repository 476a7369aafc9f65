// How wide text is, and text cut to a width.

const FONT_FAMILY = 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif';
const LONGEST = 160; // characters that are measured: no box is wide enough for more

/** @type {CanvasRenderingContext2D | null} */
let context = null;
/** @type {Map<string, number>} */
const widths = new Map();

/**
 * The width of a text in pixels.
 * @param {string} text
 * @param {string} font weight and size, such as `600 12px`
 */
export function textWidth(text, font) {
  const key = `${font} ${text}`;
  let width = widths.get(key);
  if (width === undefined) {
    context ??= /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
    context.font = `${font} ${FONT_FAMILY}`;
    width = context.measureText(text).width;
    widths.set(key, width);
  }
  return width;
}

/**
 * As much of a text as fits into a width, with an ellipsis for the rest. Line breaks and other control characters become
 * spaces.
 * @param {string} text
 * @param {number} width
 * @param {string} font
 */
export function truncate(text, width, font) {
  const letters = Array.from(text.slice(0, LONGEST), (letter) => (/[\p{Cc}\p{Zl}\p{Zp}]/u.test(letter) ? " " : letter));
  const whole = letters.join("");
  if (text.length <= LONGEST && textWidth(whole, font) <= width) return whole;
  let [low, high] = [0, letters.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (textWidth(`${letters.slice(0, middle).join("")}…`, font) <= width) low = middle;
    else high = middle - 1;
  }
  return `${letters.slice(0, low).join("")}…`;
}
