"""Joins the checkpoint's rows with the backend's packer."""

from __future__ import annotations

from gristmill.backends.cpu.packing import pack_published
from gristmill.quant.formats import PackedTensor
from gristmill.weights.pack_rows import StoredRows, lost_scales_error


def pack_natively(rows: StoredRows) -> PackedTensor:
    """Pack a matrix on the native side. Raises: ModelFileError naming the tensor if fp16 cannot hold its scales."""
    packed, lost = pack_published(rows.type, rows.raw, rows.n, rows.k, rows.row_ids)
    if lost:
        raise lost_scales_error(rows.name, lost)
    return packed
