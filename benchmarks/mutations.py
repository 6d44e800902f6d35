"""Break working scripts, one documented rule at a time, and count the defects that the checker finds.

    python benchmarks/mutations.py [FOLDER_OR_FILES...] [--json FILE] [--details]

Without arguments it mutates the scripts in `benchmarks/scripts`. All files of a folder are read, including modules that
a script imports from it, and all are mutated. A mutation is caught if the checker has more findings of some id than
before. The exit status is 1 if fewer than 95 % are caught.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from mutation_operators import OPERATORS, Operator, Script  # noqa: E402

from smp_advisor.errors import AdvisorError  # noqa: E402
from smp_advisor.scripts import check_script  # noqa: E402

SHARE = 0.95
SITES = 4
"""Maximum number of places per operator and file."""

_LIBRARIES = {
    "torch": "smdistributed.modelparallel.torch",
    "tensorflow": "smdistributed.modelparallel.tensorflow",
    "v2": "torch.sagemaker",
    "compiler": "torch_xla",
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
    report = check_script(path, plan, library=_CHECKED_AS[kind])
    return Counter(finding.id for finding in report if finding.severity in ("error", "warning"))


def roots(folder: list[Path], kind: str) -> list[Path]:
    """Files of a folder to check: scripts that no other file imports."""
    texts = {path: path.read_text(errors="replace") for path in folder}
    imported = {
        name.split(".")[0] for path, text in texts.items() for name in _imports(text) if path.stem != name.split(".")[0]
    }
    own = [p for p, t in texts.items() if p.stem not in imported and (kind_of(t) == kind or "import" in t)]
    return [p for p in own if kind_of(texts[p]) is not None or "__main__" in texts[p]] or own


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


def run(path: Path, operators: list[Operator]) -> list[dict[str, object]]:
    """Every mutation of one file, with the checker's new findings."""
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
        for operator in operators:
            if operator.library != kind or operator.needs not in text:
                continue
            for number, mutated in enumerate(operator.apply(Script(text))):
                if number == SITES:
                    break
                if not _parses(mutated):
                    continue  # the operator does not fit this script's layout
                new = Counter[str]()
                for root in checked:
                    before = unchanged.get((root, str(operator.plan)))
                    if before is None:
                        before = unchanged[root, str(operator.plan)] = findings(root, operator, kind)
                    (work / path.name).write_text(mutated)
                    new += findings(root, operator, kind) - before
                    (work / path.name).write_text(text)
                results.append(
                    {
                        "operator": operator.name,
                        "rule": operator.rule,
                        "page": operator.page,
                        "script": str(path),
                        "site": number,
                        "caught": bool(new),
                        "new": sorted(new),
                        "changed": _changed(text, mutated),
                    }
                )
    return results


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
            report = check_script(path, library=_CHECKED_AS[kind])
        except AdvisorError as error:
            errors.append({"script": str(path), "id": "unreadable", "line": 0, "text": "", "message": str(error)})
            continue
        errors += [
            {"script": str(path), "id": f.id, "line": f.line, "text": f.text.strip(), "message": f.message}
            for f in report.of("error")
        ]
    return errors


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[Path(__file__).parent / "scripts"])
    parser.add_argument("--json", type=Path, help="write every mutation and finding to this file")
    parser.add_argument("--details", action="store_true", help="list missed mutations")
    args = parser.parse_args()

    paths = different(scripts_in(args.paths))
    results = []
    for path in paths:
        results += run(path, OPERATORS)
        if args.details:
            print(f"{len(results):6} mutations up to {path}", file=sys.stderr, flush=True)
    errors = unmutated(paths)

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
    print(f"\n{caught} of {total} mutations caught ({share:.1%}), {len(paths)} files")
    if args.details:
        for result in results:
            if not result["caught"]:
                print(f"missed {result['operator']}: {result['script']}: {result['changed']}")
    print(f"{len(errors)} errors in unchanged scripts")
    for error in errors:
        print(f"  {error['script']}:{error['line']} {error['id']} {error['message']}")
    if args.json:
        args.json.write_text(json.dumps({"share": share, "mutations": results, "unmutated_errors": errors}, indent=2))
    return 0 if share >= SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
