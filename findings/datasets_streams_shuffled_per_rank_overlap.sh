#!/usr/bin/env bash
# datasets 5.2.0: after split_dataset_by_node, shuffle with another seed on each rank gives the ranks the same rows.
#
# Why it matters: a script divides a stream, and then shuffles each rank's part with seed + rank, so that the ranks do not
# read in the same order. The division is stored in the data set and applied when it is read, after the files were
# shuffled: each rank shuffles all files by its own seed and takes every n-th of its own order. Ranks read the same files,
# other files are read by none, in every epoch, without a message. The same holds for a number of files that the ranks do
# not divide, where rows are dealt. One seed on all ranks divides rightly.
#
# Seen on 2026-12-01, Linux, Python 3.11, 64 rows, two ranks: 8 files, seeds 7 and 8: 24 rows read by both ranks and 24
# by none (16 and 16 in epoch 1); 7 files: 15 and 15; one seed: none and none.
# Needs pip. Fails if the behavior changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet 'datasets==5.2.0' 'numpy<3'
cat >"$folder/streams.py" <<'PROGRAM'
import datasets
from datasets.distributed import split_dataset_by_node

datasets.logging.set_verbosity_error()
ROWS = datasets.Dataset.from_dict({"number": list(range(64))})


def part(rank, files, seed, epoch):
    """Return the rows that a rank reads."""
    stream = split_dataset_by_node(ROWS.to_iterable_dataset(num_shards=files), rank=rank, world_size=2)
    stream = stream.shuffle(seed=seed, buffer_size=4)
    stream.set_epoch(epoch)
    return {row["number"] for row in stream}


def counts(files, seeds, epoch):
    """Return how many rows both ranks read, and how many none reads."""
    first, second = (part(rank, files, seed, epoch) for rank, seed in enumerate(seeds))
    return len(first & second), len(ROWS) - len(first | second)


print(f"datasets {datasets.__version__}: rows of 64 that both ranks read, and that none reads")
for files in (8, 7):
    for epoch in (0, 1):
        alike, apart = counts(files, (7, 7), epoch), counts(files, (7, 8), epoch)
        print(f"{files} files, epoch {epoch}: one seed {alike}, seed + rank {apart}")
        assert alike == (0, 0), "one seed does not divide"
        assert apart[0] == apart[1] > 8, "seeds of the ranks divide"
PROGRAM
"$folder/venv/bin/python" "$folder/streams.py"
