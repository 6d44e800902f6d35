"""Loading of the extension: the names of the magics, each of which imports its code when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from IPython.core.interactiveshell import InteractiveShell


_KINDS: dict[str, tuple[str, ...]] = {
    "smp_advise": ("line",),
    "smp_export": ("line",),
    "smp_check": ("line", "cell"),
    "smp_profile": ("line",),
    "smp_local": ("cell",),
    "smp_rehearse": ("line", "cell"),
    "smp_start": ("line",),
    "smp_watch": ("line",),
    "smp_calibrate": ("line",),
    "smp_clusters": ("line",),
}
MAGICS = tuple(_KINDS)

_loaded: WeakKeyDictionary[Any, Callable[[], None]] = WeakKeyDictionary()


class _Magic:
    """A magic by its name: its code, its documentation and its options are imported when they are needed."""

    def __init__(self, shell: InteractiveShell, name: str) -> None:
        self._shell, self._name, self.__name__ = shell, name, name

    @property
    def _code(self) -> Any:
        from smp_advisor.notebook.magics import magics_of

        return magics_of(self._shell)[self._name]

    def __call__(self, line: str, cell: str | None = None) -> Any:
        return self._code(line) if cell is None else self._code(line, cell)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # marks of IPython, which these magics do not have
            raise AttributeError(name)
        return getattr(self._code, name)

    __doc__ = property(lambda self: self._code.__doc__)


def load(shell: InteractiveShell) -> None:
    """Register the magics and their completion. A second call does nothing."""
    if shell in _loaded:
        return
    magics = [_Magic(shell, name) for name in MAGICS]
    for magic in magics:
        for kind in _KINDS[magic.__name__]:
            shell.magics_manager.magics[kind][magic.__name__] = magic
    _loaded[shell] = _complete_options(shell, magics)


def unload(shell: InteractiveShell) -> None:
    """Remove the magics and their completion."""
    undo = _loaded.pop(shell, None)
    if undo is None:
        return
    undo()
    for name, kinds in _KINDS.items():
        for kind in kinds:
            shell.magics_manager.magics[kind].pop(name, None)


def _option_words(magic: Any, typed: str) -> list[str]:
    """Return the words that can come next: values of the preceding option, or options that are not used yet."""
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


def _complete_options(shell: InteractiveShell, magics: Iterable[_Magic]) -> Callable[[], None]:
    """Register completion for each magic. The returned function removes it."""
    registered: list[str] = []
    for magic in magics:

        def complete(_: InteractiveShell, event: Any, magic: Any = magic) -> list[str]:
            return _option_words(magic, event.line)

        for key in (f"%{magic.__name__}", f"%%{magic.__name__}"):
            shell.set_hook("complete_command", complete, str_key=key)
            registered.append(key)

    def undo() -> None:
        dispatch = shell.strdispatchers["complete_command"].strs
        for key in registered:
            dispatch.pop(key, None)

    return undo
