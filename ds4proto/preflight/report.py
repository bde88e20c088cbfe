"""The outcome of a preflight as plain values."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ds4proto.preflight.case import Case, Member
from ds4proto.preflight.facts import ModelFile
from ds4proto.preflight.finding import Finding, verdict
from ds4proto.preflight.memory import gpu_limit
from ds4proto.preflight.predict import predict
from ds4proto.preflight.rules_memory import need_of
from ds4proto.preflight.rules_settings import settings_table

__all__ = ["AREAS", "document", "worst"]

AREAS: Final = {
    "command": "command lines", "roles": "roles", "dial": "addresses and ports",
    "layers": "layers", "head": "output head", "hello": "registration",
    "model": "model and identity", "build": "builds", "width": "activation width",
    "rdma": "RDMA", "features": "features", "backend": "back ends",
    "sessions": "sessions", "settings": "settings", "context": "context",
    "memory": "memory", "link": "links", "clock": "clocks",
}  # fmt: skip
"""Rows of the verdict table, by the first part of a check's name."""


def document(case: Case, findings: list[Finding]) -> dict[str, Any]:
    """Return everything as JSON can hold it."""
    return {
        "verdict": verdict(findings),
        "mode": case.mode,
        "findings": [msgspec.to_builtins(finding) for finding in findings],
        "areas": {name: worst(findings, key) for key, name in AREAS.items()},
        "machines": [_machine(case, place) for place in range(len(case.members))],
        "models": {name: _model(model) for name, model in case.plan.models.items()},
        "settings": [
            {"name": name, "values": values, "differ": differ}
            for name, values, differ in settings_table(case)
        ]
        if case.mode == "tensor-parallel"
        else [],
        "links": [msgspec.to_builtins(link) for link in case.plan.links],
        "prediction": [msgspec.to_builtins(one) for one in predict(case)],
    }


def worst(findings: list[Finding], area: str) -> str:
    """Return the worst severity in an area, ``ok`` where it has no finding."""
    found = {f.severity for f in findings if f.check.partition(".")[0] == area}
    for severity in ("error", "warning", "note"):
        if severity in found:
            return severity
    return "ok"


def _machine(case: Case, place: int) -> dict[str, Any]:
    member = case.members[place]
    need, limit = need_of(case, member), gpu_limit(member.machine)
    return {
        "name": member.name,
        "role": member.command.role,
        "program": member.command.program,
        "layers": str(member.command.layers) if member.command.layers else "",
        "model": member.model.path if member.model else "",
        "weights_bytes": (need.weights or None) if need else None,
        "kv_bytes": need.kv if need else None,
        "need_bytes": need.total if need and need.weights else None,
        "limit_bytes": limit[0] if limit else None,
        "announces": _announces(member),
    }


def _announces(member: Member) -> dict[str, object]:
    """Return the identity that ds4 would put into its hello, empty if not known."""
    if member.command.tensor_parallel:
        identity = member.identity()
        return {} if identity is None else dict(identity.words())
    return member.hello() or {}


def _model(model: ModelFile) -> dict[str, Any]:
    """Return what a GGUF header says, layer by layer."""
    facts = model.facts
    return {
        "file_bytes": facts.file_size,
        "architecture": facts.architecture,
        "name": facts.known.name if facts.known else facts.name,
        "model_id": facts.known.model_id if facts.known else None,
        "recognised_by": facts.certainty,
        "layers": facts.layers,
        "width": facts.width,
        "streams": facts.streams,
        "vocabulary": facts.vocabulary,
        "experts": facts.experts,
        "has_output": facts.has_output,
        "has_embedding": facts.has_embedding,
        "per_layer": {
            str(index): {
                "bytes": one.nbytes,
                "types": dict(one.types),
                "experts": one.gate.name if one.gate else None,
            }
            for index, one in facts.layer_facts.items()
        },
    }
