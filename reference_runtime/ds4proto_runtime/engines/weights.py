"""Weights from a GGUF file: memory-mapped, dequantised one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ds4proto_runtime.engines.base import EngineError


class Weights:
    """Tensors of one GGUF file as float32, read on demand.

    Parameters
    ----------
    path : Path
        A GGUF file; only the tensors that are asked for are touched.
    device : str
        Torch device that the tensors end up on.

    Raises
    ------
    EngineError
        If the file is no model, with the reason.
    OSError
        If it cannot be opened.
    """

    def __init__(self, path: Path, device: str = "cpu") -> None:
        from gguf import GGUFReader

        path.open("rb").close()  # a file that is not there is told by the system
        try:
            reader = GGUFReader(str(path))
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise EngineError(
                f"{path}: not a readable GGUF file ({error}); name a model with -m"
            ) from error
        self.path = path
        self._device = device
        self._taken: set[str] = set()
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.metadata: Mapping[str, Any] = {
            name: field.contents() for name, field in reader.fields.items()
        }

    def has(self, name: str) -> bool:
        """Tell whether the file holds a tensor."""
        return name in self._tensors

    def type_of(self, name: str) -> str:
        """Return the ggml type of a tensor, such as ``Q4_K``."""
        return str(self._tensors[name].tensor_type.name)

    def get(self, name: str) -> torch.Tensor:
        """Return a tensor as float32, rows first (``[out, in]``).

        Raises
        ------
        EngineError
            If the file does not hold it.
        """
        from gguf import dequantize

        tensor = self._tensors.get(name)
        if tensor is None:
            raise EngineError(
                f"{self.path}: tensor {name} is missing; this file does not hold the"
                " assigned layers"
            )
        self._taken.add(name)
        values = dequantize(tensor.data, tensor.tensor_type)
        array = np.array(values, np.float32).reshape(tuple(reversed(tensor.shape)))
        return torch.from_numpy(array).to(self._device)

    def maybe(self, name: str) -> torch.Tensor | None:
        """Return a tensor, or None where the file has none."""
        return self.get(name) if self.has(name) else None

    def all_taken(self, prefix: str) -> None:
        """Refuse a layer with a tensor that nobody has asked for.

        Raises
        ------
        EngineError
            The model has a part that the engine does not know.
        """
        for name in self._tensors:
            if name.startswith(prefix) and name not in self._taken:
                raise EngineError(
                    f"{self.path}: this engine has no use for {name}, so that it would"
                    " give another text than the model; use a model of a plain family"
                )
