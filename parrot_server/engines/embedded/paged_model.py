"""The model, compiled for paged attention: one forward pass over a mixed batch, on KV blocks that we hand out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parrot_server.engines.embedded.block_pool import Blocks, blocks_for
from parrot_server.engines.embedded.openvino_runtime import import_openvino
from parrot_server.engines.embedded.prefix_tree import Ids
from parrot_server.errors import SetupError

_ALIGNMENT_BYTES = 64
_EXACT_SIZES = 32  # steps of so many tokens, which are mostly decodes, are not padded

Layer = NDArray[np.uint8]
"""The KV of one layer and side as bytes, [blocks, bytes of a block]."""
HostBlocks = list[Layer]


@dataclass(frozen=True, slots=True)
class Row:
    """What one call contributes to a step: its next tokens, how many it has in the cache, and its blocks for all of them."""

    ids: Ids
    past_tokens: int
    table: Blocks
    sampled: bool  # whether the logits after its last token are wanted


class PagedModel:
    """A compiled model and its KV memory. Not thread-safe; `step` runs without the GIL.

    Args:
        folder: holds `openvino_model.xml`.
        threads: of the computation; None: one a physical core.
        exact: float32 and float16 KV instead of what is fastest.

    Raises:
        SetupError: the folder's model cannot be run.
    """

    def __init__(self, folder: Path, threads: int | None, exact: bool) -> None:
        self._openvino = import_openvino()
        # Keys are quantised a token at a time, not a channel at a time over a block: then a token's KV depends on nothing
        # that comes after it, and a block that another call goes on writing can be shared up to any token.
        properties: dict[str, object] = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "KEY_CACHE_QUANT_MODE": "BY_TOKEN",
        }
        if threads is not None:
            properties["INFERENCE_NUM_THREADS"] = threads
        if exact:
            properties |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f16"}
        try:
            compiled = self._openvino.Core().compile_model(self._paged(folder), "CPU", properties)
        except RuntimeError as error:
            raise SetupError(f"the model in {folder} cannot be run: {str(error).strip().splitlines()[0]}") from None
        self._request = compiled.create_infer_request()
        self._ports = [port for port in compiled.inputs if "_cache" in port.any_name]
        self._layers: list[Layer] = []
        self.vocabulary = compiled.outputs[0].partial_shape[-1].get_length()
        self.blocks = 0
        self.block_bytes = sum(int(np.prod(self._block_shape(p))) * p.element_type.size for p in self._ports)

    def allocate(self, blocks: int) -> None:
        """Set the KV memory up, all zeros, in pages that are not touched before they are used."""
        openvino = self._openvino
        self.blocks = blocks
        self._padding = np.array([blocks], np.int32)  # one more, for tokens that are for nothing
        for port in self._ports:
            shape = (blocks + 1, *self._block_shape(port))
            layer = _aligned_zeros(blocks + 1, int(np.prod(shape[1:])) * port.element_type.size)
            tensor = openvino.Tensor(layer, openvino.Shape(shape), port.element_type)
            self._request.set_tensor(port.any_name, tensor)
            self._layers.append(layer)

    def step(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Compute the rows' tokens; returns the logits of those that are sampled, [sampled rows, vocabulary].

        The result is valid until the next step.

        Raises:
            IndexError: a token id or a block that does not exist, or too few blocks. The library itself would crash.
        """
        request = self.set_inputs(rows)
        request.infer(share_outputs=True)
        logits: NDArray[np.float32] = request.get_output_tensor(0).data[:, 0, :]
        return logits

    def set_inputs(self, rows: Sequence[Row]) -> Any:
        """The library's request with everything set for a step. Raises IndexError as `step`."""
        for name, value in self._inputs(rows).items():
            self._request.set_tensor(name, self._openvino.Tensor(value))
        return self._request

    def copy_block(self, source: int, target: int) -> None:
        """Copy the KV of a block into another."""
        for layer in self._layers:
            layer[target] = layer[source]

    def read_blocks(self, blocks: Blocks) -> HostBlocks:
        """Copies of blocks, one array a layer and side."""
        return [layer[blocks] for layer in self._layers]

    def write_blocks(self, blocks: Blocks, saved: HostBlocks, first: int) -> None:
        """Put copies, from number `first` on, into blocks."""
        for layer, data in zip(self._layers, saved, strict=True):
            layer[blocks] = data[first : first + len(blocks)]

    def _inputs(self, rows: Sequence[Row]) -> dict[str, NDArray[Any]]:
        self._check(rows)
        tokens = sum(len(row.ids) for row in rows)
        if padding := _padded(tokens) - tokens:
            rows = [*rows, Row(np.zeros(padding, np.int32), 0, self._padding, sampled=False)]
        lengths = np.array([len(row.ids) for row in rows], np.int32)
        past = np.array([row.past_tokens for row in rows], np.int32)
        tables = np.array([len(row.table) for row in rows], np.int32)
        ends = np.cumsum(lengths, dtype=np.int32)
        begins = ends - lengths
        ids = np.concatenate([row.ids for row in rows])
        sampled = [i for i, row in enumerate(rows) if row.sampled]
        return {
            "input_ids": ids.astype(np.int64),
            "position_ids": np.arange(ends[-1], dtype=np.int64) + np.repeat(past - begins, lengths),
            "past_lens": past,
            "subsequence_begins": np.concatenate([_ZERO, ends]),
            "block_indices_begins": np.concatenate([_ZERO, np.cumsum(tables, dtype=np.int32)]),
            "block_indices": np.concatenate([row.table for row in rows]),
            "max_context_len": np.array((past + lengths).max(), np.int32),
            # At least one row must be projected: where none is sampled, the last one is for nothing.
            "sampled_tokens_indices": (ends[sampled or [-1]] - 1).astype(np.int64),
        }

    def _check(self, rows: Sequence[Row]) -> None:
        ids, blocks = np.concatenate([row.ids for row in rows]), np.concatenate([row.table for row in rows])
        if ids.min() < 0 or ids.max() >= self.vocabulary:
            raise IndexError(f"a token id outside 0 to {self.vocabulary - 1}")
        if blocks.min() < 0 or blocks.max() >= self.blocks:
            raise IndexError(f"a block outside 0 to {self.blocks - 1}")
        if any(len(row.table) != blocks_for(row.past_tokens + len(row.ids)) for row in rows):
            raise IndexError("a table that is not as long as its row's tokens need")

    def _paged(self, folder: Path) -> Any:
        # A private module: the version is pinned, and a test runs the real model.
        from openvino._offline_transformations import paged_attention_transformation

        model = self._openvino.Core().read_model(folder / "openvino_model.xml")
        paged_attention_transformation(model)
        self._project_sampled_rows_only(model)
        return model

    def _project_sampled_rows_only(self, model: Any) -> None:
        """Gather the rows that will be sampled before the vocabulary projection: prefill pays for one row, not for all."""
        op = self._openvino.opset13
        node = model.get_results()[0].input_value(0).get_node()
        while node.get_type_name() != "MatMul":
            node = node.input_value(0).get_node()
        rows = op.parameter([-1], np.int64, name="sampled_tokens_indices")
        rows.output(0).set_names({"sampled_tokens_indices"})
        gathered = op.gather(node.input_value(0), rows, op.constant(np.int64(0)))
        node.input(0).replace_source_output(gathered.output(0))
        model.add_parameters([rows])
        model.validate_nodes_and_infer_types()

    @staticmethod
    def _block_shape(port: Any) -> tuple[int, ...]:
        return tuple(port.partial_shape[i].get_length() for i in range(1, 4))


_ZERO = np.zeros(1, np.int32)


def _padded(tokens: int) -> int:
    """The size of a step with so many tokens: few sizes, since the library keeps about 1 MB for each that it has seen."""
    if tokens <= _EXACT_SIZES:
        return tokens
    grain = 16 if tokens <= 128 else 32
    return -(-tokens // grain) * grain


def _aligned_zeros(blocks: int, block_bytes: int) -> Layer:
    """Zeros that begin at a cache line. The pages come from the system when they are first written."""
    raw = np.zeros(blocks * block_bytes + _ALIGNMENT_BYTES, np.uint8)
    begin = -raw.ctypes.data % _ALIGNMENT_BYTES
    return raw[begin : begin + blocks * block_bytes].reshape(blocks, block_bytes)


def row_of(ids: Ids, past_tokens: int, table: Blocks, sampled: bool) -> Row:
    """A row with the part of the table that its tokens need."""
    return Row(ids, past_tokens, table[: blocks_for(past_tokens + len(ids))], sampled)
