"""Formats of training programs: one run of 40 steps of 1.532 s, the first of 6 s, as each of them prints it."""

# ruff: noqa: E501 (lines of logs are long)
import datetime as dt
import json
import math
from dataclasses import replace

import pytest

import smp_advisor as smpa
from smp_advisor.runs.readers import Reader, read_text
from smp_advisor.runs.steps import typical
from tests.runs.logs import exported

STEPS = 40


def taken(i):
    return 6.0 if i == 1 else 1.532


def clock(i):
    return 6.0 + 1.532 * (i - 1)


def short(i):
    return f"{int(i) // 60:02}:{int(i) % 60:02}"


def long(i):
    return str(dt.timedelta(seconds=int(i)))


def stamp(i):
    at = dt.datetime(2026, 11, 1, 10, tzinfo=dt.UTC) + dt.timedelta(seconds=clock(i))
    return at.strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]


def lines(line):
    return "\n".join(map(line, range(1, STEPS + 1))) + "\n"


LOGS = {
    "exported": lines(
        lambda i: (
            f"step {i}/1,908 loss 10.4930 tokens_per_second {256 * 2048 / taken(i):.1f} seconds_per_step {taken(i):.4f} peak_allocated_gib 21.50 peak_reserved_gib 24.00 learning_rate 3.000e-04"
        )
    ),
    "megatron": lines(
        lambda i: (
            f" [2025-08-01 07:19:37] iteration {i:8}/     500 | consumed samples: {256 * i:12} | elapsed time per iteration (ms): {taken(i) * 1000:.1f} | throughput per GPU (TFLOP/s/GPU): 118.0 | learning rate: 6.9E-08 | global batch size:   256 | lm loss: 1.022000E+01 |"
        )
    ),
    "neox": lines(
        lambda i: (
            f"samples/sec: {256 / taken(i):.3f} | iteration {i:8}/     500 | elapsed time per iteration (ms): {taken(i) * 1000:.1f} | learning rate 6.9E-08 | approx flops per GPU: 100.2TFLOPS | lm_loss: 1.022000E+01 | number of skipped iterations: 0 |"
        )
    ),
    "nanotron": lines(
        lambda i: (
            f"11/01/2026 10:00:00 [INFO|DP=0|PP=0|TP=0|ip]: iteration: {i} / 500 | consumed_tokens: {0.524 * i:.3g}M | elapsed_time_per_iteration_ms: {taken(i):.3g}K | tokens_per_sec: {256 * 2.048 / taken(i):.3g}K | tokens_per_sec_per_gpu: {256 * 0.128 / taken(i):.3g}K | global_batch_size: 256 | lm_loss: 10.2 | lr: 1e-5 | model_tflops_per_gpu: 120 | grad_norm: 1.2"
        )
    ),
    "openclip": lines(
        lambda i: (
            f"Train Epoch: 0 [{i * 256:7}/99 (0%)] Data (t): 0.010 Batch (t): {taken(i):.3f}, 167/s Loss: 10.22 (8.5)"
        )
    ),
    "json_synonyms": lines(lambda i: json.dumps({"step": i, "loss": 10.22, "time_per_iteration": taken(i)})),
    "nanogpt": lines(lambda i: f"iter {i}: loss 10.2200, time {taken(i) * 1000:.2f}ms, mfu 35.12%"),
    "litgpt": "\n".join(
        f"Epoch 1 | iter {k} step {k // 4} | loss train: 10.220, val: n/a | iter time: {taken(k // 4) * 250:.2f} ms{' (step)' if k % 4 == 0 else ''} remaining time: 0:12:00"
        for k in range(4, 4 * STEPS + 4)
    ),
    "torchtune": lines(
        lambda i: (
            f"Step {i} | loss:10.2200 lr:2e-05 tokens_per_second_per_gpu:{256 * 2048 / 16 / taken(i):.1f} peak_memory_active:21.2 peak_memory_alloc:21.2 peak_memory_reserved:24.0"
        )
    ),
    "olmo": lines(
        lambda i: (
            f"2026-11-01 10:00:00.123\trank0\tolmo_core.train.callbacks.console_logger:82\tINFO\t[step={i}/500,epoch=1]\n    optim/total grad norm=1.2\n    throughput/device/TPS={256 * 128 / taken(i):,.0f}\n    train/CE loss=10.220"
        )
    ),
    "keras": lines(lambda i: f" {i}/500 ━━━━━━━━━━━━━━━━━━━━ 12:00 2s/step - accuracy: 0.0512 - loss: 10.2200"),
    "keras_real": lines(
        lambda i: (
            f" {i}/500 ━━━━━━━━━━━━━━━━━━━━ {short(1.532 * (500 - i)) if i > 1 else short(6 * 499)} 2s/step - accuracy: 0.0512 - loss: 10.2200"
        )
    ),
    "modelgarden": lines(
        lambda i: f"train | step: {i:6} | steps/sec: {1 / taken(i):.2f} | output: {{'training_loss': 10.22}}"
    ),
    "maxtext": lines(
        lambda i: (
            f"completed step: {i}, seconds: {taken(i):.3f}, TFLOP/s/device: 201.2, Tokens/s/device: {256 * 128 / taken(i):.1f}, total_weights: 524288, loss: 10.220"
        )
    ),
    "torchvision": lines(
        lambda i: (
            f"Epoch: [0]  [{i:4}/500]  eta: 0:12:00  lr: 0.0001  loss: 10.22 (10.22)  time: {taken(i):.4f}  data: 0.0213  max mem: 21709"
        )
    ),
    "llamafactory": lines(
        lambda i: json.dumps(
            {
                "current_steps": i,
                "total_steps": 500,
                "loss": 10.22,
                "lr": 1e-5,
                "epoch": 0.1,
                "percentage": 1.4,
                "elapsed_time": long(clock(i)),
                "remaining_time": "0:12:00",
                "throughput": 256 * 2048 * i / clock(i),
                "total_tokens": 524288 * i,
            }
        )
    ),
    "lightning_rich": "\n".join(
        f"Epoch 0/2 ━━━━━━━━ {i}/500 {long(clock(i))} • 0:12:00 0.65it/s v_num: 0.000 train_loss: 10.2"
        for i in range(1, STEPS + 1)
    ),
    "tqdm": "\r".join(
        f"  {i // 5}%|#         | {i}/500 [{short(clock(i))}<12:00,  1.53s/it]" for i in range(STEPS + 1)
    ),
    "trainer5": "\n".join(
        (
            f"  {i // 5}%|#         | {i}/500 [{short(clock(i))}<12:00,  1.53s/it]"
            + (
                "\n{'loss': '10.22', 'grad_norm': '1.2', 'learning_rate': '4.9e-05', 'epoch': '0.01'}"
                if i % 10 == 0
                else ""
            )
            + ("\n" + "\n".join(f" {k}%|# | {k}/60 [00:{k:02}<00:30,  1.00it/s]" for k in range(20)) if i == 20 else "")
        )
        for i in range(STEPS + 1)
    ),
    "torchtitan": "[rank0]:2026-11-01 - root - INFO - Trainer is initialized with local batch size 16, global batch size 256, gradient accumulation steps 1, sequence length 2048, total steps 500 (warmup 200)\n"
    + lines(
        lambda i: (
            f"[rank0]:[titan] {stamp(i)} - root - INFO - step: {i:2}  loss: 10.2721  grad_norm:  1.1999  memory: 27.14GiB(34.28%)  tps: {256 * 128 / taken(i):,.0f}  tflops: 62.70  mfu: 6.34%"
            + (
                f"\n[rank0]: validate step: {i}  loss:  7.5000  memory: 12.34GiB(15.43%)  tps: 32,768"
                if i % 10 == 0
                else ""
            )
        )
    ),
    "deepspeed": lines(
        lambda i: (
            f"[{stamp(i)}] [INFO] [timer.py:260:stop] epoch=0/micro_step={i * 4}/global_step={i}, RunningAvgSamplesPerSec=167.1, CurrSamplesPerSec={256 / taken(i):.4f}, MemAllocated=4.32GB, MaxMemAllocated=38.49GB"
        )
    ),
    "trl": lines(
        lambda i: (
            f"{{'loss': 10.22, 'grad_norm': 1.2, 'learning_rate': 2e-05, 'num_tokens': {524288 * i}.0, 'mean_token_accuracy': 0.4, 'epoch': 0.0{i}}}\n  {i // 5}%|#   | {i}/500 [{short(clock(i))}<12:00,  1.53s/it]"
        )
    ),
    "nemo2": lines(
        lambda i: (
            f"Training epoch 0, iteration {i}/499 | lr: 1.961e-06 | global_batch_size: 256 | global_step: {i} | reduced_train_loss: 10.22 | train_step_timing in s: {taken(i):.3f} | consumed_samples: {256 * i}"
        )
    ),
    "composer": lines(
        lambda i: (
            f"[batch={i}/500]:\n\t Train time/batch: {i}\n\t Train time/sample: {256 * i}\n\t Train loss/train/total: 10.2200\n\t Train throughput/batches_per_sec: {1 / taken(i):.4f}\n\t Train throughput/samples_per_sec: {256 / taken(i):.4f}\n\t Train throughput/device/tokens_per_sec: {256 * 128 / taken(i):.2f}"
        )
    ),
    "mmengine": lines(
        lambda i: (
            f"11/01 10:00:00 - mmengine - INFO - Iter(train) [{i:4}/500]  lr: 1.0000e-05  eta: 0:12:00  time: {taken(i):.4f}  data_time: 0.0213  memory: 21709  loss: 10.2200"
        )
    ),
    "fairseq": lines(
        lambda i: (
            f'2026-11-01 10:00:00 | INFO | train_inner | {{"epoch": 1, "update": 0.0{i}, "loss": "10.22", "wps": "{256 * 2048 / taken(i):.1f}", "ups": "{1 / taken(i):.2f}", "wpb": "524288", "bsz": "256", "num_updates": "{i}", "lr": "1e-05", "gnorm": "1.2", "train_wall": "2", "wall": "{int(clock(i))}"}}'
        )
    ),
    "timm": lines(
        lambda i: (
            f"Train: 0 [{i:4}/500 (  1%)]  Loss: 10.22 (10.2)  Time: {taken(i):.3f}s, {256 / taken(i):>7.2f}/s  ({taken(i):.3f}s,  167.10/s)  LR: 1.0e-05  Data: 0.021 (0.021)"
        )
    ),
    "llmc": lines(
        lambda i: (
            f"step {i:4}/500 | loss 10.220000 (+nanz)| norm 1.2000 (+nanz)| lr 1.00e-05 | {taken(i) * 1000:.2f} ms | 35.1% bf16 MFU | {256 * 2048 / taken(i):.0f} tok/s"
        )
    ),
    "modded": "\n".join(
        f"step:{i}/500 train_time:{clock(i) * 1000:.0f}ms step_avg:{clock(i) * 1000 / i:.2f}ms"
        for i in range(1, STEPS + 1)
    ),
    "verl": lines(
        lambda i: (
            f"step:{i} - actor/pg_loss:0.01 - timing_s/gen:0.500 - timing_s/step:{taken(i):.3f} - perf/throughput:21389.0"
        )
    ),
    "swift": lines(
        lambda i: (
            f"{{'loss': 10.22, 'grad_norm': 1.2, 'learning_rate': 2e-05, 'global_step/max_steps': '{i}/500', 'percentage': '1.40%', 'elapsed_time': '{int(clock(i))}s', 'remaining_time': '12m', 'memory(GiB)': 21.2, 'train_speed(iter/s)': {i / clock(i):.6f}}}"
        )
    ),
    "ptwordlm": lines(
        lambda i: (
            f"| epoch   1 | {i:5}/  500 batches | lr 20.00 | ms/batch {taken(i) * 1000:.2f} | loss 10.22 | ppl 2000.1"
        )
    ),
    "imagenet": lines(
        lambda i: (
            f"Epoch: [0][{i:4}/500]\tTime  {taken(i):.3f} ( {taken(i):.3f})\tData  0.021 ( 0.021)\tLoss 1.0220e+01 (1.02e+01)"
        )
    ),
    "lingua": lines(
        lambda i: (
            f"0: INFO    26-11-01 10:00:00.1 - 0:00:10 - step: {i}  acc: 0  loss: 10.2200  grad: 1.20e+00  flops: 1.21e+14  wps: {256 * 128 / taken(i):.2e}  iter: {taken(i):.4f}  data: 0.02  lr: 1.00e-05  mem: 21%  pow: 400 W"
        )
    ),
    "picotron": lines(
        lambda i: (
            f"[rank 0] Step: {i:<5} | Loss: 10.2200 | Global batch size: 524K | Tokens/s: {256 * 2.048 / taken(i):.1f}K | Tokens/s/GPU: {256 * 0.128 / taken(i):.2f}K | Tokens: 3.67M | MFU:  35.10% | Memory usage:  21.20GB"
        )
    ),
    "paddlenlp": lines(
        lambda i: (
            f"[2026-11-01 10:00:00,123] [    INFO] - loss: 10.22, learning_rate: 1e-05, global_step: {i}, interval_runtime: {taken(i):.4f}, interval_samples_per_second: {256 / taken(i):.4f}, interval_steps_per_second: {1 / taken(i):.4f}, progress_or_epoch: 0.01"
        )
    ),
    "detectron2": lines(
        lambda i: (
            f"[11/01 10:00:00 d2.utils.events]:  eta: 0:12:00  iter: {i}  total_loss: 10.22  time: {taken(i):.4f}  last_time: {taken(i):.4f}  data_time: 0.0213  last_data_time: 0.0213   lr: 1e-05  max_mem: 21709M"
        )
    ),
    "csvjson": lines(lambda i: json.dumps({"step": i, "loss": 10.22, "step_time": taken(i)})),
    "ddp_print": lines(
        lambda i: (
            f"[rank 0] epoch 0 step {i} loss=10.2200 step_time={taken(i):.3f}s tokens/s={256 * 2048 / taken(i):.0f}"
        )
    ),
    "lightning_acc": "\n".join(
        f"Epoch 0:  28%|██▊       | {i}/500 [{short(clock(i) / 4)}<00:14,  2.43it/s, v_num=0, train_loss=10.2]"
        for i in range(4 * STEPS)
    ),
}


@pytest.fixture(scope="module")
def plan_p():
    advice = smpa.advise(
        "1.3B", "ml.p4d.24xlarge", instance_count=2, library="fsdp", sequence_length=2048, global_batch_size=256
    )
    advice.plan = replace(advice.plan, batch_size=16, gradient_accumulation_steps=1)
    return advice


@pytest.mark.parametrize("name", LOGS)
def test_the_step_time_and_the_loss_of_a_program_are_read(plan_p, tmp_path, name):
    if name == "lightning_acc":
        plan_p = plan_p.again()
        plan_p.plan = replace(plan_p.plan, batch_size=4, gradient_accumulation_steps=4)
    path = tmp_path / "train.log"
    path.write_text(LOGS[name] + "\n", "utf-8")
    run = smpa.watch(path, plan_p)
    assert run.typical.seconds == pytest.approx(1.532, rel=0.01)
    assert not any(reason.startswith("restart") for reason, _ in run.typical.dropped)
    waits = name in {"torchvision", "mmengine", "timm", "imagenet", "lingua", "detectron2"}  # for data
    for text in (LOGS[name], LOGS[name].replace("data_time: 0.0213", "data_time: 21.3 ms")):
        assert read_text(text).data_seconds == (pytest.approx(0.021, abs=0.0011) if waits else None)
    losses = [] if "oss" not in LOGS[name] or name == "verl" else [run.steps.loss]
    assert all(loss == pytest.approx(10.22, rel=0.03) for loss in losses)


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f"{what}:  14%|x | {n}/400 [{short(2 * n)}<10:00, 2.00s/it]" for n in range(400))
        for what in ("Evaluating", "Downloading shards", "Map (num_proc=8)", "Loading checkpoint shards")
    ]
    + ["\n".join(f"validate step: {n}  loss:  7.5  memory: 12.34GiB(15.43%)  tps: 32,768" for n in range(40))],
)
def test_what_is_no_training_is_no_step(text):
    assert read_text(text).samples == ()
    assert read_text(exported([2.0] * 20) + "\n" + text).title == "exported script"


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("{'loss': 'nan', 'grad_norm': 'nan', 'learning_rate': '4.9e-05', 'epoch': '0.01'}", math.nan),
        ("step 7 reduced_train_loss: nan", math.nan),
        ("iteration 7 | lm_loss: nan", math.nan),
        ("{'loss': '0', 'grad_norm': 'nan'}", math.nan),
        ("step 7 loss inf tokens_per_second 1.0", math.inf),
        ("aux loss inf is clipped; loss nan check enabled", None),
        ("{'eval_loss': 'nan'}", None),
    ],
)
def test_a_loss_that_is_not_finite_is_noticed_on_lines_of_training_only(line, loss):
    reader = Reader()
    reader.add(line)
    assert reader.loss == loss or (loss is not None and math.isnan(loss) and math.isnan(reader.loss))
    assert bool(reader.infinite_loss) == (loss is not None)


@pytest.mark.parametrize("seconds", [5.2, 10.6, 1.532, 4.2])
def test_a_clock_of_full_seconds_has_no_rounding_in_the_slope(seconds):
    bar = "\n".join(f"  1%|# | {n}/9000 [{long(seconds * n + 3)}<12:00,  1.53s/it]" for n in range(1000))
    figures = typical(read_text(bar).samples)
    assert figures.seconds == pytest.approx(seconds, rel=1e-3)
    assert figures.error < 1e-3


def test_ranks_out_of_order_are_one_run_and_a_lasting_change_is_none_of_warm_up():
    texts = [exported([2.0] * 60).splitlines()[1:-1] for _ in range(4)]
    mixed = [texts[rank][row - 2 * rank] for row in range(66) for rank in range(4) if 0 <= row - 2 * rank < 60]
    dropped = dict(typical(read_text("\n".join(mixed)).samples).dropped)
    assert "restart (the step number went back)" not in dropped
    slower = typical(read_text(exported([6.0, *[2.4] * 29, *[4.2] * 30])).samples)
    assert (slower.seconds, slower.changed) == (4.2, (31, 2.4))
    early = typical(read_text(exported([9.0, *[2.76] * 24, *[2.4] * 35])).samples)
    assert dict(early.dropped)["warm-up"] == 1
    assert early.changed == (26, 2.76)
    stalls = typical(read_text(exported([62.4 if n % 10 == 9 else 2.4 for n in range(60)])).samples)
    assert stalls.seconds == 2.4
    assert stalls.wall_seconds == pytest.approx(8.4, rel=0.03)


def test_a_resumed_state_counts_the_steps_of_its_own_runtime():
    from smp_advisor.runs.readers import read_trainer_state

    state = {"global_step": 100, "log_history": [{"step": 100, "train_runtime": 40.0, "train_steps_per_second": 1.0}]}
    assert read_trainer_state(state).samples[0].value == 1.0
    assert read_trainer_state({"global_step": 100, "log_history": []}).samples == ()  # it has not ended
