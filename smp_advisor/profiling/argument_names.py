"""Usual names of arguments and attributes, by their meaning, and usual sizes of inputs."""

import re

LABELS = frozenset({"labels", "label", "targets", "target", "y", "lm_labels", "future_values"})
"""Arguments with which a model computes its loss."""
MASKS = frozenset({"mask", "attention_mask", "src_mask", "padding_mask", "key_padding_mask", "pad_mask"})
"""Masks of tokens: true for each of them."""
STATES = re.compile(
    r"^(hidden|hx?|h_?0|hc|state|states|init_?state|prev_?state|initial_?state|cell|c_?0|cx|cache|past\w*|mems|memory_states)$"
)
"""States of recurrent layers and caches, which a training step begins without."""
INTEGERS = re.compile(
    r"(^|_)(ids?|idx|index|indices|codes?|tokens|sparse\w*|cat\w*|users?|items?|species|atoms?|words?|chars)$|^(z|atomic_numbers|atomic_num\w*)$"
)
"""Integers, by their last word."""
SINGLE_IDS = re.compile(r"^(user|item|movie|product|uid|iid|author|track|song|query|doc)(_?idx?)?s?$")
"""Integers of which a sample has one."""
ADJACENCY = re.compile(r"^(adj\w*|a_hat|laplacian|graph)$")
"""Graphs as dense matrices."""
TIMES = frozenset({"t", "time", "times", "timestep", "timesteps", "sigma", "noise_level", "noise_labels", "guidance"})
IMAGES = frozenset({"img", "image", "images", "imgs", "pixel_values", "pixels", "picture", "image1", "image2"})
AUDIO = frozenset(
    {"audio", "raw_audio", "wav", "wavs", "waveform", "waveforms", "mix", "sound", "speech", "input_values"}
)
SECOND_TOKENS = frozenset({"tgt", "trg", "decoder_input_ids", "target_tokens", "tgt_tokens", "tgt_ids"})
TOKENS = frozenset({"tokens", "input_ids", "ids", "idx", "text", "token_ids"})
CONTEXTS = frozenset({"encoder_hidden_states", "context", "cond_tokens", "memory", "encoder_output", "queries"})
COORDINATES = frozenset({"coors", "coords", "coordinates", "positions_3d", "xyz", "pos"})
IMAGE_SIZES = (224, 256, 32, 64, 28, 128, 299, 384)
AUDIO_LENGTHS = (65_536, 16_000, 160_000)
FEATURES = (80, 40, 64, 128)
"""Features of a frame of speech."""
SIZE_NAMES = ("img_size", "image_size", "input_size", "input_resolution", "img_dim", "resolution", "sample_size")
CONTEXT_WIDTHS = (
    "cross_attention_dim", "joint_attention_dim", "caption_channels", "text_embed_dim", "context_dim", "cond_dim",
    "encoder_hidden_size", "queries_dim", "dim",
)  # fmt: skip
ROW_LENGTHS = (
    "lookback_len",
    "input_len",
    "context_length",
    "context_len",
    "num_frames",
    "max_length",
    "window_size",
    "seq_len",
    "input_length",
)
ROW_WIDTHS = (
    "num_variates",
    "num_features",
    "n_features",
    "num_input_channels",
    "num_mel_bins",
    "d_in",
    "n_mels",
    "dim_in",
    "input_dim",
    "in_dim",
    "feature_dim",
    "d_input",
    "enc_in",
)
LENGTH_NAMES = (
    "max_seq_len", "max_seq_length", "max_length", "max_len", "seq_len", "seq_length", "block_size", "context_length",
    "context_size", "n_positions", "max_position_embeddings", "num_positions", "n_ctx",
)  # fmt: skip
CONTEXT_TOKENS = 77
"""Tokens of a text that conditions images: those of CLIP."""
EDGES_PER_NODE = 8
COUNTERS = frozenset({"batch_idx", "batch_index", "batch_nb", "dataloader_idx"})
"""Integers that a training loop counts."""
EDGES = frozenset({"edge_index", "edges"})
"""Pairs of nodes of a graph."""
