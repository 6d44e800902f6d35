"""SMP v1, tensor parallelism (smp.tp_size() > 1) in fp16, with partial and full checkpoints."""

import argparse
import os

import smdistributed.modelparallel.torch as smp
import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from transformers import GPT2Config, GPT2LMHeadModel


class Tokens(Dataset):
    def __init__(self, path):
        self.ids = torch.load(path)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return self.ids[index]


def read_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=os.environ.get("SM_CHANNEL_TRAIN", "data"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=5)
    return parser.parse_known_args()[0]


@smp.step
def train_step(model, input_ids):
    loss = model(input_ids=input_ids, labels=input_ids)["loss"]
    model.backward(loss)
    return loss


def save(model, optimizer, folder):
    if smp.rdp_rank() == 0:
        states = {"model": model.local_state_dict(), "optimizer": optimizer.local_state_dict()}
        smp.save(states, os.path.join(folder, "partial.pt"), partial=True)
    if smp.rdp_rank() == 0:
        weights = model.state_dict(gather_to_rank0=True)
        if smp.rank() == 0:
            smp.save({"model": weights}, os.path.join(folder, "full.pt"), partial=False)


def main():
    args = read_options()
    smp.init()
    torch.cuda.set_device(smp.local_rank())
    device = torch.device("cuda")
    torch.manual_seed(args.seed + smp.dp_rank())

    dataset = Tokens(os.path.join(args.data, "tokens.pt"))
    sampler = DistributedSampler(
        dataset, num_replicas=smp.dp_size(), rank=smp.dp_rank(), shuffle=True, seed=args.seed, drop_last=True
    )
    loader = DataLoader(dataset, batch_size=16, sampler=sampler, drop_last=True)

    config = GPT2Config(n_layer=24, n_embd=2048, n_head=16)
    with smp.model_creation(tensor_parallelism=smp.tp_size() > 1, dtype=torch.float16):
        plain = GPT2LMHeadModel(config)
    model = smp.DistributedModel(plain)
    smp.set_activation_checkpointing(model.module.module.module.transformer.seq_layers, strategy="each")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    optimizer = smp.DistributedOptimizer(optimizer, static_loss_scale=None, dynamic_loss_scale=True)
    scheduler = LambdaLR(optimizer.optimizer, lambda step: min(1.0, (step + 1) / 10))
    print("samples a step", 16 * smp.size() // smp.pp_size())

    step = 0
    while step < args.steps:
        sampler.set_epoch(step // len(loader))
        for input_ids in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = train_step(model, input_ids.to(device)).reduce_mean()
            optimizer.clip_master_grads(1.0)
            optimizer.step()
            scheduler.step()
            step += 1
    if smp.rank() == 0:
        print(loss.item())
    save(model, optimizer, "/opt/ml/checkpoints")


if __name__ == "__main__":
    main()
