// Lays out one container in layers, as Sugiyama, Tagawa and Toda (1981) do: ranks, lanes for the lines that pass a
// layer, an order in each layer with few crossings, and places. A value that is read in many layers has one lane.

import { order, spread } from "./order.js";
import { lead, place, stack } from "./places.js";
import { connect, rank, sorted } from "./ranks.js";

/**
 * Places `items` (`{w, h, pin}`, `pin` is "top" or "bottom" for what lines come in and go out through) and leads `links`
 * (`{from, to: [item]}`, by their places) around them. Gives items `x`, `y` (their middle, and their top) and links
 * `runs`: from one point to another, `[x1, y1, x2, y2]`, and `ends`: the points where they reach an item.
 */
export function layered(items, links) {
  const spots = items.map((item, at) => ({
    item,
    at,
    w: item.w,
    h: item.h,
    up: [],
    down: [],
    x: 0,
    fixed: item.ports,
  }));
  rank(spots, links);
  const lanes = connect(spots, links);
  const layers = sorted([...spots, ...lanes]);
  order(layers);
  spread(spots);
  place(layers);
  return { ...stack(layers), links: links.map((link) => lead(link)) };
}
