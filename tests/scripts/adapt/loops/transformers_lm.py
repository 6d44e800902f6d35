"""Causal language model of transformers: the loss comes out of the model."""
import argparse

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup


class Tokens(Dataset):
    def __init__(self, count, length, vocabulary):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, vocabulary, (count, length), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--output_dir", type=str, default="out")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = GPT2Config(vocab_size=97, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    model.to(device)

    train_dataset = Tokens(16, 12, 97)
    eval_dataset = Tokens(8, 12, 97)
    train_dataloader = DataLoader(train_dataset, shuffle=True, batch_size=args.batch_size)
    eval_dataloader = DataLoader(eval_dataset, batch_size=args.batch_size)

    no_decay = ["bias", "ln_1.weight"]
    groups = [
        {"params": [p for n, p in model.named_parameters() if not any(k in n for k in no_decay)], "weight_decay": 0.1},
        {"params": [p for n, p in model.named_parameters() if any(k in n for k in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.lr)
    lr_scheduler = get_linear_schedule_with_warmup(optimizer, 1, 10)

    for epoch in range(1):
        model.train()
        for batch in train_dataloader:
            batch = {k: v.to(device) for k, v in batch.items()}
            outputs = model(**batch)
            loss = outputs.loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            print("train", loss.item())

        model.eval()
        losses = []
        for batch in eval_dataloader:
            with torch.no_grad():
                outputs = model(**{k: v.to(device) for k, v in batch.items()})
            losses.append(outputs.loss.item())
        print("eval", sum(losses) / len(losses))
    model.save_pretrained(args.output_dir)


if __name__ == "__main__":
    main()
