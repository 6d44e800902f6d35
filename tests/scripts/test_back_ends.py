"""Scripts that run with several back ends: the rules of each apply only where it runs."""

from __future__ import annotations

import pytest

from smp_advisor.scripts import check_script
from tests.scripts import samples

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


def seen(report):
    return [(finding.id, finding.severity) for finding in report]


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
