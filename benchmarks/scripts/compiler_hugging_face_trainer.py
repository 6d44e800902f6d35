"""Training Compiler with Hugging Face's Trainer: static shapes, rare evaluations."""

import argparse
import os

from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name", default="roberta-large")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--train_batch_size", type=int, default=48)
    parser.add_argument("--learning_rate", type=float, default=3e-5)
    parser.add_argument("--output_data_dir", default=os.environ.get("SM_OUTPUT_DATA_DIR", "out"))
    parser.add_argument("--n_gpus", type=int, default=int(os.environ.get("SM_NUM_GPUS", 1)))
    args, _ = parser.parse_known_args()
    set_seed(42)

    raw = load_dataset("glue", "sst2")
    tokenizer = AutoTokenizer.from_pretrained(args.model_name)

    def encode(examples):
        return tokenizer(examples["sentence"], padding="max_length", max_length=128, truncation=True)

    encoded = raw.map(encode, batched=True, num_proc=8)
    config = AutoConfig.from_pretrained(args.model_name, num_labels=2)
    model = AutoModelForSequenceClassification.from_pretrained(args.model_name, config=config)
    training_args = TrainingArguments(
        output_dir=args.output_data_dir,
        per_device_train_batch_size=args.train_batch_size,
        num_train_epochs=args.epochs,
        learning_rate=args.learning_rate,
        fp16=True,
        logging_steps=500,
        save_steps=5000,
        dataloader_drop_last=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=encoded["train"],
        eval_dataset=encoded["validation"],
        tokenizer=tokenizer,
        data_collator=default_data_collator,
    )
    trainer.train()
    trainer.save_model(args.output_data_dir)


def _mp_fn(index):
    main()


if __name__ == "__main__":
    main()
