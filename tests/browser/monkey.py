"""Random actions on a view and on its kernel side, after which page, kernel, saved notebook and cell must agree.

The actions are those of a hurried user: keys, drags, clicks and menus, Python code that moves the same advice, a kernel
that is busy or restarts, and a second view.
"""

from __future__ import annotations

import html
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from playwright.sync_api import Error, Locator

from smp_advisor import estimate
from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from smp_advisor.advice.live import LiveAdvice

    from .host import Host

__all__ = ["Monkey"]

KEYS = ("ArrowLeft", "ArrowRight", "Home", "End", "PageUp", "PageDown")
LEFT_OUT = ("Copy", "Save", "Check", "Run the cell again", "Cancel", "Profile", "Search")
"""Starts of the names of buttons that work outside the advisor, or start longer work."""
MOST_VIEWS = 2
PATIENCE_MS = 1000
SHOWN = """
view => ({
  settings: Object.fromEntries([...view.querySelectorAll('.smp-controls [name]')].map(input =>
    [input.name, input.type === 'checkbox' ? input.checked : Number(input.value)])),
  memory: view.querySelector('.smp-memory')?.textContent ?? '',
  stale: view.querySelector('.smp-stale')?.checkVisibility() ?? false,
})
"""
DRAG = """
(slider, positions) => {
  for (const position of positions) {
    slider.value = String(position);
    slider.dispatchEvent(new Event('input', { bubbles: true }));
  }
  slider.dispatchEvent(new Event('change', { bubbles: true }));
}
"""


class Monkey:
    """Acts on a page, and compares what everybody shows.

    Parameters
    ----------
    host
        A page that shows the advice.
    make
        Makes new advice, for a kernel that restarted.
    seed
        Of the actions.
    """

    def __init__(self, host: Host, make: Callable[[], LiveAdvice], seed: int) -> None:
        self._host, self._make = host, make
        self._random = random.Random(seed)
        self._views = 1
        self.done: Counter[str] = Counter()
        """Number of actions of each kind."""
        self._log: list[str] = []
        self._page: dict[str, Callable[[], object]] = {
            "key": self._key,
            "drag": self._drag,
            "select": self._select,
            "checkbox": self._checkbox,
            "tab": lambda: self._click("[role=tab]"),
            "button": lambda: self._click("button:not([role=tab])", self._is_local),
            "summary": lambda: self._click("summary"),
        }
        self._weights = (30, 10, 12, 6, 8, 12, 4)
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
                    self._note(name)
                    self._kernel[name]()
                if number % 8 == 7 or number == actions - 1:
                    self.compare()
            except AssertionError as error:
                raise AssertionError(f"{error}\nafter action {number}: {self._log}") from error

    def _note(self, action: str) -> None:
        self.done[action.split(maxsplit=1)[0]] += 1
        self._log.append(action)

    def _on_page(self) -> None:
        name = self._random.choices(list(self._page), self._weights)[0]
        self._note(name)
        try:
            self._page[name]()
        except Error:
            # It moved, went away or is under a repair in the meantime, as under a hurried user's pointer.
            self._log[-1] += " missed"

    def _some(self, selector: str, accepted: Callable[[Locator], bool] = lambda _: True) -> Locator | None:
        """A random element that is visible and enabled."""
        elements = self._host.view.locator(selector).all()
        self._random.shuffle(elements)
        return next((e for e in elements if e.is_visible() and e.is_enabled() and accepted(e)), None)

    def _key(self) -> None:
        if (slider := self._some("input[type=range]")) is not None:
            key = self._random.choice(KEYS)
            self._log[-1] += f" {slider.get_attribute('name')} {key}"
            slider.press(key, timeout=PATIENCE_MS)

    def _drag(self) -> None:
        if (slider := self._some("input[type=range]")) is not None:
            last = int(slider.get_attribute("max") or 0)
            positions = [self._random.randint(0, last) for _ in range(self._random.randint(1, 9))]
            self._log[-1] += f" {slider.get_attribute('name')} {positions}"
            slider.evaluate(DRAG, positions, timeout=PATIENCE_MS)

    def _select(self) -> None:
        if (menu := self._some(".smp-controls select")) is not None:
            choice = self._random.randrange(menu.locator("option").count())
            self._log[-1] += f" {menu.get_attribute('name')} {choice}"
            menu.select_option(index=choice, timeout=PATIENCE_MS)

    def _checkbox(self) -> None:
        if (box := self._some(".smp-controls input[type=checkbox]")) is not None:
            self._log[-1] += f" {box.get_attribute('name')}"
            box.click(timeout=PATIENCE_MS)

    def _click(self, selector: str, accepted: Callable[[Locator], bool] = lambda _: True) -> None:
        if (target := self._some(selector, accepted)) is not None:
            self._log[-1] += f" {target.inner_text()[:30]!r}"
            target.click(timeout=PATIENCE_MS)

    @staticmethod
    def _is_local(button: Locator) -> bool:
        return not button.inner_text().startswith(LEFT_OUT)

    def _python(self) -> None:
        advice = self._host.advisor.advice
        actions: dict[str, Callable[[], Any]] = {
            "undo": advice.undo,
            "redo": advice.redo,
            "reset": advice.reset,
            "adopt": lambda: advice.adopt(self._random.randrange(8)),
            "keep": lambda: advice.keep(self._random.choice("abc")),
            "load": lambda: advice.load(self._random.choice("abc")),
            "forget": lambda: advice.forget(self._random.choice("abc")),
            "plan": lambda: setattr(advice, "plan", advice.recommended.plan),
        }
        name = self._random.choice(list(actions))
        self._log[-1] += f" {name}"
        try:
            actions[name]()
        except AdvisorError as error:
            self._log[-1] += f" refused: {error}"

    def _busy(self) -> None:
        with self._host.busy():
            for _ in range(self._random.randint(1, 4)):
                self._on_page()

    def _add_view(self) -> None:
        if self._views < MOST_VIEWS:
            self._views += 1
            self._host.add_view()

    def _restart(self) -> None:
        """The kernel restarts under a user who goes on, and then runs the cell again."""
        self._host.restart_kernel()
        for _ in range(self._random.randint(0, 3)):
            self._on_page()
        self._views = 1
        self._host.show(self._make())

    def compare(self) -> None:
        """Page, kernel, saved notebook and exported cell are about the same plan, and the page has no error."""
        self._host.settle()
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
            for control in state["controls"]:
                value, values = state["settings"][control["name"]], list(control["values"])
                expected = value if control["kind"] == "checkbox" else values.index(value) if value in values else None
                on_page = shown["settings"].get(control["name"])
                assert expected is None or on_page == expected, (control["name"], on_page, expected)
            needed = "Cannot be combined" if problem else f"{advice.estimate.needed_gib:,.1f}"
            assert needed in shown["memory"], (needed, shown["memory"])
        saved = html.unescape(str(advisor._repr_mimebundle_()[0]["text/html"]))
        assert f"{advice.estimate.needed_gib:,.1f}" in saved
        if not problem:
            self._compare_cells()
        assert self._host.errors == [], self._host.errors

    def _compare_cells(self) -> None:
        button = self._host.view.locator(".smp-verdict button.smp-primary")
        before = len(self._host.inserted)
        button.click()
        try:
            sources = self._host.advisor.cells("job")
        except AdvisorError as error:
            self._refused(str(error))
            return
        if not self._inserted(before, seconds=1.0):  # below the required probability, a second click is required
            button.click()
            assert self._inserted(before, seconds=600.0), f"the button inserted no cell: {button.inner_text()}"
        assert self._host.inserted[-1]["sources"] == sources, "the cell is not that of the plan on screen"

    def _refused(self, reason: str) -> None:
        """The page shows the reason why the plan has no cell, at once or after the second click."""
        status = self._host.view.locator(".smp-status").first
        if not self._shows(status, reason, seconds=1.0):
            self._host.view.locator(".smp-verdict button.smp-primary").click()
            assert self._shows(status, reason, seconds=600.0), (reason, status.inner_text())

    def _shows(self, status: Locator, reason: str, seconds: float) -> bool:
        """Whether the view shows a text in this time."""
        for _ in range(int(seconds / 0.05)):
            self._host.settle()
            if reason in status.inner_text():
                return True
            self._host.page.wait_for_timeout(50)
        return False

    def _inserted(self, before: int, seconds: float) -> bool:
        """Whether the view requests the insertion of a cell in this time."""
        for _ in range(int(seconds / 0.05)):
            self._host.settle()
            if len(self._host.inserted) > before:
                return True
            self._host.page.wait_for_timeout(50)
        return False
