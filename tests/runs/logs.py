"""Excerpts of logs in the formats of public repositories, with one measured step time each."""

from typing import NamedTuple

# ruff: noqa: E501 (lines of logs are long)

__all__ = ["LOGS", "Excerpt", "exported"]


class Excerpt(NamedTuple):
    """A log and its content."""

    title: str
    text: str
    unit: str
    values: list[float]
    peak_gib: dict[str, float]
    batch: int | None = None


def exported(seconds, first=1, tokens=256 * 2048):
    """Log of the exported script with these seconds per step."""
    lines = [
        f"step {step:,}/1,200 loss 10.1234 tokens_per_second {tokens / value:.1f} seconds_per_step {value:.4f} "
        "peak_allocated_gib 21.50 peak_reserved_gib 24.00 learning_rate 3.000e-04 tflops_per_gpu 150.25 mfu 0.4816"
        for step, value in enumerate(seconds, start=first)
    ]
    return "\n".join(["algo-1 | NCCL INFO Init COMPLETE", *lines, '{"steps": 20, "loss": 10.1}'])


_MEGATRON = """\
[Rank 0] (after 1 iterations) memory (MB) | allocated: 10770.3 | max allocated: 15754.888 | reserved: 16334.0 | max reserved: 16384.0
[Rank 6] (after 1 iterations) memory (MB) | allocated: 10850.6 | max allocated: 16896.0 | reserved: 11000.0 | max reserved: 11000.0
 [2025-08-01 07:19:37] iteration        1/    5000 | consumed samples:          128 | elapsed time per iteration (ms): 19138.8 | throughput per GPU (TFLOP/s/GPU): 80.2 | learning rate: 6.976744E-08 | global batch size:   128 | lm loss: 1.043863E+01 |
 [2025-08-01 07:19:50] iteration        2/    5000 | consumed samples:          256 | elapsed time per iteration (ms): 12936.1 | throughput per GPU (TFLOP/s/GPU): 118.0 | learning rate: 6.976744E-08 | global batch size:   128 | lm loss: 1.043863E+01 |
"""
_NEMO = """\
Training epoch 0, iteration 0/249 | lr: 1.961e-06 | global_batch_size: 8 | global_step: 0 | reduced_train_loss: 1.315 | train_step_timing in s: 7.126
Training epoch 0, iteration 1/249 | lr: 3.922e-06 | global_batch_size: 8 | global_step: 1 | reduced_train_loss: 1.653 | train_step_timing in s: 2.505 | consumed_samples: 16
"""
_NEMO_BAR = (
    "Epoch 0: : 100%|##########| 100/100 [10:48<00:00, reduced_train_loss=0.0172, global_step=99.00, "
    "consumed_samples=25600.0, train_step_timing in s=3.130]"
)
_TORCHTITAN = """\
[rank0]:[titan] 2025-04-30 10:00:00,123 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 12.2721  \x1b[38;2;180;60;0mgrad_norm:  1.1999  \x1b[38;2;54;234;195mmemory: 27.14GiB(34.28%)  \x1b[34mtps: 1,082  \x1b[36mtflops: 62.70  \x1b[35mmfu: 6.34%\x1b[39m
[rank0]:[titan] 2025-04-30 10:00:10,123 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss: 10.1103  \x1b[38;2;180;60;0mgrad_norm:  1.1999  \x1b[38;2;54;234;195mmemory: 29.00GiB(34.28%)  \x1b[34mtps: 5,777  \x1b[36mtflops: 334.55  \x1b[35mmfu: 33.83%\x1b[39m
"""
_SMP = """\
2024-06-28 18:34:47 I [logging_utils.py:135] Batch 74 Loss: 11.625, Speed: 1.35 samples/sec, Model TFLOPS/GPU: 28.64, lr: 0.000049, gradnorm: 12.3398
2024-06-28 18:35:11 I [logging_utils.py:135] Batch 75 Loss: 11.625, Speed: 1.32 samples/sec, Model TFLOPS/GPU: 28.03, lr: 0.000050, gradnorm: 12.3637
"""
_FSDP = "0: 2023-11-29 04:19:54 I [train.py:122] Batch 1 Loss: 11.620493, Speed: 10.72 samples/sec, lr: 0.000013\n"
_DEEPSPEED = """\
[2023-11-07 01:55:23,711] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=4, lr=[4.9e-05], mom=[(0.9, 0.95)]
[2023-11-07 01:55:23,714] [INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.025, CurrSamplesPerSec=25.704, MemAllocated=4.32GB, MaxMemAllocated=38.49GB
[2022-08-29 06:58:56,176] [INFO] [timer.py:198:stop] 0/20, RunningAvgSamplesPerSec=232.7, CurrSamplesPerSec=227.48, MemAllocated=0.36GB, MaxMemAllocated=15.06GB
"""
_TRAINER = """\
  0%|          | 0/325 [00:00<?, ?it/s]\r  3%|3         | 10/325 [01:16<40:10,  7.65s/it]
{'loss': 1.1, 'grad_norm': 2.18, 'learning_rate': 2e-05, 'epoch': 0.2}
  6%|6         | 20/325 [02:26<37:10,  7.01s/it]
{'train_runtime': 2457.0749, 'train_samples_per_second': 1.058, 'train_steps_per_second': 0.132, 'train_loss': 1.35}
Total Peak Memory consumed during the train (max): 20480
"""
_EARLIER = "step 20 loss 3.2 tokens_per_second 5000.0\n"
_BAR = "progress bar (Hugging Face Trainer, accelerate, tqdm)"
_TRAINER_END = (
    "{'train_runtime': 2457.0749, 'train_samples_per_second': 1.058, 'train_steps_per_second': 0.125, 'epoch': 2.0}"
)

LOGS = (
    Excerpt("Hugging Face Trainer, last line", _TRAINER_END, "run_seconds", [8.0], {}),
    Excerpt("exported script", exported([9.0, 1.5]), "seconds", [9.0, 1.5], {"allocated": 21.5, "reserved": 24.0}),
    Excerpt("exported script of an earlier version", _EARLIER, "tokens_per_second", [5000.0], {}),
    Excerpt("Megatron-LM", _MEGATRON, "seconds", [19.1388, 12.9361], {"allocated": 16.5, "reserved": 16.0}, 128),
    Excerpt("NeMo", _NEMO, "seconds", [7.126, 2.505], {}, 8),
    Excerpt("NeMo", _NEMO_BAR, "seconds", [3.13], {}),
    Excerpt("torchtitan", _TORCHTITAN, "tokens_per_second_per_gpu", [1082, 5777], {"reserved": 29.0}),
    Excerpt("AWS's SMP and FSDP scripts", _SMP, "samples_per_second", [1.35, 1.32], {}),
    Excerpt("AWS's SMP and FSDP scripts", _FSDP, "samples_per_second", [10.72], {}),
    Excerpt("DeepSpeed", _DEEPSPEED, "samples_per_second", [25.704, 227.48], {"allocated": 38.49}),
    Excerpt(_BAR, _TRAINER, "seconds", [7.6, 7.0], {"allocated": 20.0}),
)
