"""SMP v2, a Llama of Hugging Face with tensor parallelism, activation checkpointing and offloading."""

import argparse
import functools
import os

import torch
import torch.distributed as dist
import torch.sagemaker as tsm
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from transformers import AutoConfig, AutoModelForCausalLM, set_seed
from transformers.models.llama.modeling_llama import LlamaDecoderLayer


class Tokens(Dataset):
    def __init__(self, path):
        self.ids = torch.load(path)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_batch_size", type=int, default=2)
    parser.add_argument("--max_steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--model_config", default="meta-llama/Llama-2-7b-hf")
    parser.add_argument("--distributed_backend", default="nccl", choices=["smddp", "nccl"])
    parser.add_argument("--activation_checkpointing", type=int, default=1)
    parser.add_argument("--data", default=os.environ.get("SM_CHANNEL_TRAIN"))
    parser.add_argument("--checkpoint_dir", default="/opt/ml/checkpoints")
    return parser.parse_known_args()[0]


def build_loader(args):
    degree = tsm.state.tensor_parallel_degree
    rank, size = dist.get_rank() // degree, dist.get_world_size() // degree
    dataset = Tokens(os.path.join(args.data, "tokens.pt"))
    sampler = DistributedSampler(dataset, shuffle=True, seed=7, rank=rank, num_replicas=size, drop_last=True)
    return DataLoader(dataset, sampler=sampler, batch_size=args.train_batch_size, num_workers=2, drop_last=True)


def build_model(args):
    config = AutoConfig.from_pretrained(args.model_config)
    model = AutoModelForCausalLM.from_config(config)
    model = tsm.transform(model)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
    precision = MixedPrecision(
        param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16
    )
    model = FSDP(
        model,
        auto_wrap_policy=policy,
        mixed_precision=precision,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_id=torch.cuda.current_device(),
        limit_all_gathers=True,
        use_orig_params=True,
    )
    if args.activation_checkpointing:
        wrapper = functools.partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.REENTRANT)
        apply_activation_checkpointing(
            model, checkpoint_wrapper_fn=wrapper, check_fn=lambda module: isinstance(module, LlamaDecoderLayer)
        )
    return offload_wrapper(model) if tsm.state.sm_activation_offloading else model


def train(args, model, optimizer, scheduler, loader):
    step = 0
    model.train()
    while step < args.max_steps:
        loader.sampler.set_epoch(step)
        for batch in loader:
            batch = {name: value.to(torch.cuda.current_device()) for name, value in batch.items()}
            loss = model(**batch).loss
            loss.backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % 10 == 0 and dist.get_rank() == 0:
                print(step, loss.item())
            if step == args.max_steps:
                break


def main():
    args = parse()
    dist.init_process_group(args.distributed_backend)
    tsm.init()
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    set_seed(1234)
    model = build_model(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    train(args, model, optimizer, scheduler, build_loader(args))
    dist.barrier()


if __name__ == "__main__":
    main()
