"""A narrow, typed door to numba, which has no type hints of its own.

Every kernel takes flat arrays, input read-only and possibly unaligned, so that one
compiled form serves each buffer a caller may bring. Values are kept in 32-bit lanes by
casting after each operation; numba would widen them to 64 and halve the lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_numba: Any = import_module("numba")
_types: Any = import_module("numba.core.types")
_extending: Any = import_module("numba.extending")
_ir: Any = import_module("llvmlite.ir")

SCALARS: Final = {
    "u8": _types.uint8,
    "u16": _types.uint16,
    "u32": _types.uint32,
    "u64": _types.uint64,
    "f32": _types.float32,
}


def kernel(function: Callable[..., None], *arguments: str) -> Callable[..., None]:
    """Compile a loop without result, release the GIL in it, keep it on disk.

    ``arguments`` are ``in:u32`` and ``out:u8`` for flat arrays, ``u32`` for scalars.
    """
    signature = _types.void(*(_type(argument) for argument in arguments))
    compiled: Callable[..., None] = _compile(function, signature)
    return compiled


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let kernels call a small function of scalars; it becomes part of their loop."""
    shared: Callable[..., Any] = _extending.register_jitable(function)
    return shared


def hash_kernel(function: Callable[..., Any], result: str, *arguments: str) -> Any:
    """Compile a function with a scalar result, like `kernel`."""
    signature = _type(result)(*(_type(argument) for argument in arguments))
    return _compile(function, signature)


def _compile(function: Callable[..., Any], signature: Any) -> Any:
    compiled = _numba.njit(nogil=True)(function)
    try:
        compiled.enable_caching()
    except RuntimeError:  # no directory that numba may write its cache to
        pass
    else:
        _mark(compiled)
    compiled.compile(signature)
    compiled.disable_compile()
    return compiled


@cache
def _sources() -> str:
    """Return a digest of all kernel sources."""
    folder = Path(__file__).parent
    digest = sha256()
    for path in (*sorted(folder.glob("*.py")), folder.parent / "elementwise.py"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _mark(compiled: Any) -> None:
    """Let a change in any kernel source make what numba kept on disk stale.

    By itself numba looks at the file of the function alone, and would go on with the
    old code of what other files lend to it.
    """
    index: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if index is not None and hasattr(index, "_source_stamp"):
        index._source_stamp = (index._source_stamp, _sources())


def _type(argument: str) -> Any:
    kind, _, element = argument.rpartition(":")
    if not kind:
        return SCALARS[element]
    return _types.Array(SCALARS[element], 1, "C", readonly=kind == "in", aligned=False)


def _lane(result: str, argument: str, emit: Callable[[Any, Any], Any]) -> Any:
    """Make an intrinsic of one scalar from the LLVM instructions that ``emit`` adds."""

    def typing(typing_context: Any, x: Any) -> Any:
        del typing_context, x

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            del context, signature
            return emit(builder, args[0])

        return SCALARS[result](SCALARS[argument]), generate

    return _extending.intrinsic(typing)


f32_of_bits: Callable[[Any], Any] = _lane(
    "f32", "u32", lambda builder, x: builder.bitcast(x, _ir.FloatType())
)
bits_of_f32: Callable[[Any], Any] = _lane(
    "u32", "f32", lambda builder, x: builder.bitcast(x, _ir.IntType(32))
)
half_of_f32: Callable[[Any], Any] = _lane(
    "u16",
    "f32",
    lambda builder, x: builder.bitcast(
        builder.fptrunc(x, _ir.HalfType()), _ir.IntType(16)
    ),
)
f32_of_half: Callable[[Any], Any] = _lane(
    "f32",
    "u16",
    lambda builder, x: builder.fpext(
        builder.bitcast(x, _ir.HalfType()), _ir.FloatType()
    ),
)


def _divide(typing_context: Any, x: Any, y: Any) -> Any:
    del typing_context, x, y

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.fdiv(args[0], args[1])

    f32 = SCALARS["f32"]
    return f32(f32, f32), generate


# numba's own division tests for zero and raises, which keeps a loop from vectorising.
divide_f32: Callable[[Any, Any], Any] = _extending.intrinsic(_divide)


def _stream_line(typing_context: Any, source: Any, target: Any) -> Any:
    del typing_context, source, target

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del signature
        line = _ir.VectorType(_ir.IntType(32), 16).as_pointer()
        data = builder.load(builder.inttoptr(args[0], line), align=4)
        store = builder.store(data, builder.inttoptr(args[1], line), align=64)
        hint = builder.module.add_metadata([_ir.Constant(_ir.IntType(32), 1)])
        store.set_metadata("nontemporal", hint)
        return context.get_dummy_value()

    return _types.void(_types.uintp, _types.uintp), generate


def _stream_fence(typing_context: Any) -> Any:
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del signature, args
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return _types.void(), generate


stream_line: Callable[[Any, Any], None] = _extending.intrinsic(_stream_line)
stream_fence: Callable[[], None] = _extending.intrinsic(_stream_fence)
