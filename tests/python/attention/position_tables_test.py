"""Layers that index a table with their positions run whole, unless the table
is declared in `rows`."""

from __future__ import annotations

import copy

import pytest
import torch
from group_layers import graded
from models import (
    Wrapper,
    assert_same,
    batch,
    run,
    streamed,
    tiny,
    unstreamed,
    wrap_mlps,
)
from titan import titan, tokens
from torch import nn

import sluice

WIDTH = 8  # width of a head


def table_of(length: int, base: float = 10_000.0) -> tuple:
    """Returns (cos, sin), each [length, WIDTH]."""
    at = base ** (-torch.arange(0, WIDTH, 2) / WIDTH)
    angles = torch.outer(torch.arange(length), at)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


class Tables(nn.Module):
    """Replaces a model's rotary embedding; returns a table of all positions."""

    def forward(self, x, position_ids):
        return table_of(int(position_ids.max()) + 1)


class Indexing(Wrapper):
    """Wraps a layer and indexes the table that the layer is given."""

    def forward(self, hidden_states, attention_mask=None, position_ids=None,
                position_embeddings=None, **rest):
        cos, sin = self.tables(hidden_states, position_embeddings)
        return self.inner(
            hidden_states, attention_mask=attention_mask,
            position_embeddings=(cos[position_ids], sin[position_ids]))

    def tables(self, x, given):
        return given


class Grown(nn.Module):
    """A stored table, which is computed again for a longer sequence. `base`
    maps the table's length to the base of its angles."""

    def __init__(self, rows, base=lambda rows: 10_000.0):
        super().__init__()
        self.base = base
        self._make(rows)

    def _make(self, rows):
        self.rows = rows
        for name, part in zip(("cos", "sin"), table_of(
                rows, self.base(rows))):
            self.register_buffer(name, part, persistent=False)

    def forward(self, x, seq_len=None):
        if seq_len > self.rows:
            self._make(seq_len)
        return self.cos[:seq_len], self.sin[:seq_len]


class Asking(Indexing):
    """Gets the table from its own module."""

    def __init__(self, inner, table):
        super().__init__(inner)
        self.table = table

    def tables(self, x, given):
        return self.table(x, seq_len=x.shape[1])


def asking(rows, **options):
    model = tiny()
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = Asking(layer, Grown(rows, **options))
    return model


def indexing():
    model = tiny()
    model.model.rotary_emb = Tables()
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = Indexing(layer)
    return model


# The table of the last case depends on the number of rows only above 90, and
# the probe has 70 rows.
@pytest.mark.parametrize("model", [
    indexing, *(lambda rows=rows: asking(rows) for rows in (512, 75, 30)),
    lambda: asking(16, base=lambda rows: 10_000.0 * max(1, rows / 90))],
    ids=["argument", "512", "75", "30", "length"])
def test_layers_that_index_a_table_run_whole(session, model):
    model, inputs = model(), batch(length=100)
    expected = unstreamed(model, inputs)
    stream = sluice.stream(model, session=session, chunk=16, check="always")
    assert sum(count for _, count in stream.whole) == 2
    for _ in range(2):
        assert_same(run(model, inputs), expected)
    assert stream.stats().blocks > 0 and stream.stats().host_bytes == 0


class Viewing(Wrapper):
    """Gets the number of its rows, not a table's length, as `seq_len`."""

    def forward(self, x, seq_len=None):
        return self.inner(x.view(-1, seq_len, x.shape[-1]))


class Telling(Wrapper):
    def __init__(self, inner):
        super().__init__(Viewing(inner))

    def forward(self, x):
        return self.inner(x, seq_len=x.shape[1])


def test_a_module_gets_the_number_of_its_own_rows(session):
    model, inputs = wrap_mlps(Telling), batch()
    assert_same(streamed(model, session, inputs), unstreamed(model, inputs))


class Indexed(Wrapper):
    """titan's layer, which indexes the table by itself."""

    def forward(self, x, freqs_cis, positions):
        return self.inner(x, freqs_cis[positions])


class IndexedTitan(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = titan()
        self.layers = nn.ModuleDict({n: Indexed(layer) for n, layer in
                                     self.inner.layers.items()})
        del self.inner.layers

    def forward(self, ids):
        x, at = self.inner.tok_embeddings(ids), torch.arange(ids.shape[1])
        for layer in self.layers.values():
            x = layer(x, self.inner.freqs_cis, at)
        return self.inner.output(self.inner.norm(x))


def test_custom_layers_receive_the_whole_table(session):
    model = IndexedTitan()
    expected = graded(copy.deepcopy(model), tokens())
    stream = sluice.stream(
        layers=model.layers, attention="sdpa", session=session, quiet=True,
        chunk=16, rows={"freqs_cis": None, "positions": 0}, check="always",
        sample=lambda: model(tokens()))
    assert_same(graded(model, tokens()), expected)
    assert stream.stats().blocks > 0
