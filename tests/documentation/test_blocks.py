"""Blocks of the pages run, and print the outputs next to them."""

from pathlib import Path

import pytest
from sybil.example import SybilFailure

from scripts.pages.blocks import ROOT, executed_pages, run

pytestmark = pytest.mark.slow


PYTORCH = "docs/tutorial/from_out_of_memory_to_a_running_job.md"
NAMES = {page.relative_to(ROOT).as_posix(): page for page in executed_pages()}


@pytest.mark.parametrize(
    "page", [pytest.param(NAMES[name], id=name, marks=[pytest.mark.torch] * (name == PYTORCH)) for name in NAMES]
)
def test_the_blocks_of_a_page_run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = run(page)
    assert outcome.executed + len(outcome.skipped)
    assert outcome.text == page.read_text("utf-8"), f"run `python -m scripts.pages {page.relative_to(ROOT)}`"


PAGE = """\
```python
value = 2
%autocall 0
print(value)
value * 3
```

<!-- output -->
```text
old
```

<!-- skip: next "Requires a GPU." -->
```python
raise ValueError
```

```sh
make check # the target exists
smp-advisor fits 70B --instance ml.p4d.24xlarge --library ddp --json > answer.json # exit status 1
```

```python
from json import loads; loads(open("answer.json").read())["fits"]
```

<!-- output -->
```text
```
"""


def test_outputs_are_written_and_skipped_blocks_listed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, "utf-8")
    outcome = run(page)
    assert (outcome.executed, outcome.skipped) == (3, (("raise ValueError", "Requires a GPU."),))
    assert "```text\nAutomatic calling is: Off\n2\n6\n```" in outcome.text
    assert "```text\nFalse\n```" in outcome.text
    assert not Path("answer.json").exists()


@pytest.mark.parametrize("block", ["python\n1 / 0", "sh\nmake coffee", "sh\nrm x", "sh\nsmp-advisor fits 1B --no-such"])
def test_a_block_that_fails_fails(tmp_path: Path, block: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```{block}\n```\n", "utf-8")
    with pytest.raises((ZeroDivisionError, SybilFailure, ValueError)):
        run(page)
