"""Loading of the extension: magics, and completion of their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from smp_advisor.notebook.magics import AdvisorMagics
from smp_advisor.notebook.run_magics import ProfileMagics, RunMagics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from IPython.core.interactiveshell import InteractiveShell


# mypy: allow-untyped-calls
# IPython does not annotate the functions called here.


def option_words(magic: Any, typed: str) -> list[str]:
    """Words that can come next: values of the preceding option, or options that are not used yet."""
    words = typed.split()
    if typed and not typed[-1].isspace():
        words = words[:-1]
    # argparse has no public list of its options.
    options = magic.parser._actions  # noqa: SLF001
    actions = [action for action in options if action.option_strings and action.dest != "help"]
    for action in actions:
        if words and words[-1] in action.option_strings and action.nargs != 0:
            if action.dest not in {"cluster", "instance"}:
                return list(action.choices or ())
            from smp_advisor.cluster.table import instances

            return [instance.name for instance in instances()]
    return [action.option_strings[0] for action in actions if not set(action.option_strings) & set(words)]


def complete_options(shell: InteractiveShell, magics: Mapping[str, Any]) -> Callable[[], None]:
    """Register completion for each magic by name. The returned function removes it."""
    registered: list[tuple[str, Any]] = []
    for name, magic in magics.items():

        def complete(_: InteractiveShell, event: Any, magic: Any = magic) -> list[str]:
            return option_words(magic, event.line)

        for key in (f"%{name}", f"%%{name}"):
            shell.set_hook("complete_command", complete, str_key=key)
            registered.append((key, complete))

    def undo() -> None:
        dispatch = shell.strdispatchers["complete_command"].strs
        for key, _ in registered:
            dispatch.pop(key, None)

    return undo


MAGICS = (
    "smp_advise", "smp_export", "smp_check", "smp_profile", "smp_local", "smp_prove", "smp_start", "smp_watch",
    "smp_calibrate", "smp_clusters",
)  # fmt: skip
_CLASSES = (AdvisorMagics, ProfileMagics, RunMagics)

_loaded: WeakKeyDictionary[Any, Callable[[], None]] = WeakKeyDictionary()


def load(shell: InteractiveShell) -> None:
    """Register the magics and their completion. A second call does nothing."""
    if shell in _loaded:
        return
    groups = [group(shell) for group in _CLASSES]
    shell.register_magics(*groups)
    magics = {name: getattr(group, name) for name in MAGICS for group in groups if hasattr(group, name)}
    _loaded[shell] = complete_options(shell, magics)


def unload(shell: InteractiveShell) -> None:
    """Remove the magics and their completion."""
    undo = _loaded.pop(shell, None)
    if undo is None:
        return
    undo()
    for name in MAGICS:
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop(name, None)
    for group in _CLASSES:
        shell.magics_manager.registry.pop(group.__name__, None)
