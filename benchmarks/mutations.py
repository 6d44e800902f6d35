"""Break working scripts, one documented rule at a time, and count the defects that the checker finds.

    python benchmarks/mutations.py [FOLDER_OR_FILES...] [--styles] [--combined] [--sites N] [--json FILE] [--details]

Without arguments it mutates the scripts in `benchmarks/scripts`. All files of a folder are read, including modules that
a script imports from it, and all are mutated. A mutation is caught if the checker has more findings than before of the
check for this rule, which `mutation_operators/expected.toml` names. `--styles` writes each script in twelve ways,
before and after the mutation. `--combined` breaks two rules at once and requires a report of both. The exit status is 1
if fewer than 97 % are caught.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import shutil
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from mutation_operators import OPERATORS, Operator, Script  # noqa: E402
from mutation_styles import STYLES, plain  # noqa: E402

from smp_advisor.errors import AdvisorError  # noqa: E402
from smp_advisor.scripts import check_script  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHARE = 0.97
_REPLACING = (
    "no_step_decorator",
    "deepspeed",
    "names_of_version_1",
    "replicated_instead",
    "not_sharded",
    "no_sampler",
)
"""Operators that remove the library's call itself, so that other rules no longer apply."""
_PREREQUISITES = {"SMP101", "SMP102", "SMP103", "SMP105", "SMP108", "SMP301", "SMP303"}
"""Checks of missing calls. SMP002 lists all missing calls, where one of them hides the place of another."""
_TABLES = tomllib.loads((Path(__file__).parent / "mutation_operators" / "expected.toml").read_text("utf-8"))
EXPECTED = {
    f"{library}.{name}": {ids} if isinstance(ids, str) else set(ids)
    for library, table in _TABLES.items()
    for name, ids in table.items()
}
"""Ids of the checks for each operator; one of them must report the mutation."""
_LIBRARIES = {
    "torch": "smdistributed.modelparallel.torch",
    "tensorflow": "smdistributed.modelparallel.tensorflow",
    "v2": "torch.sagemaker",
    "compiler": "torch_xla",
    "fsdp": "torch.distributed.fsdp",
    "ddp": "torch.nn.parallel",
    "accelerate": "accelerate",
}
_CHECKED_AS = {"torch": "smp-v1", "tensorflow": "smp-v1", "v2": "smp-v2", "compiler": "training-compiler"}


def kind_of(text: str) -> str | None:
    """Library that a script imports."""
    return next((kind for kind, name in _LIBRARIES.items() if f"import {name}" in text or f"from {name}" in text), None)


def scripts_in(paths: list[Path]) -> list[Path]:
    scripts: list[Path] = []
    for path in paths:
        scripts += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return scripts


def different(paths: list[Path]) -> list[Path]:
    """The paths without duplicates, which have the same text and the same files in their folder."""
    by_digest: dict[str, Path] = {}
    for path in paths:
        siblings = sorted(sibling.read_bytes() for sibling in path.parent.glob("*.py"))
        by_digest.setdefault(hashlib.sha256(b"\0".join([path.read_bytes(), *siblings])).hexdigest(), path)
    return list(by_digest.values())


def findings(path: Path, operator: Operator | None, kind: str) -> Counter[str]:
    plan = dict(operator.plan) if operator is not None and operator.plan else None
    report = check_script(path, plan, library=_CHECKED_AS.get(kind))
    return Counter(finding.id for finding in report if finding.severity in ("error", "warning"))


def roots(folder: list[Path], kind: str) -> list[Path]:
    """Files of a folder to check: scripts that no other file imports."""
    texts = {path: path.read_text(errors="replace") for path in folder}
    imported = {
        name.split(".")[0] for path, text in texts.items() for name in _imports(text) if path.stem != name.split(".")[0]
    }
    own = [p for p, t in texts.items() if p.stem not in imported and (kind_of(t) == kind or "import" in t)]
    return [p for p in own if kind_of(texts[p]) is not None or "__main__" in texts[p]] or own


@cache
def _imports(text: str) -> set[str]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def run(
    path: Path,
    operators: list[Operator],
    style: Callable[[str], str] = plain,
    *,
    combined: bool = False,
    sites: int = 4,
) -> list[dict[str, object]]:
    """Mutations of one file, at the first `sites` places of each operator, with the checker's new findings."""
    text = path.read_text()
    kind = kind_of(text)
    if kind is None:
        return []
    results = []
    unchanged: dict[tuple[Path, str], Counter[str]] = {}
    siblings = sorted(path.parent.glob("*.py"))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for sibling in siblings:
            shutil.copy(sibling, work / sibling.name)
        checked = {work / root.name for root in roots(siblings, kind)} & {work / path.name} or {
            work / root.name for root in roots(siblings, kind) if _uses(siblings, root, path)
        }
        checked.add(work / path.name)
        (work / path.name).write_text(style(text))
        for operator, number, mutated, expected in _mutations(text, kind, operators, combined=combined, sites=sites):
            new = Counter[str]()
            for root in checked:
                before = unchanged.get((root, str(operator.plan)))
                if before is None:
                    before = unchanged[root, str(operator.plan)] = findings(root, operator, kind)
                (work / path.name).write_text(style(mutated))
                new += findings(root, operator, kind) - before
                (work / path.name).write_text(style(text))
            results.append(
                {
                    "operator": operator.name,
                    "rule": operator.rule,
                    "page": operator.page,
                    "script": str(path),
                    "style": style.__name__,
                    "site": number,
                    "caught": all(ids & set(new) for ids in expected),
                    "expected": [sorted(ids) for ids in expected],
                    "new": sorted(new),
                    "changed": _changed(text, mutated),
                }
            )
    return results


def _mutations(
    text: str, kind: str, operators: list[Operator], *, combined: bool, sites: int
) -> Iterator[tuple[Operator, int, str, list[set[str]]]]:
    """Every mutated text, with the ids to report; with `combined`, each operator's first place with the next one's."""
    mine = [operator for operator in operators if operator.library == kind and operator.needs in text]
    script = Script(text)
    for position, operator in enumerate(mine):
        for number, mutated in enumerate(operator.apply(script)):
            if number == (1 if combined else sites):
                break
            if not _parses(mutated):
                continue  # the operator does not fit this script's layout
            if not combined:
                yield operator, number, mutated, [EXPECTED[operator.name]]
                continue
            for second in mine[position + 1 :]:
                both = next(iter(second.apply(Script(mutated))), None) if second.plan == operator.plan else None
                first = EXPECTED[operator.name]
                apart = not first & EXPECTED[second.name] and not second.name.endswith(_REPLACING)
                if both is not None and _parses(both) and apart and not operator.name.endswith(_REPLACING):
                    yield operator, number, both, [_or_listed(first), _or_listed(EXPECTED[second.name])]
                    break


def _or_listed(ids: set[str]) -> set[str]:
    return ids | {"SMP002"} if ids & _PREREQUISITES else ids


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _uses(siblings: list[Path], root: Path, path: Path) -> bool:
    """Whether `root` imports `path`, directly or through other files of the folder."""
    visited, todo = set(), [root]
    while todo:
        here = todo.pop()
        if here in visited:
            continue
        visited.add(here)
        names = {name.split(".")[0] for name in _imports(here.read_text(errors="replace"))}
        todo += [sibling for sibling in siblings if sibling.stem in names]
    return path in visited


def _changed(before: str, after: str) -> str:
    """First line that the mutation wrote."""
    old = Counter(before.splitlines())
    return next((line.strip() for line in after.splitlines() if not old[line]), "(one line removed)")


def unmutated(paths: list[Path]) -> list[dict[str, object]]:
    """Errors in unchanged scripts. They are false unless the script is wrong."""
    errors = []
    for path in paths:
        kind = kind_of(path.read_text(errors="replace"))
        if kind is None:
            continue
        try:
            report = check_script(path, library=_CHECKED_AS.get(kind))
        except AdvisorError as error:
            errors.append({"script": str(path), "id": "unreadable", "line": 0, "text": "", "message": str(error)})
            continue
        errors += [
            {"script": str(path), "id": f.id, "line": f.line, "text": f.text.strip(), "message": f.message}
            for f in report.of("error")
        ]
    return errors


def _print_shares(results: list[dict[str, object]], files: int, *, details: bool) -> float:
    """Print the share of each operator, and return that of all."""
    applied: dict[str, list[bool]] = defaultdict(list)
    for result in results:
        applied[str(result["operator"])].append(bool(result["caught"]))
    width = max((len(operator.name) for operator in OPERATORS), default=10)
    for operator in OPERATORS:
        caught_sites = applied.get(operator.name, [])
        mark = "" if all(caught_sites) else "  <- missed"
        result_text = f"{sum(caught_sites):4} of {len(caught_sites):4}{mark if caught_sites else '  (not applicable)'}"
        print(f"{operator.name:{width}}  {result_text}")
    caught, total = sum(bool(r["caught"]) for r in results), len(results)
    share = caught / total if total else 0.0
    print(f"\n{caught} of {total} mutations caught ({share:.1%}), {files} files")
    if details:
        for result in results:
            if not result["caught"]:
                place = f"{result['script']}: {result['style']}: {result['changed']}"
                print(f"missed {result['operator']}: {place}: {result['new']} instead of {result['expected']}")
    return share


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[Path(__file__).parent / "scripts"])
    parser.add_argument("--json", type=Path, help="write every mutation and finding to this file")
    parser.add_argument("--styles", action="store_true", help="write each script in twelve ways")
    parser.add_argument("--combined", action="store_true", help="break two rules at once")
    parser.add_argument("--sites", type=int, default=4, help="most places per operator and file (default 4)")
    parser.add_argument("--details", action="store_true", help="list missed mutations")
    args = parser.parse_args()

    paths = different(scripts_in(args.paths))
    results = []
    for path in paths:
        for style in STYLES if args.styles else STYLES[:1]:
            results += run(path, OPERATORS, style, combined=args.combined, sites=args.sites)
        if args.details:
            print(f"{len(results):6} mutations up to {path}", file=sys.stderr, flush=True)
    errors = unmutated(paths)

    share = _print_shares(results, len(paths), details=args.details)
    print(f"{len(errors)} errors in unchanged scripts")
    for error in errors:
        print(f"  {error['script']}:{error['line']} {error['id']} {error['message']}")
    if args.json:
        args.json.write_text(json.dumps({"share": share, "mutations": results, "unmutated_errors": errors}, indent=2))
    return 0 if share >= SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
