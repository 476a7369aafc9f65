// In which order the spots of each layer stand, so that few lines cross.

/** Sweeps down and up, each layer by the mean place of what its spots are tied to; keeps what crosses least. */
export function order(layers) {
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
export function spread(spots) {
  for (const spot of spots) {
    for (const [pairs, side, down] of [
      [spot.up, "into", true],
      [spot.down, "out", false],
    ]) {
      const lines = new Map(); // by link: what is read twice is one line
      for (const pair of [...pairs].sort((a, b) => farEnd(a, down) - farEnd(b, down))) {
        if (!lines.has(pair.link)) lines.set(pair.link, lines.size);
      }
      const room = Math.min(spot.w * 0.7, 22 * (lines.size - 1));
      const step = lines.size > 1 ? room / (lines.size - 1) : 0;
      for (const pair of pairs)
        pair[side] = spot.fixed ? portOf(spot, pair, side) : lines.get(pair.link) * step - room / 2;
    }
  }
}
