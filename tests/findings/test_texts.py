"""Texts and examples of the checks."""

import ast
import re
from pathlib import Path

import pytest

import smp_advisor
from scripts.pages.checks import checks_page, page_of, section_page
from smp_advisor import check_estimator, check_script
from smp_advisor.core.files import data_file
from smp_advisor.review.findings.catalog import Check, Wording, catalog, sections
from smp_advisor.review.findings.code_hosts import as_sarif
from smp_advisor.review.findings.finding import Finding
from smp_advisor.review.findings.report import Report

CHECKS = list(catalog().values())
WORDINGS = [(check, name, wording) for check in CHECKS for name, wording in check.wordings.items()]
PLACE = {"path": "train.py", "line": 1, "column": 1, "text": "x"}
CODE = re.compile(r"```.*?```", re.DOTALL)

PUBLISHERS = (
    "https://docs.aws.amazon.com/sagemaker/latest/",
    "https://deepspeed.readthedocs.io/",
    "https://docs.pytorch.org/",
    "https://github.com/aws/",
    "https://huggingface.co/docs/",
    "https://lightning.ai/docs/",
    "https://www.tensorflow.org/",
)


def finding(check: Check, variant: str, wording: Wording) -> Finding:
    return check.finding({name: field.example for name, field in wording.fields.items()}, variant=variant, **PLACE)


@pytest.mark.slow
def test_the_page_is_the_generated_one(root: Path) -> None:
    page = (root / "docs" / "checks.md").read_text("utf-8")
    assert page.startswith(checks_page()), "run: make pages"
    for section in sections():
        for check in section.checks:
            assert f"[{check.id}]({page_of(section)}#{check.id.lower()})" in page
            assert f"\n## {check.id}\n\n{check.title}\n" in section_page(section)

    for page in (checks_page(), *map(section_page, sections())):
        assert not re.search(r"[{}…]|\*\.\*", CODE.sub("", page))


def test_every_text_is_a_sentence(subtests: pytest.Subtests) -> None:
    for check, variant, wording in WORDINGS:
        with subtests.test(f"{check.id} {variant}"):
            made = finding(check, variant, wording)
            for sentence in (made.message, made.consequence, made.remedy, check.consequence, check.remedy):
                assert re.fullmatch(r"[^{}…]+[.)\]]\.?", sentence), sentence
                assert sentence.endswith("."), sentence
            assert made.source_url.startswith(PUBLISHERS)
            for field in wording.fields.values():
                assert field.means


def test_sarif_rules_and_results_have_no_placeholder() -> None:
    findings = tuple(finding(*row) for row in WORDINGS)
    (run,) = as_sarif(Report(findings, (), "train.py"))["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert {rule["id"] for rule in rules} == set(catalog())
    for text in [rule[key]["text"] for rule in rules for key in ("shortDescription", "fullDescription", "help")]:
        assert not re.search(r"[{}…]", text), text
    for result in run["results"]:
        assert not re.search(r"[{}…]", result["message"]["text"]), result


EXAMPLES = [(check, example) for check in catalog().values() for example in check.examples]
UNUSUAL = {
    ("EST508", "host memory"),
    ("EST513", ""),
    ("EST514", "no Python"),
    ("TRN717", ""),
    ("TRN717", "file"),
    ("TRN720", "later"),
    ("EST508", "host memory, certainly"),
    ("EST508", "GPU memory"),
    *(("EST515", name) for name in ("elsewhere", "not resumed", "volume", "lost", "in the model")),
    *(("EST513", "next to it"), ("EST514", "no channel"), ("TRN723", "of the job")),
    ("SMP003", "received"),
    ("SMP003", "text"),
    ("SMP004", "flag"),
    ("SMP004", "ignored"),
    ("SMP004", "refused"),
}
"""Variants that take a very deep and narrow model, which is no example of anything, or a file that is named."""


def report(check: Check, code: str, plan: dict[str, object]) -> Report:
    return check_estimator(code) if check.id.startswith("EST") else check_script(code, plan)


def pattern(check: Check, variant: str) -> str:
    """The variant's message with any values."""
    return re.sub(r"\\\{\w+(:[^{}]*)?\\\}", ".*", re.escape(check.wordings[variant].message))


def test_every_variant_is_used_and_has_an_example() -> None:
    """A finding with an unknown variant would fail only when it is reported."""
    used = set()
    for pattern in ("review/scripts/checks/*.py", "review/scripts/processes.py", "estimators/checks/*.py"):
        for path in Path(smp_advisor.__file__).parent.glob(pattern):
            tree = ast.parse(path.read_text("utf-8"))
            used |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    composed = {"v1 with the MPI driver on one node"}
    composed |= {row.get("name", "") for row in data_file("review.scripts", "combinations")["row"]}
    assert {name for _, name, _ in WORDINGS} - {""} <= used | composed

    shown = {(check.id, example.variant) for check, example in EXAMPLES}
    assert {(check.id, name) for check in catalog().values() for name in check.wordings} - shown == UNUSUAL


def test_the_bad_example_has_this_defect_alone(subtests: pytest.Subtests) -> None:
    for check, example in EXAMPLES:
        with subtests.test(f"{check.id} {example.variant}"):
            assert not (good := report(check, example.good, example.plan)), str(good)
            findings = report(check, example.bad, example.plan)
            assert {finding.id for finding in findings} == {check.id}, str(findings)
            for finding in findings:
                assert not re.search(r"[{}…]", f"{finding.message} {finding.consequence} {finding.remedy}")
            messages = [
                finding for finding in findings if re.fullmatch(pattern(check, example.variant), finding.message)
            ]
            assert messages, str(findings)
            assert messages[0].severity == check.wordings[example.variant].severity
