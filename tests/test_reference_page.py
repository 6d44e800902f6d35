"""The page that sets AWS's configurations beside the advisor's own says what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def test_the_page_is_what_its_script_writes(root: Path) -> None:
    spec = importlib.util.spec_from_file_location("reference_rows", root / "scripts" / "reference_rows.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = module.PAGE.read_text("utf-8")
    assert written == module.page(), "run `python scripts/reference_rows.py` and read what changed"
    for title in ("## 10 B", "## 30 B", "## 60 B"):
        assert title in written
