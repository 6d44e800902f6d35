"""Files that comments name exist."""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # it reads every file

ROOT = Path(__file__).parents[2]
COMMENTS = {".ts": r"//[^\n]*|/\*.*?\*/", ".py": r"#[^\n]*", ".toml": r"#[^\n]*", ".sh": r"#[^\n]*"}
FILE = re.compile(r"(?<![\w/.*{}-])((?:[\w-]+/)*[\w-]+\.(?:py|ts|toml|csv|sh))(?![\w/])")
OF_OTHERS = {
    "typing.py", "json.py",  # Python
    "modeling_auto.py", "modeling_mixtral.py",  # transformers
    "layer.py", "transformers_weight_conversion.py", "tuners_utils.py",  # PEFT
    "token_dispatcher.py", "router.py",  # Megatron-LM
    "fsdp_strategy.py", "sagemaker_base_model.py",  # AWS's adapter of recipes
}  # fmt: skip
"""Files of other projects that comments cite."""


def test_files_that_comments_name_exist():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    if not any(listed):
        pytest.skip("needs the repository's list of files")
    names = {Path(name).name for name in listed}
    gone = []
    for name in listed:
        path = ROOT / name
        if path.suffix not in COMMENTS or name.startswith(("tests/", "findings/")) or not path.is_file():
            continue
        for comment in re.findall(COMMENTS[path.suffix], path.read_text("utf-8"), re.DOTALL):
            for pointer in FILE.findall(re.sub(r"https?://\S+", "", comment)):
                whole = "/" not in pointer or any(entry.endswith(pointer) for entry in listed)
                if Path(pointer).name not in names | OF_OTHERS or not (whole or Path(pointer).name in OF_OTHERS):
                    gone.append(f"{name}: {pointer}")
    assert not gone
