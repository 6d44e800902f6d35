"""``smp-advisor advise 10B --instance ml.p4d.24xlarge --count 16``: the advisor on the command line and in CI."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smp_advisor.command.options import parse, parser
from smp_advisor.errors import AdvisorError
from smp_advisor.files import write_text
from smp_advisor.tools.answers import SCHEMA, WRONG
from smp_advisor.tools.verbs import VERBS

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Exit status: 0 for yes, 1 for no, 2 for an input that is wrong."""
    try:
        options = parse(arguments)
        if options.verb in _OTHERS:
            return _say(_OTHERS[options.verb](options))
        answer = VERBS[options.verb](options)
        if options.json == "full":
            text = _json({"schema": SCHEMA, "verb": options.verb, "status": answer.status, "value": answer.full()})
        else:
            text = _json(answer.compact()) if options.json else answer.text
    except AdvisorError as error:
        print(f"smp-advisor: {error}", file=sys.stderr)  # noqa: T201 - a command line program
        return WRONG
    except KeyboardInterrupt:
        return 130
    _say(text)
    return answer.status


def _say(text: str) -> int:
    try:
        print(text, end="\n" if text else "")  # noqa: T201 - a command line program
    except BrokenPipeError:
        sys.stderr.close()  # the reader has seen enough
    return 0


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)


def _completion(options: Namespace) -> str:
    """The script with which a shell completes verbs, options and their values."""
    try:
        import shtab
    except ImportError:
        raise AdvisorError("Completion requires shtab: pip install 'smp-advisor[completion]'.") from None
    return str(shtab.complete(parser(), shell=options.shell))


def _serve(options: Namespace) -> str:
    """Serve assistants until their input ends."""
    from smp_advisor.tools.server import serve

    serve(tuple(Path(folder).resolve() for folder in options.root) or (Path.cwd(),))
    return ""


def _skill(options: Namespace) -> str:
    """The skill, or where it was written."""
    text = (files("smp_advisor.tools") / "data" / "SKILL.md").read_text(encoding="utf-8")
    if not options.install:
        return text
    place = Path(options.install) / "smp-advisor" / "SKILL.md"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place, text)
    except OSError as error:
        raise AdvisorError(f"{str(place)!r:.200} cannot be written: {error.strerror or error}.") from None
    return f"Wrote {place}."


_OTHERS: Mapping[str, Callable[[Namespace], str]] = {"completion": _completion, "mcp": _serve, "skill": _skill}
"""Verbs that answer no question."""


if __name__ == "__main__":
    sys.exit(main())
