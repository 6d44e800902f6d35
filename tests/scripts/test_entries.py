"""How a script is entered: by its own lines, by a launcher or a command line, or by whoever imports it."""

from __future__ import annotations

import pytest

from smp_advisor.scripts import check_script

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
