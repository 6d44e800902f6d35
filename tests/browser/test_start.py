"""The page starts the plan on screen: after the account's options and the price, and once."""

from __future__ import annotations

from playwright.sync_api import expect

import smp_advisor as smpa
from smp_advisor.runs.sources import LogFile
from smp_advisor.runs.watching import Run
from tests.notebook.advice import make_advice

from .test_view import PANEL, open_tab, violations


def test_the_button_is_off_until_the_options_and_the_price_are_there(host, root, monkeypatch, tmp_path):
    slow, started, advice = "step 7 loss nan tokens_per_second 9.0 seconds_per_step 99.5\n", [], make_advice()
    (tmp_path / "job.log").write_text(9 * slow)
    monkeypatch.setattr(
        "smp_advisor.runs.start.start_job",
        lambda *of, **_: started.append(of) or Run(LogFile(tmp_path / "job.log"), advice),
    )
    page = host(advice)
    panel = open_tab(page.view, "Run")
    show, job = (panel.get_by_role("button", name=name) for name in ("Show request and price", "Start the job"))
    expect(panel.get_by_role("button", name="Start a small run on this machine")).to_be_visible()
    expect(show).to_be_disabled()
    expect(job).to_have_count(0)
    panel.get_by_role("textbox").fill("role=arn:aws:iam::111122223333:role/Training")
    show.click()
    expect(panel).to_contain_text("per hour")
    assert started == []
    job.click()
    expect(panel).to_contain_text("job.log: Log; step 7")
    expect(panel).to_contain_text("%smp_watch")
    panel.get_by_role("button", name="Refresh").click()
    page.settle()  # until then the panel is dimmed
    expect(panel).to_contain_text("job.log: Log; step 7")
    assert len(started) == 1
    expect(panel.get_by_role("alert").first).to_contain_text("loss is nan")
    frame = page.page.frames[-1]
    frame.evaluate((root / "js/node_modules/axe-core/axe.min.js").read_text())
    for light in ("true", "false"):
        frame.evaluate("light => { document.body.dataset.jpThemeLight = light; }", light)
        assert violations(frame, PANEL, "axe.run(part)") == [], f"light theme: {light}"


def test_inserted_probes_end_in_the_cell_that_learns_from_them(host):
    page = host(smpa.advise("13B", "ml.p4d.24xlarge", instance_count=2, library="smp-v2", tokens="100B"))
    panel = open_tab(page.view, "Run")
    panel.get_by_role("textbox").fill("role=arn:aws:iam::111122223333:role/Training")
    panel.get_by_role("button", name="Show request and price").click()
    expect(panel).to_contain_text("on average: measure.")
    panel.get_by_role("button", name="Insert the probes").click()
    page.settle()
    decision, *_, learn = page.inserted[-1]["sources"]
    assert decision.startswith("# A probe of 20 steps of these 2 plans costs")
    assert learn.endswith("%smp_calibrate --job {probe_1} --job {probe_2}")
