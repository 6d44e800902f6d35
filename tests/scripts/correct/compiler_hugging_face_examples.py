# plan: {"library": "training-compiler"}
"""As Hugging Face's own examples are written: three dataclasses, a parser, a Trainer."""
import logging
import os
import sys
from dataclasses import dataclass, field
from itertools import chain
from typing import Optional

import datasets
import transformers
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    model_name_or_path: Optional[str] = field(default="gpt2")
    torch_dtype: Optional[str] = field(default=None)


@dataclass
class DataTrainingArguments:
    dataset_name: Optional[str] = field(default="wikitext")
    block_size: Optional[int] = field(default=512)
    preprocessing_num_workers: Optional[int] = field(default=None)
    overwrite_cache: bool = field(default=False)


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    logging.basicConfig(level=logging.INFO, handlers=[logging.StreamHandler(sys.stdout)])
    log_level = training_args.get_process_log_level()
    logger.setLevel(log_level)
    datasets.utils.logging.set_verbosity(log_level)
    transformers.utils.logging.set_verbosity(log_level)
    last_checkpoint = get_last_checkpoint(training_args.output_dir) if training_args.do_train else None
    set_seed(training_args.seed)

    raw = load_dataset(data_args.dataset_name)
    config = AutoConfig.from_pretrained(model_args.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, config=config)
    model.resize_token_embeddings(len(tokenizer))

    def tokenize(examples):
        return tokenizer(examples["text"])

    def group(examples):
        joined = {key: list(chain(*examples[key])) for key in examples}
        total = len(joined["input_ids"]) // data_args.block_size * data_args.block_size
        result = {
            key: [values[i : i + data_args.block_size] for i in range(0, total, data_args.block_size)]
            for key, values in joined.items()
        }
        result["labels"] = result["input_ids"].copy()
        return result

    with training_args.main_process_first(desc="dataset map"):
        tokenized = raw.map(tokenize, batched=True, num_proc=data_args.preprocessing_num_workers or 8)
        grouped = tokenized.map(group, batched=True, num_proc=data_args.preprocessing_num_workers or 8)

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=grouped["train"] if training_args.do_train else None,
        eval_dataset=grouped["validation"] if training_args.do_eval else None,
        tokenizer=tokenizer,
        data_collator=default_data_collator,
    )
    if training_args.do_train:
        result = trainer.train(resume_from_checkpoint=last_checkpoint)
        trainer.save_model()
        metrics = result.metrics
        metrics["train_samples"] = len(grouped["train"])
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()
