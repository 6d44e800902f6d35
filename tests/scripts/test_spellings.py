"""The same mistake in other words: through variables, helpers, partial, getattr, decorators, attributes, slices."""

import pytest

from smp_advisor.review.scripts import check_script
from tests.scripts import samples
from tests.scripts.test_conditions import changed

PLAN = samples.PIPELINE_PLAN
READER = "rank=smp.dp_rank()"
LOADER = "DataLoader(dataset, batch_size=64, sampler=sampler, drop_last=True)"
SAMPLER = "    sampler = DistributedSampler("


def ids(report):
    return [finding.id for finding in report]


@pytest.mark.parametrize(
    "replacements",
    [
        [(READER, "rank=getattr(smp, 'rank')()")],
        [
            (READER, "rank=int(os.environ['OMPI_COMM_WORLD_RANK'])"),
            ("import argparse\n", "import argparse\nimport os\n"),
        ],
        [(READER, "rank=int(os.getenv('LOCAL_RANK', 0))"), ("import argparse\n", "import argparse\nimport os\n")],
        [(READER, "rank=number % count"), (SAMPLER, f"    number, count = smp.rank(), smp.size()\n{SAMPLER}")],
        [
            (
                "DistributedSampler(dataset,",
                "DistributedSampler([x for i, x in enumerate(dataset) if i % smp.size() == smp.rank()],",
            )
        ],
        [(SAMPLER, f"    first = smp.rank()\n    dataset = dataset.files[first :: smp.size()]\n{SAMPLER}")],
        [
            (
                SAMPLER,
                f"    rows = range(smp.rank(), 60000, smp.size())\n    dataset = Subset(dataset, rows)\n{SAMPLER}",
            ),
            ("import DataLoader\n", "import DataLoader, Subset\n"),
        ],
    ],
)
def test_ranks_that_must_not_choose_the_data(replacements):
    assert set(ids(check_script(changed(*replacements), PLAN))) == {"SMP111"}


@pytest.mark.parametrize(
    "replacements",
    [
        [("DistributedSampler(dataset,", "DistributedSampler([x for i, x in enumerate(dataset) if i % 2 == 0],")],
        [(SAMPLER, f"    dataset = dataset.files[smp.dp_rank() :: smp.dp_size()]\n{SAMPLER}")],
        [
            ("\n\ndef main():", "\n\ndef prepare(files):\n    return files[smp.rank() :: smp.size()]\n\n\ndef main():"),
            (SAMPLER, f"    prepare([1])\n{SAMPLER}"),
        ],
        [("torch.cuda.set_device(smp.local_rank())", "torch.cuda.set_device(smp.rank() % torch.cuda.device_count())")],
    ],
)
def test_ranks_that_may(replacements):
    assert ids(check_script(changed(*replacements), PLAN)) == []


@pytest.mark.parametrize(
    ("name", "identifiers"),
    [
        ("logits", ["SMP111"]),
        ("dialogs", ["SMP111"]),
        ("train_and_save", ["SMP111"]),
        ("cached_tokens", []),
        ("saveParts", []),
    ],
)
def test_a_function_that_prepares_files_may_divide_them_by_any_rank(name, identifiers):
    script = changed(
        ("\n\ndef main():", f"\n\ndef {name}(files):\n    return files[smp.rank() :: smp.size()]\n\n\ndef main():"),
        (SAMPLER, f"    {name}([1])\n{SAMPLER}"),
    )
    assert ids(check_script(script, PLAN)) == identifiers


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("functools.partial(DataLoader, batch_size=64, drop_last=True)(dataset, sampler=sampler)", []),
        ("functools.partial(DataLoader, batch_size=64)(dataset, sampler=sampler)", ["SMP109"]),
        ("functools.partial(DataLoader, drop_last=True)(dataset, batch_size=64, drop_last=False)", ["SMP109"]),
        ("functools.partial(functools.partial(DataLoader, dataset), 63)(drop_last=True)", ["SMP110"]),
        ("getattr(torch.utils.data, 'DataLoader')(dataset, 64)", ["SMP109"]),
        ("torch.utils.data.DataLoader(dataset, 64)", ["SMP109"]),
        ("utils.data.DataLoader(dataset, 64)", ["SMP109"]),
        ("aliased.DataLoader(dataset, 64)", ["SMP109"]),
        ("Loader(dataset, 64)", ["SMP109"]),
        ("DataLoader(dataset, **{**dict(batch_size=64), 'drop_last': False})", ["SMP109"]),
    ],
)
def test_loaders(made, found):
    imports = "import functools\nimport torch.utils.data\nimport torch.utils.data as aliased\nfrom torch import utils\n"
    imports += "from torch.utils.data.dataloader import DataLoader as Loader\n"
    script = changed((LOADER, made), ("import argparse\n", f"import argparse\n{imports}"))
    assert ids(check_script(script, PLAN)) == found


STEP = "@smp.step\ndef train_step(model, data, target):"


@pytest.mark.parametrize(
    "decorated",
    [
        f"def whole(function):\n    return smp.step(function)\n\n\n{STEP}".replace(
            "@smp.step\ndef train", "@whole\ndef train"
        ),
        f"staged = smp.step()\n\n\n{STEP}".replace("@smp.step\ndef train", "@staged\ndef train"),
        f"import functools\n\nstaged = functools.partial(smp.step, non_split_inputs=[])\n\n\n{STEP}".replace(
            "@smp.step\ndef train", "@staged()\ndef train"
        ),
    ],
)
def test_steps_that_are_decorated_in_other_ways(decorated):
    script = changed((STEP, decorated))
    assert ids(check_script(script, PLAN)) == []
    assert ids(check_script(script.replace("model.backward(loss)", "loss.backward()"), PLAN)) == ["SMP106"]
    assert "SMP107" in ids(check_script(script.replace("mean = loss.reduce_mean()", "mean = loss"), PLAN))


def test_a_model_that_an_attribute_holds():
    trainer = (
        "class Trainer:\n    def __init__(self):\n        self.model = smp.DistributedModel(Net())\n\n"
        "    def run(self, loader, optimizer, device):\n        for data, target in loader:\n{}"
    )
    forward = "            output = self.model(data)\n            print(output)\n"
    step = "            print(train_step(self.model, data, target).reduce_mean().item())\n"
    main = ("\n\ndef main():", "\n\n{}\n\ndef main():")
    model = (
        "    model = Net()\n    model = smp.DistributedModel(model)\n",
        "    trainer = Trainer()\n    model = trainer.model\n",
    )
    call = ("    train(model, loader, optimizer, device)\n", "    trainer.run(loader, optimizer, device)\n")
    script = changed(main, model, call)
    assert ids(check_script(script.replace("{}", trainer.format(step)), PLAN)) == []
    assert ids(check_script(script.replace("{}", trainer.format(forward)), PLAN)) == ["SMP105"]


@pytest.mark.parametrize(
    "use", ["'{:.3f}'.format(mean)", "'%.3f' % mean", "f'{mean:.3f}'", "float(mean)", "mean.item()", "mean > 2"]
)
def test_what_a_step_returns_used_as_a_number(use):
    script = changed(("mean = loss.reduce_mean()", "mean = loss"), ("print(mean.item())", f"print({use})"))
    assert ids(check_script(script, PLAN)) == ["SMP107"]
    number = script.replace("backward(loss)\n    return loss\n", "backward(loss)\n    return loss.item()\n")
    assert (number != script, ids(check_script(number, PLAN))) == (True, [])


def test_a_step_in_a_class_of_a_library_s_trainer_is_no_method():
    script = changed(
        (
            "def train(model, loader, optimizer, device):\n    model.train()\n",
            (
                "class Mine(Trainer):\n    @smp.step\n    def own_step(model, optimizer, data, target):\n"
                "        loss = F.cross_entropy(model(data), target)\n        model.backward(loss)\n"
                "        return loss\n\n"
                "    def fit(self, model, optimizer, data, target):\n"
                "        self.own_step(model, optimizer, data, target).reduce_mean()\n\n\n"
                "def train(model, loader, optimizer, device):\n    model.train()\n"
                "    Mine().fit(model, optimizer, *next(iter(loader)))\n"
            ),
        ),
        ("from torchvision import datasets\n", "from torchvision import datasets\nfrom transformers import Trainer\n"),
    )
    assert ids(check_script(script, PLAN)) == []
    inside = script.replace(
        "        return loss\n\n    def fit", "        optimizer.step()\n        return loss\n\n    def fit"
    )
    assert ids(check_script(inside, PLAN)) == ["SMP105"]
