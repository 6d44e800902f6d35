"""GPUs as processors, without the script knowing: the owner of the calling code decides what is answered.

The user's code sees GPUs. Libraries see none, and take their paths for processors. Types of 16 bits compute in fp32
unless the rehearsal keeps them. What runs only on a GPU is named as a stand-in.
"""

from __future__ import annotations

import math
import os
import re
import types
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _device

from smp_advisor.rehearsal.observer import Nothing, NotRehearsed, around

if TYPE_CHECKING:
    from smp_advisor.rehearsal.observer import Observer

_FACTORIES = (
    *({function.__name__ for function in _device._device_constructors()} & {*dir(torch)}),
    *(name for name in dir(torch) if name.endswith("_like")), "normal", "set_default_device",
)  # fmt: skip
"""Functions with a device: those that PyTorch names itself, and the others."""
_OF_LAYERS = ("empty", "set_default_device")
"""Those by which a module is made on its device."""
_OF_TENSORS = ("to", "new_tensor", "new_zeros", "new_ones", "new_full", "new_empty")
_HALF = (torch.float16, torch.bfloat16)
_ZERO = "^(max_)?memory_(allocated|reserved|cached|usage)$|^utilization$|^temperature$|^power_draw$|^clock_rate$"
_QUIET = (
    "^(synchronize|empty_cache|ipc_collect|init)$|^reset_|^(manual_)?seed(_all)?$|^set_(rng|per_proc)|^_(record|dump)_"
)
"""Functions of `torch.cuda` by their names: figures of a GPU, and what leaves no trace here."""
_SAME_INPUTS = ("tp", "tensor", "model")
"""Names of the dimension of a mesh whose ranks divide the layers: each has the same inputs."""
_MEMORY_BYTES = 80 * 2**30


def on_cpu(value: Any) -> Any:
    """Return the processor for a GPU; other devices stay as they are."""
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return value


def refuse_half(optimizer: Any) -> None:
    """Fail as the scaler does for gradients of fp16."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if any(parameter.dtype == torch.float16 for parameter in parameters):
        raise ValueError("Attempting to unscale FP16 gradients.")


def install(observer: Observer) -> None:
    """Replace what needs a GPU, in this process."""
    keeps_half = bool(observer.options.get("keep_half"))

    def plain(value: Any) -> Any:
        if isinstance(value, torch.dtype) and value in _HALF and not keeps_half:
            observer.stand_in("16-bit numbers: fp32")
            return torch.float32
        return on_cpu(value)

    def device(value: Any) -> Any:
        return "cpu" if type(value) is int else plain(value)

    _factories(observer, plain, device)
    _tensors_and_modules(observer, plain, device, keeps_half=keeps_half)
    _cuda(observer)
    _precision(observer, keeps_half=keeps_half)
    _parallel(observer)


def _factories(observer: Observer, plain: Any, device: Any) -> None:
    @around(torch, *_FACTORIES)
    def made(original: Any, *arguments: Any, **options: Any) -> Any:
        if original.__name__ in _OF_LAYERS and any(on_cpu(i) is not i for i in (*arguments, *options.values())):
            observer.is_placed = True
        changed = {key: device(item) if key == "device" else plain(item) for key, item in options.items()}
        return original(*(on_cpu(item) for item in arguments), **changed)

    generator = torch.Generator

    class _Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, generator)

    class Generator(metaclass=_Kind):
        def __new__(cls, device: Any = "cpu") -> Any:
            del device
            return generator("cpu")

    torch.Generator = Generator  # type: ignore[misc, assignment]

    @around(_device.DeviceContext, "__init__")
    def context(original: Any, self: Any, device: Any) -> None:
        observer.is_placed = observer.is_placed or on_cpu(device) is not device
        original(self, on_cpu(device))


def _tensors_and_modules(observer: Observer, plain: Any, device: Any, *, keeps_half: bool) -> None:
    def place(value: Any) -> Any:
        if isinstance(value, torch.nn.Module) and next(value.parameters(), None) is not None:
            observer.is_placed = True
        return value

    def offload(value: Any) -> Any:
        tensors = value.parameters() if isinstance(value, torch.nn.Module) else [value]
        observer.offloaded_elements += sum(tensor.numel() for tensor in tensors)
        return value

    def moved(original: Any, value: Any, *arguments: Any, **options: Any) -> Any:
        moves = original.__name__ == "to"
        targets = [item for item in (*arguments, *options.values()) if isinstance(item, str | torch.device | int)]
        if moves and any(on_cpu(item) is not item or type(item) is int for item in targets):
            place(value)
        elif moves and "cpu" in targets:  # as the script writes it, not the device of a stand-in
            offload(value)
        arguments = tuple(device(item) if moves else plain(item) for item in arguments)
        changed = {key: device(item) if key == "device" else plain(item) for key, item in options.items()}
        return original(value, *arguments, **changed)

    for owner, names in ((torch.Tensor, _OF_TENSORS), (torch.nn.Module, ("to", "to_empty"))):
        around(owner, *names)(moved)
        setattr(owner, "cuda", lambda value, *_, **__: place(value))  # noqa: B010 - a method of two classes
        if not keeps_half:
            for name, kind in (("half", torch.float16), ("bfloat16", torch.bfloat16)):
                setattr(owner, name, lambda value, kind=kind: value.to(kind))
        setattr(owner, "cpu", offload)  # noqa: B010
    torch.Tensor.pin_memory = lambda value, *_, **__: value  # type: ignore[method-assign, assignment, misc]
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign, assignment, misc]

    torch.hub.list = lambda *_, **__: []

    @around(torch, "load")
    def load_on_cpu(original: Any, file: Any, map_location: Any = None, *arguments: Any, **options: Any) -> Any:
        del map_location
        return original(file, "cpu", *arguments, **options)

    @around(torch, "compile")
    def compile_nothing(original: Any, model: Any = None, *_: Any, **__: Any) -> Any:
        observer.stand_in("torch.compile: eager")
        if isinstance(model, torch.nn.Module) and hasattr(torch.compiler, "set_stance"):  # whose names change
            torch.compiler.set_stance("force_eager")
            return original(model, backend="eager")
        return model if model is not None else (lambda function: function)

    torch.nn.Module.compile = lambda *_, **__: None  # type: ignore[method-assign, assignment, misc]


def _cuda(observer: Observer) -> None:
    gpus = int(observer.options["local_world"])
    cuda: Any = torch.cuda

    def set_device(chosen: Any) -> None:
        index = chosen if isinstance(chosen, int) else torch.device(chosen).index
        if index is not None and index >= gpus:
            raise RuntimeError(f"CUDA error: invalid device ordinal (cuda:{index}, and this node has {gpus} GPUs)")

    properties = types.SimpleNamespace(
        total_memory=_MEMORY_BYTES, name="NVIDIA (rehearsed)", major=9, minor=0, multi_processor_count=132
    )
    nothing = Nothing()
    # Libraries get true answers, so that they choose kernels that exist here.
    answers: dict[str, Any] = {
        "is_available": lambda: observer.is_asked_by_user(),
        "device_count": lambda: gpus if observer.is_asked_by_user() else 0,
        "is_initialized": lambda: True, "is_bf16_supported": lambda *_, **__: True,
        "set_device": set_device, "current_device": lambda: int(os.environ.get("LOCAL_RANK", "0")),
        "get_device_properties": lambda *_, **__: properties, "get_device_name": lambda *_, **__: properties.name,
        "get_device_capability": lambda *_, **__: (9, 0),
        "mem_get_info": lambda *_, **__: (_MEMORY_BYTES, _MEMORY_BYTES),
        "memory_summary": lambda *_, **__: "", "memory_stats": lambda *_, **__: Counter(),
        "initial_seed": torch.initial_seed, "get_per_process_memory_fraction": lambda *_: 1.0,
        "get_rng_state": lambda *_, **__: torch.zeros(8, dtype=torch.uint8), "get_rng_state_all": list,
        "Stream": Nothing, "Event": Nothing, "CUDAGraph": Nothing, "device": Nothing,
        **dict.fromkeys(("stream", "current_stream", "default_stream"), lambda *_, **__: nothing),
    }  # fmt: skip
    # All counters are zero and all waits nothing, whatever the release calls them.
    for pattern, answer in ((_ZERO, 0), (_QUIET, None)):
        functions = [name for module in (cuda, cuda.memory) for name in vars(module) if re.search(pattern, name)]
        answers = {name: lambda *_, _answer=answer, **__: _answer for name in functions} | answers
    vars(cuda).update(answers)
    vars(cuda.memory).update({name: answer for name, answer in answers.items() if hasattr(cuda.memory, name)})
    cuda.nvtx.range_push = cuda.nvtx.range_pop = cuda.nvtx.mark = lambda *_, **__: None
    cuda.nvtx.range = Nothing
    # Newer code calls torch.accelerator instead.
    accelerator: Any = getattr(torch, "accelerator", None)
    if accelerator is not None:
        is_user = observer.is_asked_by_user
        vars(accelerator).update(
            is_available=lambda: is_user(), device_count=lambda: gpus if is_user() else 0,
            current_accelerator=lambda *_, **__: torch.device("cuda") if is_user() else None,
            set_device_index=set_device, set_device_idx=set_device, synchronize=lambda *_: None,
            current_device_index=answers["current_device"],
        )  # fmt: skip


def _precision(observer: Observer, *, keeps_half: bool) -> None:
    autocast: Any = torch.amp.autocast_mode.autocast
    half = torch.float16 if observer.options.get("provokes") == "half" else torch.bfloat16  # as the parameters

    @around(autocast, "__init__")
    def start(
        original: Any, self: Any, device_type: str = "cuda", dtype: Any = None, enabled: bool = True, **_: Any
    ) -> None:
        del device_type, dtype
        observer.once("autocast")
        original(self, "cpu", half, enabled=enabled and keeps_half)

    cuda_amp: Any = torch.cuda.amp
    cuda_amp.autocast = lambda enabled=True, dtype=None, **_: autocast("cuda", dtype, enabled)
    scaler: Any = torch.amp.GradScaler

    # Gradients are "scaled" between these calls: what clips or reads them there is wrong.
    class Scaler(scaler):  # type: ignore[misc]
        def __init__(self, device: Any = "cuda", init_scale: float = 1024.0, **options: Any) -> None:
            del device
            super().__init__("cpu", init_scale=min(init_scale, 1024.0), **options)

        def scale(self, outputs: Any) -> Any:
            observer.options["scaled"] = self.is_enabled()
            return super().scale(outputs)

        def unscale_(self, optimizer: Any) -> Any:
            observer.options["scaled"] = False
            refuse_half(optimizer)
            return super().unscale_(optimizer)

        def step(self, optimizer: Any, *arguments: Any, **options: Any) -> Any:
            done = super().step(optimizer, *arguments, **options)
            observer.options["scaled"] = False
            return done

    torch.amp.GradScaler = Scaler  # type: ignore[misc]
    cuda_amp.GradScaler = lambda *arguments, **options: Scaler("cuda", *arguments, **options)

    def create(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **{key: item for key, item in options.items() if key != "capturable"})

    for kind in (torch.optim.Adam, torch.optim.AdamW):
        around(kind, "__init__")(create)


def _normalized(layer: Any, values: Any) -> Any:
    """Pass of `SyncBatchNorm`, whose kernels run on GPUs only: all ranks meet, and each has its own moments."""
    import torch.distributed as dist

    if layer.training and dist.is_initialized():
        dist.all_reduce(values.new_zeros(2 * values.shape[1] + 1), group=layer.process_group)
    return torch.nn.modules.batchnorm._BatchNorm.forward(layer, values)


def _parallel(observer: Observer) -> None:
    import torch.distributed as dist
    import torch.distributed.device_mesh as meshes
    import torch.multiprocessing
    from torch.distributed import fsdp
    from torch.nn.parallel import DistributedDataParallel

    @around(DistributedDataParallel, "__init__")
    def wrapped(
        original: Any, self: Any, module: Any, device_ids: Any = None, output_device: Any = None, **options: Any
    ) -> None:
        del device_ids, output_device
        observer.is_placed = True
        original(self, module, **options)

    DistributedDataParallel._passing_sync_batchnorm_handle = lambda *_: None  # type: ignore[method-assign, assignment]
    torch.nn.SyncBatchNorm.forward = _normalized  # type: ignore[method-assign]

    @around(meshes, "init_device_mesh")
    def mesh(original: Any, device_type: str, mesh_shape: Any, **options: Any) -> Any:
        del device_type
        names = options.get("mesh_dim_names") or ()
        for name, size in zip(names, mesh_shape, strict=False):
            if size > 1 and name in (*_SAME_INPUTS, "cp", "sp", "pp", "context", "sequence"):
                observer.has_tensor_parallel = True
                observer.once("tensor parallel", size=size if name in _SAME_INPUTS else 0)
        options.pop("backend_override", None)
        return original("cpu", mesh_shape, **options)

    dist.init_device_mesh = meshes.init_device_mesh

    @around(meshes.DeviceMesh, "__init__")
    def create_mesh(original: Any, self: Any, device_type: Any, *arguments: Any, **options: Any) -> None:
        original(self, on_cpu(device_type), *arguments, **options)

    @around(fsdp.FullyShardedDataParallel, "__init__")
    def sharded(original: Any, self: Any, module: Any, *arguments: Any, **options: Any) -> None:
        options.pop("mixed_precision", None)
        options["device_id"] = torch.device("cpu")
        observer.is_placed = True
        observer.fsdp_units.append(self)
        original(self, module, *arguments, **options)

    setups: Any = fsdp._init_utils
    setups._check_module_states_for_sync_module_states = lambda _: None  # that they are on GPUs
    policy = getattr(fsdp, "MixedPrecisionPolicy", None)
    if policy is not None and not observer.options.get("keep_half"):
        fsdp.MixedPrecisionPolicy = lambda *_, **__: policy()  # type: ignore[misc, assignment]
    module: Any = getattr(fsdp, "FSDPModule", None)
    if module is not None and hasattr(module, "set_force_sum_reduction_for_comms"):

        @around(module, "set_gradient_divide_factor")
        def divided(original: Any, self: Any, factor: float) -> None:
            self.set_force_sum_reduction_for_comms(True)
            original(self, factor)

    def spawn(original: Any, args: Any = (), nprocs: int = 1, **_: Any) -> None:
        started = int(observer.options["local_world"])
        if nprocs not in (1, -1, started):  # which would wait for each other in vain
            text = f"the script starts {nprocs} processes on a node, and the rehearsal has {started}"
            raise NotRehearsed(f"{text}: torch.cuda.device_count() is the number on each machine")
        original(int(os.environ.get("LOCAL_RANK", "0")), *args)

    torch.multiprocessing.spawn = spawn
    try:
        from torch.distributed.tensor import parallel

        @around(parallel, "parallelize_module")
        def parallelize(original: Any, module: Any, device_mesh: Any = None, *arguments: Any, **options: Any) -> Any:
            size = observer.world if device_mesh is None else device_mesh.size()
            if size > 1:
                observer.has_tensor_parallel = True
                observer.once("tensor parallel", size=size)
            return original(module, device_mesh, *arguments, **options)
    except ImportError:
        pass
    from torch.distributed.checkpoint import state_dict
    from torch.distributed.fsdp import _state_dict_utils

    # Gathered states are not offloaded: PyTorch 2.13 crashes if they are on the CPU already.
    def on_gpus(option: str) -> Any:
        def gathered(original: Any, *arguments: Any, **options: Any) -> Any:
            if options.get(option):
                observer.offloaded_elements = math.inf
                if options.get("rank0_only") is False or (option == "offload_to_cpu" and "rank0_only" not in options):
                    observer.once("gathered by all")
            return original(*arguments, **{**options, option: False})

        return gathered

    around(state_dict.StateDictOptions, "__init__")(on_gpus("cpu_offload"))
    around(fsdp.FullOptimStateDictConfig, "__init__")(on_gpus("offload_to_cpu"))
    around(_state_dict_utils, "_enter_unshard_params_ctx")(on_gpus("offload_to_cpu"))
