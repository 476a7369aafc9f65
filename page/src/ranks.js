// In which layer each spot of a container stands, and the lanes of the lines that pass layers.

const MOST_LANES = 40000; // over it, the longest lines are left out: nobody could follow them

export function rank(spots, links) {
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
export function connect(spots, links) {
  const limit = [Infinity, 256, 64, 16, 4].find((most) => lanesOf(spots, links, most) <= MOST_LANES) || 4;
  const lanes = [];
  for (const link of links) {
    let last = spots[link.from];
    link.pairs = [];
    const passes = (to) => to.rank > last.rank && to.rank - last.rank <= limit;
    const goals = link.to
      .map((at) => spots[at])
      .filter(passes)
      .sort((a, b) => a.rank - b.rank);
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
  // A straight way from box to box is worth most by far: lanes make room for it. Then come straight lanes.
  const worth = above.item && below.item ? 1000 : above.item || below.item ? 1 : 4;
  const pair = { link, above, below, out: 0, into: 0, worth };
  above.down.push(pair);
  below.up.push(pair);
  link.pairs.push(pair);
}

export function sorted(spots) {
  const layers = [];
  for (const spot of spots) (layers[spot.rank] ||= []).push(spot);
  return Array.from(layers, (layer) => layer || []);
}
