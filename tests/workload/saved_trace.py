"""What autograd really keeps: a forward pass of fake tensors through the kernels that a GPU would choose."""

import contextlib
import math
from unittest.mock import patch

import torch
import transformers
import transformers.masking_utils as masking
from torch._subclasses.fake_tensor import FakeTensorMode

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention
_EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention


def _fused_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Fused kernels, which have no CPU implementation and are traced all the same."""
    scale = scale or 1 / math.sqrt(query.shape[-1])
    if key.shape[1] != query.shape[1] and not enable_gqa:
        key = key.expand(*query.shape[:2], *key.shape[2:]).clone()
        value = value.expand(*query.shape[:2], *value.shape[2:]).clone()
    if attn_mask is not None or query.dtype == torch.float32:
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (key, value))
        if attn_mask is not None:
            attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
        return _EFFICIENT(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)[0]
    return _FLASH(query, key, value, dropout_p, is_causal, False, scale=scale)[0]


def _fused_dropout(input, p=0.5, training=True, inplace=False):  # noqa: A002 - the name is torch's
    return torch.native_dropout(input, p, True)[0] if training and p else input


@contextlib.contextmanager
def _like_a_gpu():
    with (
        patch.object(torch.nn.functional, "scaled_dot_product_attention", _fused_attention),
        patch.object(torch.nn.functional, "dropout", _fused_dropout),
        patch.object(masking, "find_packed_sequence_indices", lambda _: None),
    ):
        yield


def saved_bytes(build, inputs, sizes, dtype):
    """Bytes autograd keeps, without parameters and buffers, of a forward pass on the `inputs` of each size."""
    with FakeTensorMode(), _like_a_gpu():
        model = _built(build, dtype)
        own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        return [_kept(model, inputs(size), own) for size in sizes]


def _kept(model, batch, own):
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            storages[storage._cdata] = storage  # held, so that no other storage takes its place in memory
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(**batch)
    return sum(storage.nbytes() for storage in storages.values())


def _built(build, dtype):
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # a fake model cannot be converted afterwards
    try:
        # Values don't matter, and some initialisations look at them.
        with patch.object(transformers.PreTrainedModel, "initialize_weights", lambda _: None):
            return build().train()
    finally:
        torch.set_default_dtype(default)
