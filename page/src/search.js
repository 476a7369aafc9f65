// Finds nodes, groups, inputs and outputs, of two implementations also weights, by any part of their names.

/** @import { Graph, Item, PageData } from "./model.js" */

/** The items of all graphs, and what they are found by. */
export class SearchIndex {
  /** @param {PageData} data */
  constructor({ graphs, reference }) {
    /** @type {Item[]} */
    this.items = graphs.flatMap(({ groups, nodes, inputs, outputs, values }) => {
      const weights = reference ? values.filter(({ role }) => role === "parameter") : [];
      return [...groups, ...nodes, ...inputs, ...weights, ...(reference ? [] : outputs)];
    });
    /** @type {Map<Item, string>} */
    this.texts = new Map();
  }

  /**
   * The items that contain a text in any case: first those whose name begins with it, then those whose name contains it;
   * of each, those of the preferred graph first.
   * @param {string} text
   * @param {Graph} preferred
   */
  find(text, preferred) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return [];
    const rank = (/** @type {Item} */ item) => {
      const name = (item.kind === "group" ? item.path : item.name).toLowerCase();
      return name.startsWith(wanted) ? 0 : name.includes(wanted) ? 1 : 2;
    };
    const other = (/** @type {{ item: Item }} */ { item }) => Number(item.graph !== preferred);
    return this.items
      .filter((item) => this.textOf(item).includes(wanted))
      .map((item) => ({ item, rank: rank(item) }))
      .sort((a, b) => a.rank - b.rank || other(a) - other(b))
      .map(({ item }) => item);
  }

  /** @param {Item} item */
  textOf(item) {
    let text = this.texts.get(item);
    if (text === undefined) {
      text = searchableTexts(item).filter(Boolean).join("\n").toLowerCase();
      this.texts.set(item, text);
    }
    return text;
  }
}

/** @param {Item} item */
function searchableTexts(item) {
  if (item.kind === "value") return [item.name];
  if (item.kind === "group") return [item.name, item.path, item.type];
  const values = [...item.inputs, ...item.written].map((value) => value?.name);
  return [item.name, item.op, item.module, item.group?.path, ...values];
}
