// Where the spots of ordered layers stand, and the ways of the lines between them.

const BESIDE = { box: 24, lane: 12 };
const BETWEEN = 30; // from one layer to the next, at least

/** Each spot to the median of where its lines come from, as near as its neighbours let it; down and up in turns,
 * and down at last: what reads one value then stands straight below it. */
export function place(layers) {
  for (const layer of layers) settle(layer, () => [0, 1e-3]);
  const size = layers.reduce((sum, layer) => sum + layer.length, 0);
  sweep(layers, size > 4000 ? 5 : 13);
  const inner = layers.filter((layer) => !layer.some(pinned));
  if (!inner.length || inner.length === layers.length) return;
  // Lines come in and go out in the middle of a container: a row of them stands straight, then.
  const spots = inner.flat();
  const [left] = bounds(spots.map((spot) => spot.x - spot.w / 2));
  const [, right] = bounds(spots.map((spot) => spot.x + spot.w / 2));
  for (const layer of layers) if (layer.some(pinned)) settle(layer, () => [(left + right) / 2, 1]);
  sweep(inner, 3);
}

function sweep(layers, times) {
  // Opened groups stand middle below middle: by their ports, each of a row of layers would stand further to the side.
  const out = (pair) => (pair.above.fixed ? 0 : pair.out);
  const into = (pair) => (pair.below.fixed ? 0 : pair.into);
  const above = (spot) => spot.up.map((pair) => [pair.above.x + out(pair) - into(pair), pair.worth]);
  const below = (spot) => spot.down.map((pair) => [pair.below.x + into(pair) - out(pair), pair.worth]);
  for (let time = 0; time < times; time++) {
    const [near, turn] = time % 2 === 0 ? [above, layers] : [below, [...layers].reverse()];
    for (const layer of turn) settle(layer, (spot) => median(near(spot), spot));
  }
}

function pinned(spot) {
  return Boolean(spot.item && spot.item.pin);
}

function bounds(numbers) {
  return numbers.reduce(
    ([least, most], number) => [Math.min(least, number), Math.max(most, number)],
    [Infinity, -Infinity],
  );
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
export function stack(layers) {
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
export function lead(link) {
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
