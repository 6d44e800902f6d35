"""Code that each process of a job on TRL's trainers runs first: prints what is sharded, and what is in memory then."""

import weakref

import accelerate.accelerator
from accelerate.utils import fsdp_utils
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, Trainer

# Models that were sharded, and those that are in memory during the first step.
models, prepare, train = [], fsdp_utils.fsdp2_prepare_model, Trainer.training_step


def noted(accelerator, model):
    model = prepare(accelerator, model)
    units = sum(isinstance(module, FSDPModule) for module in model.modules())
    models.append(weakref.ref(model))
    print(f"sharded into {units} units as {next(model.parameters()).dtype}", flush=True)
    return model


def counted(self, *arguments, **keywords):
    if self.state.global_step == 0:
        print(f"models in memory: {sum(model() is not None for model in models)}", flush=True)
    return train(self, *arguments, **keywords)


def converted(self, *arguments, **keywords):
    # PyTorch before 2.13 fails on parameters that are not sharded.
    for module in self.modules() if isinstance(self, FSDPModule) else ():
        assert all(isinstance(value, DTensor) for value in module.parameters()), "converted while gathered"
    return convert(self, *arguments, **keywords)


convert, PreTrainedModel.to = PreTrainedModel.to, converted
fsdp_utils.fsdp2_prepare_model = noted
accelerate.accelerator.fsdp2_prepare_model = noted
Trainer.training_step = counted
