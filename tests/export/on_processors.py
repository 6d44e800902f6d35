"""Stand-in that each process of a job runs first: accelerate shards on processors as on GPUs."""

import weakref

import accelerate
import accelerate.accelerator
import torch
from accelerate import state
from accelerate.utils import DistributedType, fsdp_utils
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, Trainer

# accelerate shards on processors as on GPUs.
begin = state.AcceleratorState.__init__


def on_processors(self, *arguments, fsdp_plugin=None, **keywords):
    begin(self, *arguments, fsdp_plugin=fsdp_plugin, **keywords)
    if fsdp_plugin is not None:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
        state.PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        if self._mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(self._mixed_precision)


state.AcceleratorState.__init__ = on_processors

# Models that were sharded, and those that are in memory during the first step.
models, prepare, train = [], fsdp_utils.fsdp2_prepare_model, Trainer.training_step
construct = accelerate.Accelerator.__init__


def scaled(self, *arguments, **keywords):
    # accelerate ignores fp16 on processors.
    construct(self, *arguments, **keywords)
    if self.state.mixed_precision == "fp16":
        self.native_amp, self.scaler = True, torch.amp.GradScaler("cpu")


accelerate.Accelerator.__init__ = scaled


def noted(accelerator, model):
    model = prepare(accelerator, model)
    units = sum(isinstance(module, FSDPModule) for module in model.modules())
    models.append(weakref.ref(model))
    print(f"sharded into {units} units as {next(model.parameters()).dtype}", flush=True)
    return model


def counted(self, *arguments, **keywords):
    if self.state.global_step == 0:
        print(f"models in memory: {sum(model() is not None for model in models)}", flush=True)
        types = {(value.dtype, value.requires_grad) for value in self.model.parameters()}
        print(f"scale {self.accelerator.scaler and self.accelerator.scaler.get_scale()}, {sorted(types, key=str)}")
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
