"""A row as one readable line: when, who to whom, what, and the fields that matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv6Address
from typing import Any, Final

from ds4proto.printable import counted
from ds4proto.schema import frames
from ds4proto.schema.declare import FieldSpec, names_of
from ds4proto.schema.problem import Problem
from ds4proto.trace.payload import PayloadSummary
from ds4proto.trace.rows import UNDECODED, FrameRow

__all__ = ["HEADING", "Piece", "hexdump", "render", "size_text"]

Piece = tuple[str, str]
"""Text, and the rich style that a terminal shows it in (empty: none)."""

_HEX_LINES: Final = 32
_WHO: Final = 29
_WHAT: Final = 13
_SIZE: Final = 9
HEADING: Final = (
    f"{'time':>12}  {'who':<{_WHO}}  {'message':<{_WHAT}}{'size':>{_SIZE}}  fields"
)

# Lengths and counts that follow from what is shown anyway.
_PLUMBING: Final = frozenset(
    {
        "magic", "token_bytes", "input_hc_bytes", "route_bytes", "route_count",
        "telemetry_bytes", "telemetry_count", "payload_bytes", "message_bytes",
        "model_name_len", "reserved", "pad", "pad0", "tail_pad", "count", "bytes",
        "chunk_bytes", "null_split",
    }
)  # fmt: skip
_HEX: Final = frozenset({"session", "prefix_hash", "result_hash", "token_hash"})
_ZERO_IS_DULL: Final = frozenset(
    {"status", "gate_slot_mask0", "gate_slot_mask1", "gate_slot_mask2", "ctx_size",
     "runtime_features", "rdma_ok", "limit", "telemetry"}
)  # fmt: skip


def render(
    row: FrameRow, *, gates_per_token: int | None = None
) -> Iterator[list[Piece]]:
    """Yield the lines of a row, each as pieces of text with their styles.

    Parameters
    ----------
    row : FrameRow
    gates_per_token : int, optional
        Names the token that a row gate belongs to.
    """
    who = f"{row.src_role} -> {row.dst_role}"
    parts: list[Piece] = [
        (f"{row.time:12.6f}  ", "dim"),
        (f"{who:<{_WHO}}  ", "cyan" if row.direction == "a>b" else "green"),
    ]
    if row.type == UNDECODED:
        parts += _undecoded(row)
    else:
        parts.append((f"{row.type:<{_WHAT}}", "bold"))
        parts.append((f"{size_text(row.length):>{_SIZE}}  ", "dim"))
        parts.append((fields_text(row, gates_per_token), ""))
    if row.payload is not None:
        parts.append(("  " + payload_text(row.payload), "magenta"))
    yield parts
    for problem in row.problems:
        yield [(" " * 14 + "! " + problem_text(problem), "red")]
    if row.payload is not None and row.payload.data is not None:
        for line in hexdump(row.payload.data, row.payload.length):
            yield [(" " * 14 + line, "dim")]


def _undecoded(row: FrameRow) -> list[Piece]:
    reason = str(row.fields.get("reason", ""))
    meant = row.fields.get("frame")
    text = f"{reason}, meant as {meant}" if meant else reason
    return [
        (f"{'(no frame)':<{_WHAT}}", "yellow"),
        (f"{size_text(row.length):>{_SIZE}}  ", "dim"),
        (f"{text} at stream offset {row.stream_offset}", "yellow"),
    ]


def size_text(count: int) -> str:
    """Return a size that fits nine columns: ``822 B``, ``64.0 MiB``."""
    if count < 10_000:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1000 or unit == "GiB":
            return f"{value:.1f} {unit}"
    return f"{count} B"


def problem_text(problem: Problem) -> str:
    """Return a problem in one line, its clause first."""
    place = ""
    if problem.frame_offset is not None:
        place = f" at byte {problem.frame_offset}"
    text = (
        f"{problem.clause}  {problem.path}{place}: expected {problem.expected}, "
        f"found {problem.found}"
    )
    return f"{text}; {problem.next_step}" if problem.next_step else text


def payload_text(p: PayloadSummary) -> str:
    """Return a payload in a few words: shape, width, extremes, odd values, hash."""
    if p.width == "bytes":
        body = f"{p.path} {size_text(p.length)}"
    else:
        shape = "x".join(map(str, p.shape)) or str(p.values)
        body = f"{p.path} {shape} {p.width}"
    parts = [body]
    if p.low is not None and p.high is not None:
        parts.append(f"[{p.low:.4g} .. {p.high:.4g}]")
    for count, word in ((p.nan, "NaN"), (p.inf, "Inf"), (p.zeros, "zero")):
        if count:
            parts.append(f"{count} {word}")
    if p.ge240 and p.width != "f32":
        parts.append(f"{p.ge240} at 240 or beyond")
    if p.captured is not None:
        parts.append(f"({counted(p.length - p.captured, 'byte')} not captured)")
    if p.hash:
        parts.append(f"#{p.hash}")
    parts += [f"({note})" for note in p.notes]
    return " ".join(parts)


def fields_text(row: FrameRow, gates_per_token: int | None = None) -> str:
    """Return the fields that matter, shortest form first."""
    special = _SPECIAL.get(row.name)
    if special is not None:
        try:
            return special(row)
        except (KeyError, IndexError, TypeError):
            pass  # a broken frame may lack any field
    if row.name == "DS4T.GATE_ROW" and "seq" in row.fields:
        return _gate_row(row, gates_per_token)
    return _generic(row)


def _generic(row: FrameRow) -> str:
    specs = _specs(row.name)
    parts = []
    for name, value in row.fields.items():
        dull = name.startswith("reserved") and not value
        if dull or name in _PLUMBING or (name in _ZERO_IS_DULL and not value):
            continue
        if isinstance(value, dict) or (isinstance(value, list) and not value):
            continue
        parts.append(f"{name}={_value(name, value, specs.get(name), row.dialect)}")
    return " ".join(parts)


def _value(name: str, value: Any, spec: FieldSpec | None, dialect: str) -> str:
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, tuple | list):
        if value and isinstance(value[0], int):
            return _tokens(value)
        return f"{counted(len(value), 'record')}"
    if name in _HEX:
        return f"{value:016x}"
    if spec is not None and isinstance(value, int):
        word = names_of(spec, value, dialect.rstrip("?"))
        if word:
            return word
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _tokens(tokens: Any) -> str:
    shown = ",".join(str(token) for token in tokens[:6])
    return f"[{shown}]" if len(tokens) <= 6 else f"[{shown},.. {len(tokens)}]"


def _specs(name: str) -> Mapping[str, FieldSpec]:
    found = _SPECS.get(name)
    if found is None:
        found = {}
        for frame in frames():
            if frame.full_name == name:
                for spec in frame.body.fields:
                    found.setdefault(spec.path, spec)
        _SPECS[name] = found
    return found


_SPECS: dict[str, dict[str, FieldSpec]] = {}


def _named(row: FrameRow, field: str) -> str:
    value = row.fields[field]
    return names_of(_specs(row.name)[field], value, row.dialect.rstrip("?")) or str(
        value
    )


def _layers(f: Mapping[str, Any]) -> str:
    return f"{f['layer_start']}:{f['layer_end']}"


def _hello(row: FrameRow) -> str:
    f = row.fields
    head = "+output" if f["has_output"] else ""
    return (
        f"{f['model_name']!r} (model {f['model_id']}, Q{f['quant_bits']}) layers "
        f"{_layers(f)}{head} of {f['n_layers']}, ctx {f['ctx_size']}, data port "
        f"{f['listen_port']}"
    )


def _work(row: FrameRow) -> str:
    f = row.fields
    route = " > ".join(
        f"{hop['host']}:{hop['port']} {_layers(hop)}" for hop in f.get("route", ())
    )
    hop = f"hop {f['route_index'] + 1}/{f['route_count']}"
    return (
        f"request {_request(f['request'])} pos {f['pos0']}+{f['n_tokens']} layers "
        f"{_layers(f)} {hop} {_named(row, 'flags') or 'no flags'} tokens "
        f"{_tokens(f['tokens'])}"
        + (f" route {route}" if f["route_count"] > 1 and not f["route_index"] else "")
    )


def _request(number: int) -> str:
    top = 1 << 63
    return f"2^63+{number - top}" if number >= top else str(number)


def _result(row: FrameRow) -> str:
    f = row.fields
    text = f"request {_request(f['request'])} "
    if f["status"]:
        text += f"status {f['status']} {f.get('error', '')!r}"
    else:
        text += _named(row, "result_kind")
    hops = [
        f"{_layers(hop)} {_micro(hop['eval_usec'])}" for hop in f.get("telemetry", ())
    ]
    return f"{text} eval {', '.join(hops)}" if hops else text


def _micro(usec: int) -> str:
    return f"{usec} us" if usec < 10_000 else f"{usec / 1000:.1f} ms"


def _snapshot(row: FrameRow) -> str:
    f = row.fields
    text = f"request {_request(f['request'])}"
    if "layer_start" in f:
        text += f" layers {_layers(f)} tokens {f['token_count']}"
    if f.get("payload_size"):
        text += f" shard {size_text(f['payload_size'])}"
    if f.get("status"):
        text += f" status {f['status']}"
    return f"{text} {f['message']!r}" if f.get("message") else text


def _tp_hello(row: FrameRow) -> str:
    f = row.fields
    return (
        f"version {f['version']} {_named(row, 'role')} (dialect {row.dialect}) model "
        f"{_named(row, 'model_id')} layers {f['n_layer']} embd {f['n_embd']} vocab "
        f"{f['n_vocab']} Q{f['quant_bits']} ctx {f['ctx_size']} gguf "
        f"{f['gguf_bytes']}" + (" rdma" if f["rdma_ok"] else "")
    )


def _rdma_info(row: FrameRow) -> str:
    words = _generic(row)
    gid = str(row.fields["gid"])
    try:
        address = IPv6Address(bytes.fromhex(gid))
    except ValueError:
        return words
    shown = f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)
    return words.replace(f"gid={gid!r}", f"gid={shown}")


def _tp_tokens(row: FrameRow) -> str:
    f = row.fields
    return (
        f"session {f['session_id']} {counted(len(f['tokens']), 'token')} "
        f"{_tokens(f['tokens'])}"
    )


def _gate_row(row: FrameRow, gates_per_token: int | None) -> str:
    f = row.fields
    text = f"layer {f['layer']} {_named(row, 'gate')} seq {f['seq']}"
    if gates_per_token:
        text += f" token {(f['seq'] - 1) // gates_per_token + 1}"
    return text


def _batch(row: FrameRow) -> str:
    return (
        f"layer {row.fields['layer']} rows {row.fields['rows']} seq {row.fields['seq']}"
    )


def _bulk(row: FrameRow) -> str:
    return f"layer {row.fields['layer']} seq {row.fields['seq']}"


_SPECIAL: Final[dict[str, Callable[[FrameRow], str]]] = {
    "DS4D.HELLO": _hello,
    "DS4D.ERROR": lambda row: repr(row.fields["text"]),
    "DS4D.WORK": _work,
    "DS4D.RESULT": _result,
    "DS4D.SNAPSHOT_SAVE_REQ": _snapshot,
    "DS4D.SNAPSHOT_BEGIN": _snapshot,
    "DS4D.SNAPSHOT_CHUNK": _snapshot,
    "DS4D.SNAPSHOT_DONE": _snapshot,
    "DS4D.SNAPSHOT_LOAD_BEGIN": _snapshot,
    "DS4T.HELLO": _tp_hello,
    "DS4T.RDMA_INFO": _rdma_info,
    "DS4T.SYNC": _tp_tokens,
    "DS4T.VERIFY": _tp_tokens,
    "DS4B.GATE_BATCH": _batch,
    "DS4B.GATE_BULK": _bulk,
}


def hexdump(data: bytes, total: int) -> Iterator[str]:
    """Yield lines of 16 bytes, at most 32 of them, then how much is left out."""
    for at in range(0, min(len(data), 16 * _HEX_LINES), 16):
        part = data[at : at + 16]
        shown = "".join(chr(b) if 32 <= b < 127 else "." for b in part)
        yield f"{at:08x}  {part.hex(' '):<47}  {shown}"
    shown_bytes = min(len(data), 16 * _HEX_LINES)
    if total > shown_bytes:
        yield f"... {counted(total - shown_bytes, 'more byte')}"
