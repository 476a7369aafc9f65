"""Measure how fast the HTML page of a large report loads, and how long a frame takes while the graph moves.

    python benchmarks/page.py                      # a synthetic report of 5,131 exported and 1,845 compiled nodes
    python benchmarks/page.py old.html new.html    # compare pages, for example of the same report

Needs Chromium, chromedriver and selenium. Pages take turns, each time in a new browser, so that a slow minute of the
machine affects all alike. A row gives the median over all rounds and, in brackets, the smallest and the largest number:
differences within those are noise. The names of the pages have to differ. The browser is headless and draws without a
GPU and without a limit of its frame rate, so a frame takes longer than on a desktop: the numbers compare versions of
the page, and are not what a user sees.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from pathlib import Path

from _measure import describe_environment, interleave, table

from filch.export import Graph, Node
from filch.export.views import plot_graph
from support.views.chromium import Chromium, missing
from support.views.pages import flat, judged

EXPORTED, COMPILED, LAYERS = 5131, 1845, 27
FRAMES = 40
TIME_BUDGET = 1200.0  # seconds for each page
# Moves the graph in one frame after another. `work` is the time of the script, with layout and styles; `frame` the time
# from one frame to the next.
MOVE = """(async () => {{
  const pane = filch.active, frame = () => new Promise((done) => requestAnimationFrame(done));
  {prepare};
  await frame(); await frame();
  let work = 0;
  const began = performance.now();
  for (let at = 0; at < {frames}; at++) {{
    const start = performance.now();
    {move};
    pane.svg.getBoundingClientRect();
    work += performance.now() - start;
    await frame();
  }}
  return [work / {frames}, (performance.now() - began) / {frames}];
}})()"""
PAN = "pane.pan(at % 20 < 10 ? 9 : -9, at % 20 < 10 ? 13 : -13)"
ZOOM = "pane.zoom(at % 20 < 10 ? 1.04 : 1 / 1.04, pane.view.width / 2, pane.view.height / 2, false)"
OPEN = "for (let at = 0; at < 6; at++) pane.openAll()"
# The same parts of the graph in each version of the page, whatever covers them: around a node, and all of it.
READABLE = """{
  const { nodes } = pane.graph, node = nodes.findLast(({ id, constant }) => !constant && id < nodes.length / 3);
  const k = 0.85, { x, y } = pane.boxOf(node);
  const { width, height } = pane.view;
  pane.moveTo({ k, x: width / 2 - x * k, y: height / 2 - y * k }, false);
}"""
WHOLE = """{
  const all = pane.arrangement, k = Math.min(pane.view.width / all.width, pane.view.height / all.height);
  const x = all.width / 2, y = all.height / 2;
  const { width, height } = pane.view;
  pane.moveTo({ k, x: width / 2 - x * k, y: height / 2 - y * k }, false);
}"""
CASES = {  # in this order: later ones go on from where earlier ones end
    "pan, as opened": ("0", PAN),
    "pan, all groups open": (f"{OPEN}; {READABLE}", PAN),
    "zoom, all groups open": (READABLE, ZOOM),
    "pan, all groups open, whole graph": (WHOLE, PAN),
    "zoom, all groups open, whole graph": (WHOLE, ZOOM),
}
DRAWN = "performance.getEntriesByName('filch-drawn')[0].startTime"


def synthetic_report() -> Graph:
    """Return a compiled graph whose nodes compute runs of the exported one's, with findings on both."""
    before = judged(flat(EXPORTED, layers=LAYERS))
    after = judged(flat(COMPILED, layers=LAYERS))
    return dataclasses.replace(
        after, nodes=tuple(_fused(node, at, before) for at, node in enumerate(after.nodes)), source_graph=before
    )


def _fused(node: Node, place: int, before: Graph) -> Node:
    first, last = (at * len(before.nodes) // COMPILED for at in (place, place + 1))
    return dataclasses.replace(node, origins=tuple(each.name for each in before.nodes[first:last]))


def measure(page: Path) -> dict[str, float]:
    """Return milliseconds: of loading a page until its first drawing, and per frame for each of `CASES`."""
    with Chromium(1280, 800, switches=("--disable-frame-rate-limit", "--disable-gpu-vsync")) as browser:
        browser.open(page)
        result = {"load to first drawing": browser.run(DRAWN)}
        for name, (prepare, move) in CASES.items():
            work, frame = browser.run(MOVE.format(prepare=prepare, move=move, frames=FRAMES))
            result |= {f"{name}: script": work, f"{name}: frame": frame}
    return result


def main() -> None:
    """Measure the given pages, or a synthetic report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="pages to measure; default: a synthetic report")
    parser.add_argument("--rounds", type=int, default=7, help="how often each page is loaded and moved; default: 7")
    options = parser.parse_args()
    if problem := missing():
        sys.exit(problem)
    with tempfile.TemporaryDirectory() as folder:
        pages = options.pages or [plot_graph(synthetic_report(), Path(folder) / "synthetic.html")]
        paths = {page.name: page for page in pages}
        samples, failed = interleave([*paths], lambda name: measure(paths[name]), options.rounds, TIME_BUDGET)
    for name, problem in failed.items():
        print(f"{name}: {problem}", file=sys.stderr)
    rows = [
        (case, *(_range([sample[case] for sample in samples[name]]) for name in samples))
        for case in next(iter(samples.values()))[0]
    ]
    print(table(("milliseconds", *samples), rows))
    print(f"\n{options.rounds} rounds; {describe_environment('selenium')}")


def _range(numbers: list[float]) -> str:
    return f"{statistics.median(numbers):.1f} [{min(numbers):.1f}, {max(numbers):.1f}]"


if __name__ == "__main__":
    main()
