"""One dotted name for each thing that can be imported from several places."""

from __future__ import annotations

__all__ = ["canonical"]

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


def canonical(path: str) -> str:
    """`path` by the name that the checks know it under: ``smdistributed.modelparallel.torch.step`` is ``smp.step``."""
    for prefix, name in _PREFIXES:
        if path.startswith(prefix) and (path == prefix or prefix.endswith(".") or path[len(prefix)] == "."):
            return name + path[len(prefix) :]
    return path
