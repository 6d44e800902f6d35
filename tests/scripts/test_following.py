"""A script is followed into functions, modules and entries; modules that do nothing wait."""

import pytest

from smp_advisor.review.reading import module as module_reader
from smp_advisor.review.reading.module import shared_trees
from smp_advisor.review.reading.source import read
from smp_advisor.review.scripts import check_script, following
from smp_advisor.review.scripts.following import follow
from smp_advisor.review.scripts.settings import from_plan
from tests.scripts import samples


def ids(report):
    return [finding.id for finding in report]


def changed(old: str, new: str) -> str:
    assert old in samples.PIPELINE
    return samples.PIPELINE.replace(old, new)


def test_the_library_under_another_name():
    script = samples.PIPELINE.replace(
        "import smdistributed.modelparallel.torch as smp", "from smdistributed.modelparallel import torch as mp"
    ).replace("smp.", "mp.")
    assert ids(check_script(script, samples.PIPELINE_PLAN)) == []
    assert ids(check_script(script.replace("mp.dp_rank(),", "mp.rank(),"), samples.PIPELINE_PLAN)) == ["SMP111"]


def test_a_value_from_a_function():
    script = changed("def main():", "def which():\n    rank = smp.rank()\n    return rank\n\n\ndef main():").replace(
        "rank=smp.dp_rank()", "rank=which()"
    )
    (finding,) = check_script(script, samples.PIPELINE_PLAN)
    assert finding.id == "SMP111"
    assert "rank=which()" in finding.text


def test_the_step_calls_a_helper():
    script = changed("    model.backward(loss)\n", "    finish(loss)\n").replace(
        "@smp.step\ndef train_step", "def finish(loss):\n    loss.backward()\n\n\n@smp.step\ndef train_step"
    )
    (finding,) = check_script(script, samples.PIPELINE_PLAN)
    assert finding.id == "SMP106"


def test_what_cannot_be_seen_is_listed_and_not_judged():
    script = changed("drop_last=True)", "**unknown())")
    report = check_script(script, samples.PIPELINE_PLAN)
    assert ids(report) == []
    assert "SMP109" in report.unresolved[0].what

    report = check_script(changed("drop_last=True", "drop_last=args.lr"), samples.PIPELINE_PLAN)
    assert ids(report) == []
    assert "SMP109" in report.unresolved[0].what


def test_an_option_without_a_multiple_of_the_microbatches_is_left_open():
    script = changed("batch_size=64", "batch_size=args.size").replace(
        "    args, _ =", '    parser.add_argument("--size", type=int, default=30)\n    args, _ ='
    )
    report = check_script(script, samples.PIPELINE_PLAN)
    assert ids(report) == []
    assert "--size" in report.unresolved[0].what


def test_batches_skipped_by_hand_need_no_drop_last():
    script = changed(", drop_last=True", "").replace(
        "        optimizer.zero_grad()\n",
        "        if len(data) % smp.num_microbatches() != 0:\n            continue\n        optimizer.zero_grad()\n",
    )
    assert ids(check_script(script, samples.PIPELINE_PLAN)) == []


def test_modules_beside_the_script(tmp_path):
    script = samples.PIPELINE.replace(
        "    loader = DataLoader(dataset, batch_size=64, sampler=sampler, drop_last=True)\n",
        "    loader = loading.make_loader(dataset, smp.dp_rank())\n",
    ).replace("from torchvision import datasets\n", "from torchvision import datasets\n\nfrom helpers import loading\n")
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("")
    module = tmp_path / "helpers" / "loading.py"
    module.write_text(
        "from torch.utils.data import DataLoader, DistributedSampler\n\n\n"
        "def make_loader(dataset, rank):\n"
        "    sampler = DistributedSampler(dataset, num_replicas=2, rank=rank)\n"
        "    return DataLoader(dataset, 64, sampler=sampler, drop_last=True)\n"
    )
    assert ids(check_script(tmp_path / "train.py", samples.PIPELINE_PLAN)) == []

    module.write_text(module.read_text().replace("drop_last=True", "drop_last=False"))
    (finding,) = check_script(tmp_path / "train.py", samples.PIPELINE_PLAN)
    assert (finding.id, finding.line) == ("SMP109", 6)
    assert finding.path == str(module)

    (tmp_path / "train.py").write_text(script.replace("(dataset, smp.dp_rank())", "(dataset, smp.rank())"))
    assert ids(check_script(tmp_path / "train.py", samples.PIPELINE_PLAN)) == ["SMP111", "SMP109"]


def test_a_broken_module_beside_the_script_is_listed(tmp_path):
    (tmp_path / "train.py").write_text("import broken\n" + samples.PIPELINE)
    (tmp_path / "broken.py").write_text("def f(:\n")
    report = check_script(tmp_path / "train.py", samples.PIPELINE_PLAN)
    assert ids(report) == []
    assert "broken.py" in report.unresolved[0].what


def test_what_the_script_passes_to_init_counts_where_the_plan_is_silent():
    script = changed("smp.init()", 'smp.init({"microbatches": 4})').replace("batch_size=64", "batch_size=30")
    assert ids(check_script(script)) == ["SMP110"]
    assert ids(check_script(script, {"microbatches": 2})) == []


def test_a_function_nobody_calls_is_read_all_the_same():
    script = samples.PIPELINE.replace(
        "\n\ndef main():", "\n\ndef other(data):\n    return DataLoader(data, 64)\n\n\ndef main():"
    )
    assert ids(check_script(script, samples.PIPELINE_PLAN)) == ["SMP109"]


def test_one_file_of_several_is_no_entry_point():
    helper = "import smdistributed.modelparallel.torch as smp\n\n\ndef first():\n    return smp.rank() == 0\n"
    assert ids(check_script(helper, samples.PIPELINE_PLAN)) == []


def test_a_plain_script_is_nobody_s_business():
    script = "import torch\nloader = torch.utils.data.DataLoader(d, 3)\nloss.backward()\n"
    report = check_script(script, samples.PIPELINE_PLAN)
    assert ids(report) == []
    assert "how the model is made" in report.unresolved[0].what
    complete = (
        "import torch\nmodel = torch.nn.Linear(3, 3)\noptimizer = torch.optim.SGD(model.parameters())\n"
        "model(torch.ones(3)).sum().backward()\noptimizer.step()\n"
    )
    assert ids(check_script(complete, samples.PIPELINE_PLAN)) == ["SMP001"]
    assert ids(check_script(script)) == []


SCRIPT = """\
import os
{imports}
import torch
import smdistributed.modelparallel.torch as smp

{decorator}
def main(lr=0.1, epochs: int = 3):
    smp.init()
    model = smp.DistributedModel(torch.nn.Linear(3, 3))
    for batch in batches:
        step(model, batch)


@smp.step
def step(model, batch):
    loss = model(batch)
    model.backward(loss)


{call}
"""


def written(imports: str = "", decorator: str = "", call: str = "") -> str:
    return SCRIPT.format(imports=imports, decorator=decorator, call=call)


@pytest.mark.parametrize(
    ("imports", "decorator", "call"),
    [
        ("", "", "main()"),
        ("import fire", "", "fire.Fire(main)"),
        ("import fire", "", 'fire.Fire({"train": main})'),
        ("import fire", "", "fire.Fire()"),
        ("import typer", "", "typer.run(main)"),
        ("import typer\n\napp = typer.Typer()", "@app.command()", "app()"),
        ("import click", "@click.command()", "main()"),
        ("import hydra", "@hydra.main(version_base=None)", "main()"),
        ("from absl import app", "", "app.run(main)"),
        ("import tyro", "", "tyro.cli(main)"),
        ("import threading", "", "threading.Thread(target=main).start()"),
        ("", "", 'TASKS = {"train": main}\nTASKS[os.environ["TASK"]]()'),
        ("", "", 'globals()["main"]()'),
        ("", "", ""),
    ],
)
def test_every_way_into_a_script_is_followed(imports, decorator, call):
    report = check_script(written(imports, decorator, call))
    # Only a function that runs is checked for the device of its process.
    assert [finding.id for finding in report] == ["SMP108"], str(report)


def test_the_commands_of_a_suite_are_not_joined(tmp_path):
    names = ["train", "tune", "generate", "evaluate"]
    for name in names:
        (tmp_path / f"{name}.py").write_text(written())
    for used, expected in ((names, []), (names[:1], ["SMP108"])):
        commands = ", ".join(f"{name!r}: {name}.main" for name in used)
        (tmp_path / "run.py").write_text(f"import fire\nimport {', '.join(used)}\n\nfire.Fire({{{commands}}})\n")
        report = check_script(tmp_path / "run.py")
        assert ids(report) == expected
        assert ("Only one of these commands" in " ".join(str(report).split())) is not bool(expected)


def test_an_entry_that_is_assumed_is_stated():
    report = check_script(written())
    assert "Another file calls main(): no line of this file does." in str(report)
    assert "Another file calls" not in str(check_script(written(call="main()")))


def test_a_module_that_a_file_next_to_it_imports_has_no_entry(tmp_path):
    (tmp_path / "lib.py").write_text(written())
    (tmp_path / "train.py").write_text("import torch\nfrom lib import main\n\ntorch.cuda.set_device(0)\nmain()\n")
    assert "Another file calls" not in str(check_script(tmp_path / "lib.py"))


def test_a_chain_of_calls_is_followed_or_listed():
    def chain(length: int) -> str:
        names = [f"f{number}" for number in range(length)]
        text = "".join(
            f"def {name}(model):\n    {after}(model)\n\n\n"
            for name, after in zip(names, [*names[1:], "step"], strict=True)
        )
        return (
            written().replace("    for batch in batches:\n        step(model, batch)", "    f0(model)")
            + text
            + "main()\n"
        )

    deep = check_script(chain(30))
    assert [finding.id for finding in deep] == ["SMP108"]
    assert not deep.unresolved
    assert any("is called within 40 other calls" in note.what for note in check_script(chain(50)).unresolved)


@pytest.mark.parametrize(
    "optimizer",
    [
        "getattr(torch.optim, os.environ['OPTIMIZER'])(model.parameters())",
        "hydra.utils.instantiate(config.optimizer, model.parameters())",
        "hydra.utils.instantiate(config.optimizer, params=model.parameters())",
        "importlib.import_module('torch.optim').AdamW(model.parameters())",
    ],
)
def test_an_optimizer_that_is_chosen_by_name_is_one(optimizer):
    text = written(imports="import hydra\nimport importlib", call="main()").replace(
        "    for batch in batches:\n        step(model, batch)",
        f"    optimizer = {optimizer}\n    for batch in batches:\n        optimizer.zero_grad()\n"
        "        step(model, batch)\n        optimizer.step()",
    )
    assert "SMP103" in {finding.id for finding in check_script(text)}


def test_an_object_of_a_configuration_file_is_listed():
    report = check_script("import hydra\n\nmodel = hydra.utils.instantiate(config.model)\n")
    assert ["A configuration file names the class" in note.what for note in report.unresolved] == [True]


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


@pytest.mark.parametrize("line", ["\n", "    \n", "# train\n", "import a, b\n", "train = 1\n"])
def test_a_neighbor_is_searched_once_however_many_lines_it_has(tmp_path, line, monkeypatch):
    looked_at = []
    search = following._imports
    monkeypatch.setattr(following, "_imports", lambda text, module: looked_at.append(text) or search(text, module))
    (tmp_path / "train.py").write_text("def train(loss):\n    loss.backward()\n")
    (tmp_path / "neighbor.py").write_text(line * 20_000)
    check_script(tmp_path / "train.py")
    assert sum(map(len, looked_at)) <= 20_000 * len(line)
    assert all("\n" not in text and "train" in text for text in looked_at)
