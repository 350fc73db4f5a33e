"""The set-ups that `length.py` compares: plain implementations of the usual
ways to train one Llama on long sequences.

A set-up is a context manager that yields a function, which runs forward and
backward on ids [1, S]. Offloaded tensors lie in memory that torch's allocator
does not count (`mmap`), because a GPU's counter leaves out host memory.
"""

import contextlib
import mmap

import torch
import transformers
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

CHUNK = 256
SHAPE = dict(vocab_size=2048, hidden_size=128, intermediate_size=344,
             num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=1 << 20,
             use_cache=False)


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SHAPE, attn_implementation="sdpa")).train()


@contextlib.contextmanager
def checkpointed(model):
    """Uses transformers' own checkpointing, and computes the logits of all
    rows at once."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    yield lambda ids: model(input_ids=ids, labels=ids).loss.backward()


@contextlib.contextmanager
def checkpointed_chunked_loss(model):
    """Uses transformers' own checkpointing, and computes head and loss by
    chunks of rows."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    yield lambda ids: chunked_loss(
        model, model.model(input_ids=ids)[0], ids).backward()


@contextlib.contextmanager
def alst(model):
    """Works as Arctic Long Sequence Training does on one GPU: stores layers'
    inputs in host memory, and computes MLP and loss by tiles of rows."""
    for layer in model.model.layers:
        layer.mlp.forward = Again(_Tiled, layer.mlp)
        layer.forward = Again(_Offloaded, layer)
    yield lambda ids: chunked_loss(
        model, model.model(input_ids=ids)[0], ids).backward()


@contextlib.contextmanager
def streamed(model, hidden="device"):
    import sluice
    stream = sluice.stream(model, chunk=CHUNK, quiet=True, hidden=hidden)
    yield lambda ids: model(input_ids=ids, labels=ids).loss.backward()
    stream.unstream()


def streamed_in_host(model):
    return streamed(model, hidden="host")


def chunked_loss(model, hidden, ids):
    """Returns the mean loss over rows; the logits of only one chunk exist at a
    time."""
    labels = F.pad(ids, (0, 1), value=-100)[:, 1:]

    def of_rows(h, rows):
        return F.cross_entropy(model.lm_head(h).flatten(0, 1),
                               rows.flatten(), reduction="sum")

    parts = [checkpoint(of_rows, h, rows, use_reentrant=False)
             for h, rows in zip(hidden.split(CHUNK, 1),
                                labels.split(CHUNK, 1))]
    return sum(parts) / (labels != -100).sum()


class Again:
    """Makes backward compute a module's forward again, and add the parameters'
    gradients to those that the parameters already have."""

    def __init__(self, function, module):
        self._function, self._own = function, module.forward
        self._parameters = list(module.parameters())

    def __call__(self, x, **kwargs):
        return self._function.apply(lambda h: self._own(h, **kwargs), x,
                                    *self._parameters)


class _Offloaded(torch.autograd.Function):
    """Keeps only a layer's input, in host memory."""

    @staticmethod
    def forward(ctx, own, x, *parameters):
        ctx.own, ctx.count = own, len(parameters)
        ctx.kept = torch.frombuffer(mmap.mmap(-1, x.nbytes),
                                    dtype=x.dtype).view(x.shape).copy_(x)
        return own(x)

    @staticmethod
    def backward(ctx, dy):
        x = torch.empty_like(ctx.kept).copy_(ctx.kept).requires_grad_()
        with torch.enable_grad():
            y = ctx.own(x)
        torch.autograd.backward(y, dy)
        return None, x.grad, *[None] * ctx.count


class _Tiled(torch.autograd.Function):
    """Processes one tile of rows after the other."""

    @staticmethod
    def forward(ctx, own, x, *parameters):
        ctx.own, ctx.count = own, len(parameters)
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        for a in range(0, x.shape[1], CHUNK):
            y[:, a:a + CHUNK] = own(x[:, a:a + CHUNK])
        return y

    @staticmethod
    def backward(ctx, dy):
        x, = ctx.saved_tensors
        dx = torch.empty_like(x)
        for a in range(0, x.shape[1], CHUNK):
            tile = x[:, a:a + CHUNK].detach().requires_grad_()
            with torch.enable_grad():
                y = ctx.own(tile)
            torch.autograd.backward(y, dy[:, a:a + CHUNK])
            dx[:, a:a + CHUNK] = tile.grad
        return None, dx, *[None] * ctx.count
