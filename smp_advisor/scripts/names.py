"""One dotted name for each thing that can be imported from several places."""

from __future__ import annotations

import re

__all__ = ["canonical", "is_optimizer", "is_scheduler"]

_PREFIXES = (
    ("smdistributed.modelparallel.torch", "smp"),
    ("smdistributed.modelparallel.tensorflow", "smptf"),
    ("torch.sagemaker", "tsm"),
    ("torch_xla.core.xla_model", "xm"),
    ("torch_xla.distributed.parallel_loader", "pl"),
    ("torch_xla.distributed.xla_multiprocessing", "xmp"),
    ("tensorflow.compat.v2", "tensorflow"),
    ("torch.utils.data.dataloader", "torch.utils.data"),
    ("torch.utils.data.distributed", "torch.utils.data"),
    ("torch.utils.data.sampler", "torch.utils.data"),
    ("torch.nn.parallel.distributed", "torch.nn.parallel"),
    ("torch.nn.utils.clip_grad", "torch.nn.utils"),
    ("torch.distributed.distributed_c10d", "torch.distributed"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "torch.distributed.fsdp"),
    ("torch.cuda.amp.grad_scaler", "torch.cuda.amp"),
    ("torch.amp.grad_scaler", "torch.amp"),
    ("torch.nn.modules.module", "torch.nn"),
    ("torch.random.manual_seed", "torch.manual_seed"),
    ("torch.cuda.random.manual_seed", "torch.cuda.manual_seed"),
    ("transformers.trainer_utils.set_seed", "transformers.set_seed"),
    ("transformers.optimization.", "transformers."),
    ("transformers.training_args.", "transformers."),
)

_OPTIMIZER_CLASS = re.compile(
    r"[A-Za-z]*?(?:Adam|ADAM|SGD|Lamb|LAMB|Lars|LARS|Lion|Adagrad|Adadelta|Adafactor|Adamax|Adan|NovoGrad|RMS[Pp]rop"
    r"|Rprop|Muon|Sophia[GH]?|Shampoo|LBFGS)(?:W|X|_?8bit|_?32bit|ScheduleFree)*"
)
"""``FusedAdam``, ``AdamW8bit``, ``PagedLion``; and neither ``Lambda`` nor ``Million``."""


def canonical(path: str) -> str:
    """`path` by the name that the checks know it under: ``smdistributed.modelparallel.torch.step`` is ``smp.step``."""
    for prefix, name in _PREFIXES:
        if path.startswith(prefix) and (path == prefix or prefix.endswith(".") or path[len(prefix)] == "."):
            return name + path[len(prefix) :]
    return path


def is_optimizer(path: str) -> bool:
    """Whether the dotted name is an optimizer's class."""
    head, _, last = path.rpartition(".")
    if not last[:1].isupper() or head.startswith(("tensorflow", "keras")):
        return False
    if head == "torch.optim":
        return last != "Optimizer"
    return _OPTIMIZER_CLASS.fullmatch(last) is not None


def is_scheduler(path: str) -> bool:
    """Whether the dotted name makes a learning-rate scheduler of a PyTorch optimizer."""
    if path.startswith("torch.optim.lr_scheduler."):
        return True
    last = path.rpartition(".")[2]
    return path.startswith("transformers.") and last.startswith("get_") and last.endswith(("_schedule", "_warmup"))
