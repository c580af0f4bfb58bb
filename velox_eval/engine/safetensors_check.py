"""Whether a safetensors file is all there, from its header alone."""

from __future__ import annotations

import json
from pathlib import Path

from velox_eval.errors import ModelError

_LFS_POINTER = b"version https://git-lfs"


def check_safetensors(path: Path) -> None:
    """Return if `path` has the length its own header promises; ModelError says what is wrong otherwise."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if (start + file.read(16)).startswith(_LFS_POINTER):
            raise ModelError(f"{path} is a Git LFS pointer, not the weights: run `git lfs pull` in its repository")
        file.seek(8)
        header = file.read(length) if 8 + length <= size else b""
    try:
        tensors = json.loads(header)
        end = max((entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ModelError(f"{path} is no whole safetensors file ({size} bytes): fetch it again") from error
    if 8 + length + end != size:
        raise ModelError(f"{path} has {size} bytes where its header promises {8 + length + end}: fetch it again")
