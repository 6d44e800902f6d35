"""Speed and size of the advisor's view in Chromium: ``python benchmarks/view_speed.py``.

Measured on the page without Jupyter of the browser tests, with the kernel side in this process: the time from an event
of a slider to the paint after it, with three sliders moved in turn without a pause, the time from advice to its first
view, the compressed bundle, and the output that a notebook saves. The exit status is 1 beyond a limit. The limits are
for an idle machine.
"""

from __future__ import annotations

import gzip
import json
import shutil
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

from host import Host, Site, open_host  # noqa: E402 - from the folder of the browser tests
from playwright.sync_api import sync_playwright  # noqa: E402

import smp_advisor as smpa  # noqa: E402
from smp_advisor.notebook import Advisor  # noqa: E402

MOVES = 300
VIEWS = 5
MOVE = """
async ([view, moves, event]) => {
  const root = document.querySelector(`.output[data-view='${view}'] > .smp`);
  const sliders = [...root.querySelectorAll('.smp-controls input[type=range]:enabled')].slice(0, 3);
  const painted = () => new Promise(done => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => done(performance.now());
    channel.port2.postMessage(0);
  }));
  const times = [];
  for (let move = 0; move < moves; move++) {
    const slider = sliders[move % sliders.length];
    const last = Number(slider.max);
    slider.value = String((Number(slider.value) + 1) % (last + 1));
    const start = performance.now();
    slider.dispatchEvent(new Event(event, { bubbles: true }));
    const drawn = performance.now();
    times.push([(await painted()) - start, drawn - start]);
  }
  return [sliders.map(slider => slider.name), times];
}
"""


@dataclass(frozen=True)
class Result:
    """One measured figure with its limit."""

    name: str
    value: float
    limit: float
    unit: str

    @property
    def text(self) -> str:
        """The figure in one line."""
        state = "ok" if self.value <= self.limit else "OVER"
        return f"{self.name:<44} {self.value:8.1f} {self.unit:<3} limit {self.limit:g} {self.unit}  {state}"


def _advice() -> smpa.Advice:
    return smpa.advise(
        "10B", "ml.p4d.24xlarge", instance_count=16, library="smp-v1", sequence_length=512, tokens="300B"
    )


def _moves(host: Host) -> list[Result]:
    names, moved = host.page.evaluate(MOVE, ["1", MOVES, "input"])
    host.settle()
    # The same loop with an event that nobody handles: a frame of this machine at this load.
    _, idle = host.page.evaluate(MOVE, ["1", MOVES, "idle"])
    times, draws, frames = [time for time, _ in moved], [draw for _, draw in moved], [time for time, _ in idle]
    median, slow = statistics.median(times), statistics.quantiles(times, n=20)[-1]
    frame, late = statistics.median(frames), statistics.quantiles(frames, n=20)[-1]
    print(f"slider to paint ({', '.join(names)}): {len(times)} events, largest {max(times):.1f} ms")
    print(
        f"  of it, the view's own script: median {statistics.median(draws):.1f} ms; a frame without any: median"
        f" {frame:.1f} ms, 95th percentile {late:.1f} ms; ratios {median / frame:.2f} and {slow / late:.2f}"
    )
    return [
        Result("slider to paint, median", median, 15, "ms"),
        Result("slider to paint, 95th percentile", slow, 40, "ms"),
    ]


def _first_views(host: Host) -> Result:
    """From new advice of a warm kernel to its view, without the search."""
    times = []
    for _ in range(VIEWS):
        advice = _advice()
        start = time.perf_counter()
        host.show(Advisor(advice))
        times.append(1000 * (time.perf_counter() - start))
    return Result("first view of a warm kernel, median", statistics.median(times), 1000, "ms")


def _sizes(advisor: Advisor) -> list[Result]:
    static = ROOT / "smp_advisor" / "static"
    bundle = sum(len(gzip.compress((static / name).read_bytes())) for name in ("widget.js", "widget.css"))
    saved = len(json.dumps(advisor._repr_mimebundle_()[0]).encode())
    return [
        Result("bundle, JavaScript and CSS, compressed", bundle / 1000, 40, "kB"),
        Result("output that a notebook saves", saved / 1000, 60, "kB"),
    ]


def main() -> int:
    """Print each figure next to its limit."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        site, context = Site(), browser.new_context()
        host = open_host(site, context.new_page())
        host.show(_advice())
        host.settle()
        results = [*_moves(host), _first_views(host), *_sizes(host.advisor)]
        host.close()
        site.close()
        browser.close()
    for result in results:
        print(result.text)
    return int(any(result.value > result.limit for result in results))


if __name__ == "__main__":
    sys.exit(main())
