"""Conditions on options, plans and back ends decide whether a job reaches a defect."""

import pytest

from smp_advisor.review.scripts import check_script
from tests.scripts import samples

PLAN = samples.PIPELINE_PLAN


def changed(*replacements: tuple[str, str], script: str = samples.PIPELINE) -> str:
    for old, new in replacements:
        assert old in script
        script = script.replace(old, new)
    return script


def seen(report):
    return [(finding.id, finding.severity) for finding in report]


OPTION = ("    args, _ =", '    parser.add_argument("--jit", action="store_true")\n    args, _ =')
BEHIND = ("    model = Net()\n", "    model = Net()\n    if args.jit:\n        model = torch.nn.DataParallel(model)\n")


def test_an_error_behind_an_option_that_is_off_is_a_warning_which_names_it():
    (finding,) = check_script(changed(OPTION, BEHIND), PLAN)
    assert (finding.id, finding.severity) == ("SMP132", "warning")
    assert finding.message.endswith("This code runs only with --jit.")


@pytest.mark.parametrize("value", [True, 1, "1", "True", "true"])
def test_what_the_job_passes_decides(value):
    script = changed(OPTION, BEHIND)
    assert seen(check_script(script, PLAN, hyperparameters={"jit": value})) == [("SMP132", "error")]
    assert seen(check_script(script, PLAN, hyperparameters={"jit": not value})) == []


def test_a_batch_size_that_the_job_passes():
    option = ("    args, _ =", '    parser.add_argument("--batch-size", type=int, default=64)\n    args, _ =')
    script = changed(option, ("batch_size=64", "batch_size=args.batch_size"))
    assert seen(check_script(script, PLAN)) == []
    assert seen(check_script(script, PLAN, hyperparameters={"batch-size": "30"})) == [("SMP110", "error")]


@pytest.mark.parametrize(
    "option",
    ['parser.add_argument("--jit", type=int, default=1)', 'parser.add_argument("--jit", action="store_false")'],
)
def test_an_error_behind_an_option_that_is_on_is_one(option):
    script = changed(("    args, _ =", f"    {option}\n    args, _ ="), BEHIND)
    assert seen(check_script(script, PLAN)) == [("SMP132", "error")]


def test_an_option_that_hugging_face_s_parser_fills():
    dataclass = "@dataclass\nclass Options:\n    lr: float = 0.1\n    jit: bool = field(default={})\n\n\nclass Net("
    script = changed(
        (
            "import argparse\n",
            "from dataclasses import dataclass, field\n\nfrom transformers import HfArgumentParser\n",
        ),
        ("    parser = argparse.ArgumentParser()\n", "    parser = HfArgumentParser(Options)\n"),
        ('    parser.add_argument("--lr", type=float, default=0.1)\n', ""),
        (
            "    args, _ = parser.parse_known_args()\n",
            "    args, _ = parser.parse_args_into_dataclasses(return_remaining_strings=True)\n",
        ),
        BEHIND,
    )
    assert seen(check_script(script.replace("class Net(", dataclass.format("False")), PLAN)) == [("SMP132", "warning")]
    assert seen(check_script(script.replace("class Net(", dataclass.format("True")), PLAN)) == [("SMP132", "error")]
    strict = script.replace("return_remaining_strings=True", "").replace("args, _ =", "(args,) =")
    assert ("SMP133", "error") in seen(check_script(strict.replace("class Net(", dataclass.format("True")), PLAN))


def test_what_the_script_does_not_train_without_is_taken_to_be_given():
    script = changed(
        OPTION,
        ("--jit", "--do_train"),
        (
            "    train(model, loader, optimizer, device)",
            "    if args.do_train:\n        train(model, loader, optimizer, device)",
        ),
        ("    model.backward(loss)", "    loss.backward()"),
    )
    assert seen(check_script(script, PLAN)) == [("SMP106", "error")]


def test_the_plan_decides_options_of_its_own_names():
    script = changed(
        ("import smdistributed", "import argparse\n\nimport smdistributed"),
        (
            "\nsmp.init()\n",
            (
                "\nparser = argparse.ArgumentParser()\n"
                'parser.add_argument("--sharded_data_parallel_degree", type=int, default=1)\n'
                "args = parser.parse_known_args()[0]\nsmp.init()\n"
            ),
        ),
        (
            "        optimizer.step()\n",
            (
                "        if args.sharded_data_parallel_degree < 1:\n            optimizer.clip_master_grads(1.0)\n"
                "        optimizer.step()\n"
            ),
        ),
        script=samples.SHARDED,
    )
    assert seen(check_script(script, samples.SHARDED_PLAN)) == []
    assert seen(check_script(script.replace("< 1", "> 1"), samples.SHARDED_PLAN)) == [("SMP120", "warning")]


def loader_of(dataset: str) -> str:
    return changed(
        (
            "    sampler = DistributedSampler(dataset, num_replicas=smp.dp_size(), rank=smp.dp_rank(), shuffle=True)\n",
            "",
        ),
        (
            "DataLoader(dataset, batch_size=64, sampler=sampler, drop_last=True)",
            f"DataLoader({dataset}, batch_size=64)",
        ),
    )


@pytest.mark.parametrize(
    ("dataset", "severity"),
    [
        ("dataset", "warning"),  # MNIST: 60,000 images leave 32, and 4 divides them
        ('datasets.CIFAR10("..", train=False)', "warning"),
        ("datasets.FakeData(size=130)", "error"),
        ("load_somehow()", "error"),
    ],
)
def test_a_last_batch_of_known_size_that_divides_is_no_error(dataset, severity):
    report = check_script(loader_of(dataset), PLAN)
    assert seen(report) == [("SMP109", severity)]
    assert ("which is a multiple of" in report[0].message) == (severity == "warning")


def test_a_class_named_lambda_is_no_optimizer():
    script = changed(
        ("from torchvision import datasets\n", "from torchvision import datasets, transforms\n"),
        (
            "    model = Net()\n",
            "    scale = transforms.Lambda(lambda x: x / 255)\n    print(scale)\n    model = Net()\n",
        ),
    )
    plan = {**PLAN, "pipeline_parallel_degree": 1, "tensor_parallel_degree": 2}
    assert "SMP104" not in [finding.id for finding in check_script(script, plan)]


FORK = """\
import torch
from torch import nn
from transformers.utils import is_sagemaker_mp_enabled, is_torch_xla_available

if is_torch_xla_available():
    import torch_xla.core.xla_model as xm

if is_sagemaker_mp_enabled():
    import smdistributed.modelparallel.torch as smp


class Trainer:
    def wrap(self, model):
        if is_sagemaker_mp_enabled():
            return smp.DistributedModel(model)
        if self.args.n_gpu > 1:
            model = nn.DataParallel(model)
        return nn.parallel.DistributedDataParallel(model.cuda())

    def save(self):
        if is_torch_xla_available():
            xm.save(self.optimizer.state_dict(), "optimizer.pt")
        elif self.args.should_save:
            torch.save(self.optimizer.state_dict(), "optimizer.pt")
        if self.args.output_dir is not None:
            torch.save(self.model.state_dict(), "model.pt")
"""
TRIED = samples.PIPELINE.replace(
    "import smdistributed.modelparallel.torch as smp\n",
    "try:\n    import smdistributed.modelparallel.torch as smp\nexcept ImportError:\n    smp = None\n",
)


def test_a_trainer_for_several_back_ends_has_no_false_error():
    assert seen(check_script(FORK)) == []
    assert seen(check_script(FORK, library="smp-v1")) == []


def test_a_defect_in_the_branch_of_the_library_is_found():
    text = FORK.replace(
        "smp.DistributedModel(model)", "smp.DistributedModel(nn.parallel.DistributedDataParallel(model))"
    )
    assert seen(check_script(text)) == [("SMP132", "error")]


def test_code_that_the_back_ends_share_is_judged_if_the_plan_names_one():
    text = TRIED.replace(", drop_last=True", "")
    assert seen(check_script(text, samples.PIPELINE_PLAN)) == [("SMP109", "error")]
    (finding,) = check_script(text)
    assert (finding.id, finding.severity) == ("SMP109", "warning")
    assert "where SMP v1 is used" in finding.message


def test_an_import_whose_failure_ends_the_script_is_required():
    text = TRIED.replace("    smp = None\n", "    raise\n").replace(", drop_last=True", "")
    assert seen(check_script(text)) == [("SMP109", "error")]


@pytest.mark.parametrize(
    "condition",
    ["not args.use_smp", 'args.backend == "ddp" and not args.smp', "args.smp == 0", "smp_enabled is False"],
)
def test_the_branch_without_the_library_is_left_alone(condition):
    text = samples.PIPELINE.replace(
        "    model = Net()\n",
        f"    model = Net()\n    if {condition}:\n        model = nn.parallel.DistributedDataParallel(model)\n",
    )
    assert ("SMP132", "error") not in seen(check_script(text, samples.PIPELINE_PLAN))


def test_conditions_on_ranks_do_not_choose_a_back_end():
    text = samples.PIPELINE.replace(
        "    model = Net()\n",
        "    model = Net()\n    if smp.rank() == 0:\n        model = nn.parallel.DistributedDataParallel(model)\n",
    )
    assert ("SMP132", "error") in seen(check_script(text, samples.PIPELINE_PLAN))


def test_rules_of_version_1_do_not_touch_a_script_for_version_2():
    text = samples.V2 + "\nimport smdistributed.modelparallel.torch as smp\nprint(smp.rank())\n"
    assert [finding.id for finding in check_script(text, samples.V2_PLAN)] == ["SMP305"]


def test_both_imports_are_an_error_only_if_both_are_required():
    guarded = "if use_xla:\n    import torch_xla\nif use_smp:\n    import smdistributed.dataparallel\n"
    assert seen(check_script(guarded)) == []
    assert seen(check_script("import torch_xla\nimport smdistributed.dataparallel\n")) == [("STC411", "error")]
