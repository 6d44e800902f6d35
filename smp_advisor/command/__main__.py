"""``smp-advisor advise 10B --instance ml.p4d.24xlarge --count 16``: the advisor on the command line and in CI."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from smp_advisor.command.options import parse
from smp_advisor.command.verbs import VERBS, WRONG
from smp_advisor.errors import AdvisorError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Exit status: 0 for yes, 1 for no, 2 for an input that is wrong."""
    try:
        options = parse(arguments)
        answer = VERBS[options.verb](options)
    except AdvisorError as error:
        print(f"smp-advisor: {error}", file=sys.stderr)  # noqa: T201 - a command line program
        return WRONG
    except KeyboardInterrupt:
        return 130
    try:
        print(json.dumps(answer.data, indent=1, ensure_ascii=False) if options.json else answer.text)  # noqa: T201
    except BrokenPipeError:
        sys.stderr.close()  # the reader has seen enough
    return answer.status


if __name__ == "__main__":
    sys.exit(main())
