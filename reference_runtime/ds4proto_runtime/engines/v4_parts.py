"""The two joints of a DeepSeek V4 layer: where partials of two ranks are added.

Output groups of the attention and the lanes of the shared expert are halved, routed
experts are halved by number. One process adds rank 0 and rank 1 in that order; under
tensor parallelism the gate does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ds4proto_runtime.engines.base import F32, Gate, GateKind
from ds4proto_runtime.engines.decoder import halves


class Joint:
    """Adds the partials of both ranks, here or through a gate.

    Attributes
    ----------
    gate : callable or None
        Set for the time of one run under tensor parallelism.
    """

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self.gate: Gate | None = None

    def add(self, layer: int, kind: GateKind, partial: Any, x: Tensor) -> Tensor:
        """Return the sum of both partials of one block."""
        if self.rank is None or self.gate is None:
            both: Tensor = partial(x, 0) + partial(x, 1)
            return both
        own: Tensor = partial(x, self.rank)
        flat: F32 = own.reshape(-1, own.shape[-1]).cpu().numpy()
        joined = torch.from_numpy(self.gate(layer, kind, flat))
        return joined.to(own.device).view(own.shape)


class JoinedOutput(nn.Module):
    """The last projection of the attention, as a sum over two halves of the groups."""

    def __init__(self, whole: nn.Linear, groups: int, layer: int, joint: Joint) -> None:
        super().__init__()
        self.weight = whole.weight
        self._columns = whole.in_features // groups
        self._groups = groups
        self._layer = layer
        self._joint = joint

    def forward(self, x: Tensor) -> Tensor:
        """Return the joined projection."""
        return self._joint.add(self._layer, "ATTN", self._partial, x)

    def _partial(self, x: Tensor, rank: int) -> Tensor:
        own = halves(self._groups)[rank]
        columns = slice(own.start * self._columns, own.stop * self._columns)
        return linear(x[..., columns], self.weight[:, columns])


class JoinedExperts(nn.Module):
    """Routed and shared experts, as a sum over two halves."""

    def __init__(self, whole: Any, layer: int, joint: Joint) -> None:
        super().__init__()
        self.gate = whole.gate
        self.experts = whole.experts
        self.shared_experts = whole.shared_experts
        self._hashed = whole.is_hash
        self._layer = layer
        self._joint = joint

    def forward(self, hidden_states: Tensor, input_ids: Tensor | None = None) -> Tensor:
        """Return routed plus shared experts, joined."""
        ids = (input_ids,) if self._hashed else ()
        _, weights, chosen = self.gate(hidden_states, *ids)

        def partial(x: Tensor, rank: int) -> Tensor:
            return self._shared(x, rank) + self._routed(x, weights, chosen, rank)

        return self._joint.add(self._layer, "FFN", partial, hidden_states)

    def _shared(self, x: Tensor, rank: int) -> Tensor:
        mlp = self.shared_experts
        own = halves(mlp.gate_proj.out_features)[rank]
        gate = linear(x, mlp.gate_proj.weight[own]).clamp(max=mlp.limit)
        up = linear(x, mlp.up_proj.weight[own]).clamp(min=-mlp.limit, max=mlp.limit)
        return linear(mlp.act_fn(gate) * up, mlp.down_proj.weight[:, own])

    def _routed(self, x: Tensor, weights: Tensor, chosen: Tensor, rank: int) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        total = torch.zeros_like(flat)
        own = halves(self.experts.num_experts)[rank]
        # ascending expert numbers: the order of the sum is part of the result
        for expert in range(own.start, own.stop):
            rows, slots = torch.where(chosen == expert)
            if len(rows) == 0:
                continue
            inner = self.experts._apply_gate(
                linear(flat[rows], self.experts.gate_up_proj[expert])
            )
            part = linear(inner, self.experts.down_proj[expert])
            total[rows] += part * weights[rows, slots, None]
        return total.view(x.shape)


def join(layer_module: Any, config: Any, layer: int, joint: Joint) -> None:
    """Replace the two joints of a decoder layer."""
    attention = layer_module.self_attn
    attention.o_b_proj = JoinedOutput(attention.o_b_proj, config.o_groups, layer, joint)
    layer_module.mlp = JoinedExperts(layer_module.mlp, layer, joint)
