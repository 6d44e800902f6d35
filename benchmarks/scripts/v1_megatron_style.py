"""SMP v1, sharded data parallelism, written as Megatron's scripts are: global arguments, providers, iterators."""

import argparse
import os
import time

import numpy as np
import smdistributed.modelparallel.torch as smp
import torch

_ARGS = None


def get_args():
    return _ARGS


def parse_args():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    group = parser.add_argument_group("training")
    group.add_argument("--micro-batch-size", type=int, default=4)
    group.add_argument("--accumulation", type=int, default=4)
    group.add_argument("--train-iters", type=int, default=1000)
    group.add_argument("--seq-length", type=int, default=2048)
    group.add_argument("--lr", type=float, default=1e-4)
    group.add_argument("--log-interval", type=int, default=20)
    group.add_argument("--save", default="/opt/ml/checkpoints")
    group.add_argument("--data-path", default=os.environ.get("SM_CHANNEL_TRAIN", ""))
    group.add_argument("--sharded_data_parallel_degree", type=int, default=16)
    group.add_argument("--grad_clip", type=float, default=1.0)
    args, _ = parser.parse_known_args()
    return args


class IndexedTokens(torch.utils.data.Dataset):
    def __init__(self, path, length):
        self.tokens = np.memmap(os.path.join(path, "tokens.bin"), dtype=np.uint16, mode="r")
        self.length = length

    def __len__(self):
        return len(self.tokens) // self.length

    def __getitem__(self, index):
        start = index * self.length
        return torch.from_numpy(self.tokens[start : start + self.length].astype(np.int64))


class PretrainingSampler:
    """Whole batches of this data-parallel rank's samples, endlessly."""

    def __init__(self, total_samples, batch_size, data_parallel_rank, data_parallel_size):
        self.total_samples = total_samples
        self.batch_size = batch_size
        self.rank, self.size = data_parallel_rank, data_parallel_size

    def __len__(self):
        return self.total_samples // (self.batch_size * self.size)

    def __iter__(self):
        batch = []
        for index in range(self.rank, self.total_samples, self.size):
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, 8, batch_first=True)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))

    def forward(self, hidden):
        normed = self.norm(hidden)
        hidden = hidden + self.attention(normed, normed, normed, need_weights=False)[0]
        return hidden + self.mlp(hidden)


class LanguageModel(torch.nn.Module):
    def __init__(self, vocabulary=50304, width=1024, layers=24):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.blocks = torch.nn.Sequential(*[Block(width) for _ in range(layers)])
        self.head = torch.nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


def model_provider():
    return LanguageModel()


def setup_model_and_optimizer(args):
    with smp.model_creation(dtype=torch.bfloat16):
        model = model_provider()
    model = smp.DistributedModel(model, backward_passes_per_step=args.accumulation)
    smp.set_activation_checkpointing(model.module.blocks, strategy="each")
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    optimizer = smp.DistributedOptimizer(optimizer)
    return model, optimizer


def build_train_iterator(args):
    dataset = IndexedTokens(args.data_path, args.seq_length)
    sampler = PretrainingSampler(
        len(dataset), args.micro_batch_size, data_parallel_rank=smp.dp_rank(), data_parallel_size=smp.dp_size()
    )
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=0, pin_memory=True)
    while True:
        yield from loader


@smp.step
def train_step(model, tokens):
    logits = model(tokens)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
    model.backward(loss)
    return loss


def train(model, optimizer, iterator):
    args = get_args()
    model.train()
    started = time.time()
    for iteration in range(1, args.train_iters + 1):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(args.accumulation):
            loss = train_step(model, next(iterator).cuda())
        if args.sharded_data_parallel_degree < 1:
            optimizer.clip_master_grads(args.grad_clip)
        optimizer.step()
        if iteration % args.log_interval == 0 and smp.rank() == 0:
            elapsed = (time.time() - started) / iteration
            print(f"iteration {iteration} | {elapsed:.3f} s | loss {loss.reduce_mean().item():.4f}", flush=True)


def pretrain():
    global _ARGS
    _ARGS = parse_args()
    smp.init()
    torch.cuda.set_device(smp.local_rank())
    torch.manual_seed(1234 + smp.dp_rank())
    model, optimizer = setup_model_and_optimizer(_ARGS)
    train(model, optimizer, build_train_iterator(_ARGS))
    smp.save_checkpoint(_ARGS.save, tag="final", partial=True, model=model, optimizer=optimizer)


if __name__ == "__main__":
    pretrain()
