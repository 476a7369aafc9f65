import assert from "node:assert/strict";
import { test } from "node:test";
import { addressOf, placeAt } from "../src/address.js";
import { chain, pageData } from "./graphs.js";

const groups = Array.from({ length: 6 }, (_, index) => ({ path: `layers.${index % 5}`, name: `l${index}`, type: "L" }));
const nodes = chain(5, (index) => ({ name: index < 2 ? "twice" : `a&b=${index}+#%`, group: index }));
const data = pageData({ groups, nodes }, { role: "before", groups, nodes });
const [main, before] = data.graphs;
const place = (item, more = {}) => ({ graph: item.graph, sideBySide: false, item, open: new Set(), ...more });

test("an address shows what it was made of: graph, selection and opened groups", () => {
  const items = [...main.nodes, ...before.nodes, ...main.groups, ...main.values, ...before.groups];
  for (const item of items) {
    const shown = place(item, { sideBySide: true, open: new Set([1, 2, 3, 5].map((id) => item.graph.groups[id])) });
    assert.deepEqual(placeAt(addressOf(shown), data), shown);
  }
});

test("an address names what is selected, or numbers it if the name is not unique", () => {
  assert.equal(addressOf(place(main.values.find(({ name }) => name === "y"))), "#graph=0&value=y&open=");
  assert.match(addressOf(place(main.nodes[1])), /node=%231&/);
  assert.match(
    addressOf({ ...place(before.groups[2]), open: new Set(before.groups.slice(1, 4)) }),
    /group=layers\.2&open=1-3$/,
  );
});

test("half a character does not end up in an address", () => {
  const odd = pageData({ nodes: chain(1, () => ({ name: "half \ud83d of one" })) });
  assert.match(addressOf(place(odd.main.nodes[0])), /node=%230/);
});

test("an address that names nothing of the page is no place", () => {
  for (const address of ["#graph=9", "#graph=0&node=missing", "#graph=0&node=%2399"])
    assert.equal(placeAt(address, data), null);
  assert.deepEqual(placeAt("#node=twice", data), { graph: main, sideBySide: false, item: main.nodes[0], open: null });
});

test("an address with very many opened groups has none of them", () => {
  const many = Array.from({ length: 2000 }, (_, index) => ({ path: `g${index}`, name: `g${index}`, type: "G" }));
  const { main: large } = pageData({ groups: many, nodes: chain(1) });
  const every = (step) => new Set(large.groups.filter(({ id }) => id % step === 0));
  assert.doesNotMatch(addressOf({ ...place(large.nodes[0]), open: every(2) }), /open/);
  assert.match(addressOf({ ...place(large.nodes[0]), open: every(1) }), /open=0-1999$/);
});
