// Lays out one container in layers, as Sugiyama, Tagawa and Toda (1981) do: ranks, lanes for the lines that pass a
// layer, an order in each layer with few crossings, and places. A value that is read in many layers has one lane.

const BESIDE = { box: 24, lane: 12 };
const BETWEEN = 30; // from one layer to the next, at least
const MOST_LANES = 40000; // over it, the longest lines are left out: nobody could follow them

/**
 * Places `items` (`{w, h, pin}`, `pin` is "top" or "bottom" for what lines come in and go out through) and leads `links`
 * (`{from, to: [item]}`, by their places) around them. Gives items `x`, `y` (their middle, and their top) and links
 * `runs`: from one point to another, `[x1, y1, x2, y2]`, and `ends`: the points where they reach an item.
 */
function layered(items, links) {
  const spots = items.map((item, at) => ({ item, at, w: item.w, h: item.h, up: [], down: [], x: 0, fixed: item.ports }));
  rank(spots, links);
  const lanes = connect(spots, links);
  const layers = sorted([...spots, ...lanes]);
  order(layers);
  spread(spots);
  place(layers);
  return { ...stack(layers), links: links.map((link) => lead(link)) };
}

function rank(spots, links) {
  const readers = spots.map(() => new Set());
  const sources = spots.map(() => new Set());
  const given = spots.map(() => 0);
  for (const link of links) {
    given[link.from] += 1;
    for (const to of link.to) {
      readers[link.from].add(to);
      sources[to].add(link.from);
    }
  }
  const waits = sources.map((set) => set.size);
  const top = spots.some((spot) => spot.item.pin === "top") ? 1 : 0;
  for (const spot of spots) spot.rank = spot.item.pin === "top" ? 0 : top;
  const ready = [...spots.keys()].filter((at) => !waits[at]);
  for (let next = 0; next < ready.length; next++) {
    for (const to of readers[ready[next]]) {
      spots[to].rank = Math.max(spots[to].rank, spots[ready[next]].rank + 1);
      if (!--waits[to]) ready.push(to);
    }
  }
  // What reads less than it gives moves down to what reads it: its own lines become longer, but there are fewer.
  for (const at of ready.reverse()) {
    if (spots[at].item.pin || !readers[at].size || sources[at].size >= given[at]) continue;
    spots[at].rank = Math.min(...[...readers[at]].map((to) => spots[to].rank)) - 1;
  }
  const last = spots.reduce((most, spot) => (spot.item.pin === "bottom" ? most : Math.max(most, spot.rank)), 0);
  for (const spot of spots) if (spot.item.pin === "bottom") spot.rank = last + 1;
}

/** Ties the links' spots, and the lanes that it makes for them, to each other. */
function connect(spots, links) {
  const limit = [Infinity, 256, 64, 16, 4].find((most) => lanesOf(spots, links, most) <= MOST_LANES) || 4;
  const lanes = [];
  for (const link of links) {
    let last = spots[link.from];
    link.pairs = [];
    const passes = (to) => to.rank > last.rank && to.rank - last.rank <= limit;
    const goals = link.to.map((at) => spots[at]).filter(passes).sort((a, b) => a.rank - b.rank);
    link.left = link.to.map((at) => spots[at]).filter((to) => !goals.includes(to));
    while (goals.length) {
      while (goals.length && goals[0].rank === last.rank + 1) join(link, last, goals.shift());
      if (!goals.length) break;
      const lane = { w: 0, h: 0, rank: last.rank + 1, up: [], down: [], x: 0 };
      lanes.push(lane);
      join(link, last, lane);
      last = lane;
    }
  }
  return lanes;
}

function lanesOf(spots, links, most) {
  const length = (link, to) => spots[to].rank - spots[link.from].rank;
  const longest = (link) => Math.max(0, ...link.to.map((to) => length(link, to)).filter((ranks) => ranks <= most));
  return links.reduce((sum, link) => sum + Math.max(0, longest(link) - 1), 0);
}

function join(link, above, below) {
  // A straight way from box to box is worth most, then straight lanes.
  const worth = above.item && below.item ? 4 : above.item || below.item ? 1 : 6;
  const pair = { link, above, below, out: 0, into: 0, worth };
  above.down.push(pair);
  below.up.push(pair);
  link.pairs.push(pair);
}

function sorted(spots) {
  const layers = [];
  for (const spot of spots) (layers[spot.rank] ||= []).push(spot);
  return Array.from(layers, (layer) => layer || []);
}

/** Sweeps down and up, each layer by the mean place of what its spots are tied to; keeps what crosses least. */
function order(layers) {
  const number = () => layers.forEach((layer) => layer.forEach((spot, at) => (spot.at = at)));
  const size = layers.reduce((sum, layer) => sum + layer.length, 0);
  number();
  let [best, least] = [null, Infinity];
  for (let sweep = 0; sweep < (size > 4000 ? 4 : 12) && least; sweep++) {
    const down = sweep % 2 === 0;
    for (const layer of down ? layers : [...layers].reverse()) arrange(layer, down);
    const crossings = layers.reduce((sum, layer) => sum + crossed(layer), 0);
    if (crossings < least) [best, least] = [layers.map((layer) => [...layer]), crossings];
  }
  best.forEach((layer, at) => (layers[at] = layer));
  number();
}

function arrange(layer, down) {
  const middle = (spot) => {
    const pairs = down ? spot.up : spot.down;
    if (!pairs.length) return spot.at;
    return pairs.reduce((sum, pair) => sum + farEnd(pair, down), 0) / pairs.length;
  };
  const goal = new Map(layer.map((spot) => [spot, middle(spot)]));
  layer.sort((a, b) => goal.get(a) - goal.get(b) || a.at - b.at);
  layer.forEach((spot, at) => (spot.at = at));
}

/** Where the far end of a pair is, in spots; ports of an opened group lie side by side in its spot. */
function farEnd(pair, down) {
  const far = down ? pair.above : pair.below;
  return far.at + (far.w ? portOf(far, pair, down ? "out" : "into") / far.w : 0) * 0.9;
}

/** How far from its middle a line leaves or enters a spot: opened groups have ports, which they were laid out with. */
function portOf(spot, pair, side) {
  return spot.fixed ? spot.fixed[side].get(pair.link.key) || 0 : pair[side];
}

/** How many pairs between a layer and the next cross (Barth, Jünger and Mutzel 2002). */
function crossed(layer) {
  const pairs = layer.flatMap((spot) => spot.down);
  if (pairs.length < 2) return 0;
  pairs.sort((a, b) => farEnd(a, true) - farEnd(b, true) || farEnd(a, false) - farEnd(b, false));
  const size = pairs.reduce((most, pair) => Math.max(most, pair.below.at), 0) + 2;
  const tree = new Int32Array(size + 1);
  let crossings = 0;
  pairs.forEach((pair, before) => {
    let smaller = 0;
    for (let at = pair.below.at + 1; at > 0; at -= at & -at) smaller += tree[at];
    crossings += before - smaller;
    for (let at = pair.below.at + 1; at <= size; at += at & -at) tree[at] += 1;
  });
  return crossings;
}

/** Lines leave and enter a box side by side, in the order in which they come. */
function spread(spots) {
  for (const spot of spots) {
    for (const [pairs, side, down] of [[spot.up, "into", true], [spot.down, "out", false]]) {
      const lines = new Map(); // by link: what is read twice is one line
      for (const pair of [...pairs].sort((a, b) => farEnd(a, down) - farEnd(b, down))) {
        if (!lines.has(pair.link)) lines.set(pair.link, lines.size);
      }
      const room = Math.min(spot.w * 0.7, 22 * (lines.size - 1));
      const step = lines.size > 1 ? room / (lines.size - 1) : 0;
      for (const pair of pairs) pair[side] = spot.fixed ? portOf(spot, pair, side) : lines.get(pair.link) * step - room / 2;
    }
  }
}

/** Each spot to the median of where its lines come from, as near as its neighbours let it; down and up in turns,
 * and down at last: what reads one value then stands straight below it. */
function place(layers) {
  for (const layer of layers) settle(layer, () => [0, 1e-3]);
  // Opened groups stand middle below middle: by their ports, each of a row of layers would stand further to the side.
  const [out, into] = [(pair) => (pair.above.fixed ? 0 : pair.out), (pair) => (pair.below.fixed ? 0 : pair.into)];
  const above = (spot) => spot.up.map((pair) => [pair.above.x + out(pair) - into(pair), pair.worth]);
  const below = (spot) => spot.down.map((pair) => [pair.below.x + into(pair) - out(pair), pair.worth]);
  const size = layers.reduce((sum, layer) => sum + layer.length, 0);
  for (let sweep = 0; sweep < (size > 4000 ? 5 : 13); sweep++) {
    const near = sweep % 2 === 0 ? above : below;
    for (const layer of sweep % 2 === 0 ? layers : [...layers].reverse()) settle(layer, (spot) => median(near(spot), spot));
  }
  const spots = layers.flat().filter((spot) => !pinned(spot));
  if (!spots.length) return;
  const [left, right] = [(spot) => spot.x - spot.w / 2, (spot) => spot.x + spot.w / 2];
  const middle = (Math.min(...bounds(spots.map(left))) + Math.max(...bounds(spots.map(right)))) / 2;
  for (const layer of layers) if (layer.some(pinned)) settle(layer, (spot) => [pinned(spot) ? middle : spot.x, 1]);
}

function pinned(spot) {
  return Boolean(spot.item && spot.item.pin);
}

function bounds(numbers) {
  return numbers.reduce(([least, most], number) => [Math.min(least, number), Math.max(most, number)], [Infinity, -Infinity]);
}

function median(wanted, spot) {
  if (!wanted.length) return [spot.x, 0.05];
  wanted.sort((a, b) => a[0] - b[0]);
  const all = wanted.reduce((sum, [, worth]) => sum + worth, 0);
  let sum = 0;
  for (let at = 0; at < wanted.length; at++) {
    sum += wanted[at][1];
    if (sum === all / 2) return [(wanted[at][0] + wanted[at + 1][0]) / 2, all];
    if (sum > all / 2) return [wanted[at][0], all];
  }
  return [spot.x, all];
}

/** The places in their order, far enough apart, that are nearest to the wanted ones: least squares, which pooling
 * adjacent violators finds in linear time (Ayer et al. 1955). */
function settle(layer, wanted) {
  const blocks = [];
  let shift = 0;
  layer.forEach((spot, at) => {
    if (at) shift += (layer[at - 1].w + spot.w) / 2 + (layer[at - 1].item && spot.item ? BESIDE.box : BESIDE.lane);
    const [x, worth] = wanted(spot);
    let block = { x: x - shift, worth, spots: [[spot, shift]] };
    while (blocks.length && blocks.at(-1).x >= block.x) {
      const last = blocks.pop();
      const worths = last.worth + block.worth;
      last.x = (last.x * last.worth + block.x * block.worth) / worths;
      last.worth = worths;
      for (const each of block.spots) last.spots.push(each);
      block = last;
    }
    blocks.push(block);
  });
  for (const { x, spots } of blocks) for (const [spot, offset] of spots) spot.x = x + offset;
}

/** The layers below each other, further apart where lines go far to the side; all from 0 on. */
function stack(layers) {
  const spots = layers.flat();
  const left = spots.reduce((least, spot) => Math.min(least, spot.x - spot.w / 2), Infinity);
  const right = spots.reduce((most, spot) => Math.max(most, spot.x + spot.w / 2), -Infinity);
  for (const spot of spots) spot.x -= left;
  let y = 0;
  for (const layer of layers) {
    const height = layer.reduce((most, spot) => Math.max(most, spot.h), 0);
    let far = 0;
    for (const spot of layer) {
      Object.assign(spot, { top: y, bottom: y + height, y: y + (height - spot.h) / 2 });
      if (spot.item) Object.assign(spot.item, { x: spot.x, y: spot.y });
      for (const pair of spot.down) far = Math.max(far, Math.abs(spot.x + pair.out - pair.below.x - pair.into));
    }
    y += height + BETWEEN + Math.min(24, far / 16);
  }
  const last = layers.at(-1) || [];
  return { width: spots.length ? right - left : 0, height: last.length ? last[0].bottom : 0 };
}

/** The way of a link: straight past its own layer, in a curve to the next. */
function lead(link) {
  const runs = [];
  const ends = [];
  for (const { above, below, out, into } of link.pairs) {
    const [x1, x2] = [above.x + out, below.x + into];
    const from = above.item ? above.y + above.h : above.top;
    const to = below.item ? below.y : below.top;
    runs.push([x1, from, above.bottom, x2, below.top, to]);
    if (below.item) ends.push([x2, to, below.item]);
  }
  return { link, runs, ends };
}
