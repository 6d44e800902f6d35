"""SMP v1, a Hugging Face GPT-2 with tensor parallelism, fp16, and one batch for the whole tensor group."""

import logging
import math
import sys
from dataclasses import dataclass, field
from itertools import chain
from typing import Optional

import datasets
import smdistributed.modelparallel.torch as smp
import torch
import torch.distributed as dist
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    HfArgumentParser,
    default_data_collator,
    get_linear_schedule_with_warmup,
)

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    config_name: str = field(default="gpt2-xl", metadata={"help": "architecture"})
    activation_checkpointing: bool = field(default=True)
    activation_strategy: str = field(default="each")


@dataclass
class DataArguments:
    dataset_path: str = field(default="/opt/ml/input/data/train")
    block_size: int = field(default=1024)
    preprocessing_num_workers: Optional[int] = field(default=8)


@dataclass
class RunArguments:
    per_group_batch_size: int = field(default=8)
    max_steps: int = field(default=1000)
    learning_rate: float = field(default=2e-4)
    weight_decay: float = field(default=0.01)
    grad_clip: float = field(default=1.0)
    seed: int = field(default=12345)
    checkpoint_dir: str = field(default="/opt/ml/checkpoints")
    save_every: int = field(default=500)


def parameter_groups(model, weight_decay):
    plain, decayed = {"params": [], "weight_decay": 0.0}, {"params": [], "weight_decay": weight_decay}
    for name, parameter in model.named_parameters():
        (plain if name.endswith("bias") or "ln" in name else decayed)["params"].append(parameter)
    return [plain, decayed]


def tokens(data_args):
    tokenizer = AutoTokenizer.from_pretrained("gpt2")
    raw = datasets.load_from_disk(data_args.dataset_path)

    def group(examples):
        joined = list(chain(*tokenizer(examples["text"])["input_ids"]))
        whole = len(joined) // data_args.block_size * data_args.block_size
        return {"input_ids": [joined[i : i + data_args.block_size] for i in range(0, whole, data_args.block_size)]}

    return raw.map(group, batched=True, num_proc=data_args.preprocessing_num_workers, remove_columns=["text"])


@smp.step
def train_step(model, input_ids):
    output = model(input_ids=input_ids, labels=input_ids, use_cache=False)
    loss = output["loss"]
    model.backward(loss)
    return loss


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, RunArguments))
    model_args, data_args, run_args, _ = parser.parse_args_into_dataclasses(return_remaining_strings=True)
    smp.init()
    torch.cuda.set_device(smp.local_rank())
    logging.basicConfig(stream=sys.stdout, level=logging.INFO if smp.rank() == 0 else logging.WARN)
    if smp.rank() == 0:
        transformers.utils.logging.set_verbosity_info()
    torch.manual_seed(run_args.seed + smp.dp_rank())

    dataset = tokens(data_args)
    sampler = torch.utils.data.DistributedSampler(
        dataset,
        shuffle=True,
        seed=run_args.seed,
        rank=smp.rdp_rank(),
        num_replicas=smp.rdp_size(),
        drop_last=True,
    )
    loader = torch.utils.data.DataLoader(
        dataset,
        sampler=sampler,
        batch_size=run_args.per_group_batch_size,
        collate_fn=default_data_collator,
        num_workers=0,
        pin_memory=True,
        drop_last=True,
    )

    config = AutoConfig.from_pretrained(model_args.config_name)
    with smp.model_creation(tensor_parallelism=True, dtype=torch.float16, fused_softmax=True):
        with smp.delay_param_initialization(enabled=True):
            model = AutoModelForCausalLM.from_config(config)
    model = smp.DistributedModel(model, trace_device="gpu")
    if model_args.activation_checkpointing:
        layers = model.get_module().transformer.seq_layers
        smp.set_activation_checkpointing(layers, strategy=model_args.activation_strategy)

    optimizer = torch.optim.AdamW(parameter_groups(model, run_args.weight_decay), lr=run_args.learning_rate)
    optimizer = smp.DistributedOptimizer(
        optimizer,
        static_loss_scale=None,
        dynamic_loss_scale=True,
        dynamic_loss_args={"scale_window": 1000, "min_scale": 1, "delayed_shift": 2},
    )
    scheduler = get_linear_schedule_with_warmup(
        optimizer.optimizer, num_warmup_steps=100, num_training_steps=run_args.max_steps
    )
    smp.resume_from_checkpoint(run_args.checkpoint_dir, partial=True)

    done = 0
    for epoch in range(math.ceil(run_args.max_steps / max(1, len(loader)))):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad(set_to_none=True)
            loss_mb = train_step(model, batch["input_ids"].cuda(non_blocking=True))
            optimizer.clip_master_grads(run_args.grad_clip)
            optimizer.step()
            if not optimizer.overflow:
                scheduler.step()
            done += 1
            if done % 10 == 0:
                loss = loss_mb.reduce_mean()
                dist.all_reduce(loss, group=smp.get_dp_process_group())
                if smp.rank() == 0:
                    logger.info("step %d loss %.3f", done, loss.item() / smp.dp_size())
            if done % run_args.save_every == 0:
                smp.save_checkpoint(
                    path=run_args.checkpoint_dir,
                    tag=f"step_{done}",
                    partial=True,
                    model=model,
                    optimizer=optimizer,
                    user_content={"steps": done, "scheduler": scheduler.state_dict()},
                    num_kept_partial_checkpoints=2,
                )
            if done >= run_args.max_steps:
                break
    smp.barrier()


if __name__ == "__main__":
    main()
