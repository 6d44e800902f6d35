"""What the checker sees through: aliases, functions, modules beside the script, options, branches."""

from __future__ import annotations

import pytest

from smp_advisor.scripts import check_script
from tests.scripts import samples


def ids(report):
    return [finding.id for finding in report]


def changed(old: str, new: str) -> str:
    assert old in samples.PIPELINE
    return samples.PIPELINE.replace(old, new)


@pytest.mark.parametrize(
    "spelling",
    [
        "import torch.utils.data\nloader_class = torch.utils.data.DataLoader",
        "from torch.utils import data\nloader_class = data.DataLoader",
        "from torch.utils.data.dataloader import DataLoader as loader_class",
        "import torch.utils.data as d\nloader_class = d.DataLoader",
    ],
)
def test_aliases_are_seen_through(spelling):
    script = changed("from torch.utils.data import DataLoader\n", spelling + "\n").replace(
        "DataLoader(dataset, batch_size=64, sampler=sampler, drop_last=True)",
        "loader_class(dataset, batch_size=64, sampler=sampler)",
    )
    assert ids(check_script(script, samples.PIPELINE_PLAN)) == ["SMP109"]


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
    assert finding.fix is None  # the helper has no model to call


def test_options_of_a_dictionary():
    script = changed(
        "DataLoader(dataset, batch_size=64, sampler=sampler, drop_last=True)", "DataLoader(dataset, **options)"
    ).replace(
        "    loader = ",
        '    options = {"batch_size": 64, "sampler": sampler}\n    options["drop_last"] = True\n    loader = ',
    )
    assert ids(check_script(script, samples.PIPELINE_PLAN)) == []
    without = script.replace('    options["drop_last"] = True\n', "")
    assert ids(check_script(without, samples.PIPELINE_PLAN)) == ["SMP109"]


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


def test_a_script_that_also_runs_without_the_library():
    script = changed(
        "    model.backward(loss)\n",
        "    if USE_SMP:\n        model.backward(loss)\n    else:\n        loss.backward()\n",
    )
    script = script.replace("class Net", "USE_SMP = bool(smp)\n\n\nclass Net")
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


def test_modules_that_import_each_other(tmp_path):
    (tmp_path / "train.py").write_text("import other\n" + samples.PIPELINE)
    (tmp_path / "other.py").write_text("import train\nfrom other import *\n\n\ndef f():\n    return f()\n\n\nf()\n")
    assert ids(check_script(tmp_path / "train.py", samples.PIPELINE_PLAN)) == []


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
    assert ids(check_script(script, samples.PIPELINE_PLAN)) == ["SMP001"]
    assert ids(check_script(script)) == []


def test_trainers_of_hugging_face_start_the_library_themselves():
    script = (
        "import smdistributed.modelparallel.torch as smp\n"
        "from transformers import Trainer, TrainingArguments\n"
        "trainer = Trainer(model, TrainingArguments('out'))\n"
        "trainer.train()\n"
        "print(smp.rank())\n"
    )
    assert ids(check_script(script, samples.PIPELINE_PLAN)) == []
