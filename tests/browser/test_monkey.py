"""Random actions leave page, kernel, saved notebook and exported cell in agreement.

``pytest tests/browser/test_monkey.py --monkey-actions 1000 --monkey-seeds 3`` acts a thousand times with three seeds.
"""

from __future__ import annotations

import html
import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

import smp_advisor as smpa
from smp_advisor import estimate
from smp_advisor.errors import AdvisorError
from smp_advisor.session import Advice

if TYPE_CHECKING:
    from .host import Host


KEYS = ("ArrowLeft", "ArrowRight", "Home", "End", "PageUp", "PageDown")
LEFT_OUT = ("Copy", "Save", "Check", "Run the cell again", "Cancel", "Profile", "Search")
"""Starts of the names of buttons that work outside the advisor, or start longer work."""
MOST_VIEWS = 2
EDITS = {"instance_count": ("1", "2", "4"), "sequence_length": ("256", "512", "1,024")}
"""Fields of the request, with texts to type."""
SHOWN = """
view => ({
  settings: Object.fromEntries([...view.querySelectorAll('.smp-controls [name]')].map(input =>
    [input.name, input.type === 'checkbox' ? input.checked : Number(input.value)])),
  memory: view.querySelector('.smp-memory')?.textContent ?? '',
  stale: view.querySelector('.smp-stale')?.checkVisibility() ?? false,
})
"""
ACT = """
(view, [selector, leftOut, action, chances]) => {
  const targets = [...view.querySelectorAll(selector)].filter(each =>
    each.checkVisibility({ visibilityProperty: true }) && !each.matches(':disabled, [aria-disabled=true]')
    && !leftOut.some(start => each.textContent.startsWith(start)));
  const below = (chance, number) => Math.floor(chance * number);
  const target = targets[below(chances[0], targets.length)];
  if (!target) return '';
  const name = target.name || target.textContent.slice(0, 30);
  target.scrollIntoView({ block: 'center' });
  const { left, top, width, height } = target.getBoundingClientRect();
  const hit = document.elementFromPoint(left + width / 2, top + height / 2);
  if (action === 'click' && hit && !target.contains(hit)) return `${name} covered`;
  target.focus();
  if (action === 'click') target.click();
  if (action === 'drag') for (const chance of chances.slice(1)) {
    target.value = String(below(chance, Number(target.max) + 1));
    target.dispatchEvent(new Event('input', { bubbles: true }));
  }
  if (action === 'select') {
    target.selectedIndex = below(chances[1], target.options.length);
    target.dispatchEvent(new Event('input', { bubbles: true }));
  }
  if (action === 'drag' || action === 'select') target.dispatchEvent(new Event('change', { bubbles: true }));
  return name;
}
"""
"""One action on an element by chance. The page is the same from the choice of the element to the action."""


class Monkey:
    """Acts on a page, and compares what everybody shows."""

    def __init__(self, host: Host, make: Callable[[], Advice], seed: int) -> None:
        self._host, self._make = host, make
        self._random = random.Random(seed)
        self._views = 1
        self._hears = True
        """Whether the kernel answers."""
        self._log: list[str] = []
        self._page: dict[str, Callable[[], object]] = {
            "key": self._key,
            "drag": lambda: self._act("input[type=range]", "drag", self._random.randint(1, 9)),
            "select": lambda: self._act(".smp-controls select", "select", 1),
            "checkbox": lambda: self._act(".smp-controls input[type=checkbox]", "click"),
            "tab": lambda: self._act("[role=tab]", "click"),
            "button": lambda: self._act("button:not([role=tab])", "click"),
            "summary": lambda: self._act("summary", "click"),
            "edit": self._edit,
        }
        self._weights = (30, 10, 12, 6, 8, 12, 4, 4)
        self._kernel: dict[str, Callable[[], object]] = {
            "python": self._python,
            "busy": self._busy,
            "view": self._add_view,
            "restart": self._restart,
        }

    def act(self, actions: int) -> None:
        """Perform some actions, and compare after every few of them."""
        for number in range(actions):
            self._log = self._log[-30:]
            try:
                if self._random.random() < 0.85:
                    self._on_page()
                else:
                    name = self._random.choices(list(self._kernel), (60, 20, 5, 5))[0]
                    self._log.append(name)
                    self._kernel[name]()
                if number % 8 == 7 or number == actions - 1:
                    self.compare()
            except AssertionError as error:
                raise AssertionError(f"{error}\nafter action {number}: {self._log}") from error

    def _on_page(self) -> None:
        name = self._random.choices(list(self._page), self._weights)[0]
        self._log.append(name)
        self._page[name]()

    def _act(self, selector: str, action: str, values: int = 0) -> bool:
        """Act on an element that is visible and enabled, and return whether there is one."""
        chances = [self._random.random() for _ in range(1 + values)]
        name = self._host.view.evaluate(ACT, [selector, LEFT_OUT, action, chances])
        self._log[-1] += f" {name} {chances}"
        return bool(name)

    def _key(self) -> None:
        key = self._random.choice(KEYS)
        self._log[-1] += f" {key}"
        if self._act("input[type=range]", "focus"):
            self._host.page.keyboard.press(key)

    def _edit(self) -> None:
        """Type into a field, and export at once: the cells are never those of the plan before."""
        name = self._random.choice(list(EDITS))
        text, enters = self._random.choice(EDITS[name]), self._random.random() < 0.7
        self._log[-1] += f" {name} {text}{' Enter' * enters}"
        before, field = len(self._host.inserted), self._host.view.locator(f"input[name='workload-{name}']")
        field.fill(text)
        if enters:
            field.press("Enter")
        self._host.view.locator(".smp-verdict button.smp-primary").evaluate("button => button.click()")
        if self._hears:
            self._host.settle()
            for cells in self._host.inserted[before:]:
                if cells["what"] == "job":  # that of a rehearsal, asked for before, names no plan
                    assert cells["sources"] == self._host.advisor.cells("job"), "cells of the plan before the edit"

    def _python(self) -> None:
        advice = self._host.advisor.advice
        actions: dict[str, Callable[[], Any]] = {
            "undo": advice.undo,
            "redo": advice.redo,
            "reset": advice.reset,
            "adopt": lambda: advice.adopt(self._random.randrange(8)),
            "plan": lambda: setattr(advice, "plan", advice.recommended.plan),
        }
        name = self._random.choice(list(actions))
        self._log[-1] += f" {name}"
        try:
            actions[name]()
        except AdvisorError as error:
            self._log[-1] += f" refused: {error}"

    def _busy(self) -> None:
        self._hears = False
        with self._host.busy():
            for _ in range(self._random.randint(1, 4)):
                self._on_page()
        self._hears = True

    def _add_view(self) -> None:
        if self._views < MOST_VIEWS:
            self._views += 1
            self._host.add_view()

    def _restart(self) -> None:
        """The kernel restarts under a user who goes on, and then runs the cell again."""
        self._hears = False
        self._host.restart_kernel()
        for _ in range(self._random.randint(0, 3)):
            self._on_page()
        self._views, self._hears = 1, True
        self._host.show(self._make())

    def compare(self) -> None:
        """Page, kernel, saved notebook and exported cell are about the same plan, and the page has no error."""
        self._host.settle()
        for back in self._host.document.get_by_role("button", name="Back to the fields of the plan").all():
            back.evaluate("button => button.click()")  # of edits that were not applied, or fit nowhere
        advisor = self._host.advisor
        advice = advisor.advice
        state, problem = advisor.state, advice.controls.problem
        assert advisor.plan == advice.plan
        if not problem:
            fresh = estimate(advice.model, advice.cluster, advice.job, advice.plan)
            assert advice.estimate == fresh
            assert dict(advice.controls.settings) == dict(state["settings"])
        for view in self._host.document.locator(".smp").all():
            shown = view.evaluate(SHOWN)
            for control in advisor._controls:
                value, values = state["settings"][control["name"]], list(control["values"])
                is_checkbox = advisor.recommendation["controls"][control["name"]]["kind"] == "checkbox"
                expected = value if is_checkbox else values.index(value) if value in values else None
                on_page = shown["settings"].get(control["name"])
                assert expected is None or on_page == expected, (control["name"], on_page, expected)
            needed = "–" if problem else f"{advice.estimate.needed_gib:,.1f}"
            assert needed in shown["memory"], (needed, shown["memory"])
        saved = html.unescape(str(advisor._repr_mimebundle_()[0]["text/html"]))
        assert f"{advice.estimate.needed_gib:,.1f}" in saved
        if not problem:
            self._compare_cells()
        assert self._host.errors == [], self._host.errors

    def _compare_cells(self) -> None:
        button = self._host.view.locator(".smp-verdict button.smp-primary")
        status = self._host.view.locator(".smp-status").first
        before = len(self._host.inserted)
        if button.inner_text() == "Make it fit":  # below the required probability
            self._host.view.locator(".smp-menu").evaluate("menu => { menu.open = true; }")
            button = self._host.view.get_by_role("button", name="Insert it anyway")
        button.evaluate("button => button.click()")  # off where there is no cell; then it gives the reason
        try:
            sources = self._host.advisor.cells("job")
        except AdvisorError as error:
            expect(status).to_contain_text(str(error))
            return
        expect(status).to_have_text(re.compile("^Inserted "))
        self._host.settle()
        assert len(self._host.inserted) == before + 1
        assert self._host.inserted[-1]["sources"] == sources, "the cell is not that of the plan on screen"


def make_advice() -> Advice:
    return smpa.advise(
        "10B", "ml.p4d.24xlarge", instance_count=2, library="smp-v1", family="gpt2", sequence_length=512, tokens="20B"
    )


def test_random_actions(host, request, monkey_seed):
    Monkey(host(make_advice()), make_advice, monkey_seed).act(request.config.getoption("monkey_actions"))
