// What is shown, as the part of the page's address after `#`: a link to it shows the same again.

/** @import { Graph, Group, Item, PageData } from "./model.js" */
/**
 * @typedef {object} Place
 * @property {Graph} graph
 * @property {boolean} sideBySide
 * @property {Item | null} item what is selected
 * @property {Set<Group> | null} open the opened groups of the graph; null if they are not known
 */

const LONGEST_FOLDS = 400; // characters: above, an address has no opened groups
const KINDS = /** @type {const} */ (["node", "group", "value"]);

/** @param {Place} place */
export function addressOf({ graph, sideBySide, item, open }) {
  const parts = [`graph=${graph.index}`];
  if (sideBySide) parts.push("both");
  if (item) parts.push(`${item.kind}=${encodeURIComponent(nameIn(item))}`);
  const folds = open && ranges([...open].map((group) => group.id));
  if (folds !== null && folds.length <= LONGEST_FOLDS) parts.push(`open=${folds}`);
  return `#${parts.join("&")}`;
}

/**
 * What an address shows; null if it names nothing of this page.
 * @param {string} address
 * @param {PageData} data
 * @returns {Place | null}
 */
export function placeAt(address, { graphs }) {
  const parts = new URLSearchParams(address.slice(1).replaceAll("+", "%2B"));
  const graph = graphs[Number(parts.get("graph") ?? 0)];
  if (!graph) return null;
  const kind = KINDS.find((each) => parts.has(each));
  const item = kind ? findItem(graph, kind, parts.get(kind) ?? "") : null;
  if (kind && !item) return null;
  const folds = parts.get("open");
  const open = folds === null ? null : new Set(graph.groups.filter(({ id }) => inRanges(id, folds)));
  return { graph, sideBySide: parts.has("both"), item, open };
}

/**
 * The name of an item, or its number if the name does not identify it.
 * @param {Item} item
 */
function nameIn(item) {
  const name = item.kind === "group" ? item.path : item.name;
  const halfCharacter = /\p{Cs}/u.test(name); // which no address can hold
  return !halfCharacter && findItem(item.graph, item.kind, name) === item ? name : `#${item.id}`;
}

/**
 * @param {Graph} graph
 * @param {Item["kind"]} kind
 * @param {string} name
 * @returns {Item | null}
 */
function findItem(graph, kind, name) {
  if (/^#\d+$/.test(name)) return graph[`${kind}s`][Number(name.slice(1))] ?? null;
  if (kind === "group") return graph.groups.find((group) => group.path === name) ?? null;
  return graph[`${kind}s`].find((each) => each.name === name) ?? null;
}

/**
 * Sorted numbers as text: `0-3.7` for 0, 1, 2, 3 and 7.
 * @param {number[]} numbers
 */
function ranges(numbers) {
  /** @type {[number, number][]} */
  const found = [];
  for (const number of numbers.sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last && last[1] + 1 === number) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([low, high]) => (low === high ? String(low) : `${low}-${high}`)).join(".");
}

/**
 * @param {number} number
 * @param {string} text of `ranges`
 */
function inRanges(number, text) {
  return text.split(".").some((range) => {
    const [low, high = low] = range.split("-");
    return low !== "" && number >= Number(low) && number <= Number(high);
  });
}
