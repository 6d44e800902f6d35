"""SMP v2: tensor parallelism by tsm.transform, then FSDP."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.sagemaker as tsm
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.sagemaker.grad_norm import clip_grad_norm_
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import LlamaConfig, LlamaForCausalLM


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    return parser.parse_known_args()[0]


def main():
    args = options()
    dist.init_process_group("nccl")
    tsm.init()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    replica = dist.get_rank() // tsm.state.tensor_parallel_degree
    replicas = dist.get_world_size() // tsm.state.tensor_parallel_degree

    dataset = torch.load("/opt/ml/input/data/train/tokens.pt")
    sampler = DistributedSampler(dataset, num_replicas=replicas, rank=replica, shuffle=True)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, drop_last=True)

    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=16, hidden_size=2048))
    model = tsm.transform(model)
    model = FSDP(
        model,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
        device_id=torch.cuda.current_device(),
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    for step, tokens in zip(range(args.steps), loader):
        optimizer.zero_grad(set_to_none=True)
        tokens = tokens.cuda()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        clip_grad_norm_(model, 1.0)
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
