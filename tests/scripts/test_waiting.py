"""Modules of large packages are followed when a script uses a name of them, and parsed once for all scripts."""

from __future__ import annotations

import pytest

from smp_advisor.reading import module as module_reader
from smp_advisor.reading.module import shared_trees
from smp_advisor.reading.source import read
from smp_advisor.scripts import check_script
from smp_advisor.scripts.following import follow
from smp_advisor.scripts.settings import from_plan

STEP = """\
import smdistributed.modelparallel.torch as smp


@smp.step
def train_step(model, data):
    loss = model(data)
    loss.backward()
    return loss
"""


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "zoo"
    folder.mkdir()
    (folder / "__init__.py").write_text("from .first import *\nfrom .second import make, SIZE\nfrom .third import *\n")
    (folder / "first.py").write_text("SIZE = 1\nDEPTH = 2\n\ndef make():\n    return 1\n")
    (folder / "second.py").write_text("from .first import DEPTH\n\nSIZE = 8\n\ndef make():\n    return DEPTH\n")
    (folder / "third.py").write_text("from .second import *\n\ndef other():\n    pass\n")
    return tmp_path


def read_files(tmp_path, text):
    script = tmp_path / "train.py"
    script.write_text(text)
    context = follow(read(script), from_plan(None, None))
    names = {module.source.path.rpartition("/")[2] for module in context.trace.modules}
    return context.trace.modules[0], names


def test_a_module_whose_names_are_not_used_is_not_read(package):
    _, names = read_files(package, "import zoo\n")
    assert names == {"train.py", "__init__.py"}
    _, names = read_files(package, "from zoo import other\n")
    assert names == {"train.py", "__init__.py", "third.py"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("from zoo import SIZE", 8),
        ("from zoo import make\nSIZE = make()", 2),
        ("from zoo import *\nSIZE", 8),
        ("import zoo\nSIZE = zoo.SIZE", 8),
        ("SIZE = 3\nif SIZE > n:\n    from zoo import SIZE as later\nelse:\n    later = 4\nSIZE = 5", 5),
    ],
)
def test_names_have_the_values_of_python_s_order(package, text, value):
    module, _ = read_files(package, text + "\n")
    assert getattr(module.scope.find("SIZE"), "value", None) == value


@pytest.mark.parametrize(
    "later", ["from .second import SIZE", "from .second import *", "from .second import DEPTH as SIZE"]
)
def test_an_import_replaces_an_earlier_value(package, later):
    (package / "zoo" / "__init__.py").write_text(f"SIZE = 3\n{later}\n")
    module, _ = read_files(package, "from zoo import SIZE\n")
    assert module.scope.find("SIZE").value == (2 if "DEPTH" in later else 8)


def test_modules_that_import_each_other_end(package):
    (package / "zoo" / "first.py").write_text("from .third import *\n")
    module, _ = read_files(package, "from zoo import nothing, SIZE\n")
    assert module.scope.find("SIZE").value == 8


@pytest.mark.parametrize(
    "text", ["import torch_xla.core.xla_model as xm\n", "train(load())\n", "for part in parts:\n    part.start()\n"]
)
def test_a_module_that_acts_when_it_is_imported_does_not_wait(package, text):
    (package / "zoo" / "third.py").write_text(text)
    assert "third.py" in read_files(package, "import zoo\n")[1]


def test_a_defect_in_a_used_module_is_found(package):
    (package / "zoo" / "third.py").write_text(STEP)
    script = package / "train.py"
    text = "import smdistributed.modelparallel.torch as smp\nfrom zoo import train_step\n\nsmp.init()\n"
    script.write_text(
        text + "model = smp.DistributedModel(build())\nfor data in loader:\n    train_step(model, data)\n"
    )
    assert "SMP106" in {finding.id for finding in check_script(script)}


def test_modules_above_the_limit_are_listed(tmp_path):
    for number in range(70):
        (tmp_path / f"part{number}.py").write_text("x = 1\n")
    script = tmp_path / "train.py"
    script.write_text("".join(f"import part{number}\n" for number in range(70)))
    (note,) = check_script(script).unresolved
    assert note.what == "More than 60 modules are imported: part60 and later ones are left out."


def test_a_file_is_parsed_once_for_all_scripts(package, monkeypatch):
    parsed = []
    tree = module_reader._tree
    monkeypatch.setattr(module_reader, "_tree", lambda source: parsed.append(source.path) or tree(source))
    with shared_trees():
        for name in ("one.py", "two.py"):
            (package / name).write_text(f"# {name}\nfrom zoo import SIZE\n")
            check_script(package / name)
    assert len(parsed) == len(set(parsed)) >= 4
