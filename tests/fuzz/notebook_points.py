"""Every magic, and every message and trait of the widget, with random texts and values."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

import smp_advisor as smpa
from smp_advisor.notebook.cells import KINDS
from smp_advisor.notebook.loading import MAGICS
from smp_advisor.notebook.panels import PANELS
from smp_advisor.notebook.workload_fields import workload_fields

from .values import VALUES, Values

__all__ = ["NotebookPoints"]

ADVISE = "350M -i ml.p4d.24xlarge --library ddp -s 512 --tokens 1B"
SETTLED = {
    "smp_advise": ADVISE,
    "smp_export": "",
    "smp_check": "nothing.py",
    "smp_profile": "no_model",
    "smp_local": "--name no.txt",
    "smp_rehearse": "no.py",
    "smp_start": "--folder /dev/null/no",
    "smp_watch": "no/such.log",
    "smp_calibrate": "nothing.log",
    "smp_clusters": "--counts 0",
}
"""A quick line of each magic, to which random options are added."""
SKIPPED = {"--job", "--yes", "--local"}
"""Options that connect to AWS."""
SCRIPT = "import torch\nimport smdistributed.modelparallel.torch as smp\nsmp.init()\n"
CELLS = ("", "x = 1\n", SCRIPT, "(" * 5000, "a: &a [*a]\n")
ACTIONS = ("undo", "redo", "adopt", "pin", "reset")
KINDS_OF_MESSAGES = ("move", "export", "act", "search", "cancel", "panel", "check", "paste", "ready")


class NotebookPoints(Values):
    """Calls of the magics and messages of a page."""

    def __init__(self, random: Random, shell: InteractiveShell) -> None:
        super().__init__(random)
        self.shell = shell
        self.advisor: smpa.Advisor = shell.run_line_magic("smp_advise", ADVISE)
        self.fields = [field["name"] for field in workload_fields(self.advisor.advice)]
        shell.user_ns |= {f"v{number}": value for number, value in enumerate(VALUES)}
        magic_of = self._function  # IPython's own expansion of variables takes minutes for some lines
        magics = {f"%{name}": self._magic(name) for name in MAGICS}
        self.calls: dict[str, Callable[[], object]] = {
            **magics,
            "%%smp_check": lambda: magic_of("smp_check")(self._line("smp_check", ""), self.text(*CELLS)),
            "message": lambda: self.advisor._on_message(None, _as_json(self._message()), []),
            "state": lambda: self.advisor.set_state(_as_json(self._state())),
        }
        """Each entry point by its name, for one call."""

    def _magic(self, name: str) -> Callable[[], object]:
        if name == "smp_local":  # a cell magic, whose cell would run
            return lambda: self._function(name)(f"--name no.txt {self._options(name)}", "x = 1\n")
        return lambda: self._function(name)(self._line(name, SETTLED[name]))

    def _function(self, name: str) -> Any:
        return self.shell.find_line_magic(name) or self.shell.find_cell_magic(name)

    def _line(self, name: str, start: str) -> str:
        if name != "smp_profile" and self.random.random() < 0.3:  # a profile of a valid model takes seconds
            return " ".join(self.text() for _ in range(self.random.randint(0, 3)))
        return f"{start} {self._options(name)}"

    def _options(self, name: str) -> str:
        options = [option for action in self._function(name).parser._actions for option in action.option_strings]
        variable = f"v{self.random.randrange(len(VALUES))}"
        chosen = [option for option in self.random.sample(options, min(2, len(options))) if option not in SKIPPED]
        return " ".join(f"{option} {self.text(variable, '1', '')}" for option in chosen)

    def _settings(self) -> object:
        """Settings of a request: those on screen with random ones."""
        settings = dict(self.advisor.advice.controls.settings)
        if self.random.random() < 0.5:
            settings[self.random.choice([*settings, "no"])] = self.any()
        return self.any(settings, settings)

    def _request(self) -> object:
        name = self.random.choice([*self.advisor.advice.controls.settings, "no"])
        request = {
            "id": self.any("v:1", f"v:{self.random.randrange(10**6)}", "v:²", "v:" + "9" * 5000),
            "settings": self._settings(),
            "moved": self.any(name),
            "value": self.any(),
            "gesture": self.any("g"),
        }
        return self._damaged(request)

    def _damaged(self, content: dict[str, Any]) -> Any:
        """The content, with or without some keys, or something else."""
        if self.random.random() < 0.1:
            return self.any()
        return {key: value for key, value in content.items() if self.random.random() < 0.9}

    def _message(self) -> object:
        kind = self.any(*KINDS_OF_MESSAGES)
        workload = {self.random.choice([*self.fields, "no"]): self.any(self.text()) for _ in range(2)}
        if kind == "search" and not any(isinstance(value, str) for value in workload.values()):
            workload = {}
        by_kind: dict[object, dict[str, Any]] = {
            "move": {"request": self._request()},
            "export": {"request": self._request(), "what": self.any(*KINDS), "sdk": self.any("v2", "v3")},
            "act": {"action": self.any(*ACTIONS), "value": self.any("a", 1)},
            "search": {"workload": self.any(workload), "pin": self.any({"name": self.any(), "value": self.any()})},
            "panel": {
                "name": self.any(*(set(PANELS) - {"clusters"})),
                "settings": self._settings(),
                "options": self.any({"first": self.any("a"), "second": self.any()}),
            },
            "check": {"path": self.any(self.text())},
            "paste": {"text": self.any(*CELLS, self.text())},
        }
        rest = by_kind.get(kind, {}) if isinstance(kind, str) else {}
        return self._damaged({"kind": kind, "id": self.any("x:1"), **rest})

    def _state(self) -> dict[str, Any]:
        names = ("_request", "_state", "_ahead", "_recommendation")
        return {self.random.choice(names): self.any(self._request(), {})}

    def settle(self) -> None:
        """Wait for a search of the page."""
        self.advisor._searching.join()

    def still_works(self) -> bool:
        """Whether a correct move and the line of the magic have their usual results."""
        advice = self.advisor.advice
        library = advice.plan.library
        state = self.advisor._state
        advice.reset()
        return advice.is_recommended and library == advice.plan.library and {"settings", "history"} <= state.keys()


def _as_json(content: object) -> Any:
    """A message as it arrives from a page."""
    return json.loads(json.dumps(content, default=repr, skipkeys=True))
