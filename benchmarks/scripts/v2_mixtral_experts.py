# plan: {"library": "smp-v2", "expert_parallel_degree": 2, "hybrid_shard_degree": 4, "sm_activation_offloading": false}
"""SMP v2 with experts: meta-device creation, weights from rank 0, distributed checkpoints."""
import argparse
import contextlib
import functools
import os

import torch
import torch.distributed as dist
import torch.sagemaker as tsm
from torch import optim
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.sagemaker.checkpoint.checkpoint import save  # hypothetical helper of the image
from torch.sagemaker.delayed_param import DelayedParamIniter
from torch.sagemaker.moe.moe_config import MoEConfig
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer


def create(config, rank, finetune):
    if finetune and rank == 0:
        return AutoModelForCausalLM.from_pretrained("/opt/ml/input/data/weights")
    with torch.device("meta") if rank else contextlib.nullcontext():
        return AutoModelForCausalLM.from_config(config, attn_implementation="flash_attention_2")


def wrap(model, initer):
    with initer.validate_params_and_buffers_inited() if initer else contextlib.nullcontext():
        return FullyShardedDataParallel(
            module=model,
            auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={MixtralDecoderLayer}),
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
            sharding_strategy=ShardingStrategy.HYBRID_SHARD,
            backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
            param_init_fn=initer.get_param_init_fn() if initer else None,
            sync_module_states=True,
        )


def train(model, optimizer, scheduler, loader, steps, writer=None):
    for step, batch in enumerate(loader):
        if step == steps:
            return
        optimizer.zero_grad(set_to_none=True)
        output = model(input_ids=batch["input_ids"].cuda(), labels=batch["labels"].cuda())
        output["loss"].backward()
        norm = tsm.grad_norm.clip_grad_norm_(model, 1.0)
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            loss = output["loss"].detach()
            dist.all_reduce(loss)
            if writer is not None:
                writer.add_scalar("loss", loss.item() / dist.get_world_size(), step)
                writer.add_scalar("norm", norm, step)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--finetune", action="store_true")
    args, unknown = parser.parse_known_args()
    tsm.init()
    dist.init_process_group("smddp" if os.environ.get("USE_SMDDP") else "nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(1234)
    config = AutoConfig.from_pretrained("mistralai/Mixtral-8x7B-v0.1")
    model = create(config, rank, args.finetune)
    if tsm.state.expert_parallel_degree > 1:
        model = tsm.transform(model, config=MoEConfig(smp_moe=True), load_state_dict_from_rank0=args.finetune)
    model = wrap(model, DelayedParamIniter(model) if rank else None)
    optimizer = optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 100))
    dataset = torch.load("/opt/ml/input/data/train/tokens.pt")
    sampler = torch.utils.data.DistributedSampler(dataset, num_replicas=dist.get_world_size(), rank=rank, drop_last=True)
    train(model, optimizer, scheduler, DataLoader(dataset, batch_size=2, sampler=sampler), args.steps)
    save(model, "/opt/ml/checkpoints")


if __name__ == "__main__":
    main()
