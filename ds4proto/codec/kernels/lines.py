"""Sixteen values at once, as one vector instruction says it, whatever the processor.

Loops over blocks of 16 or 32 are too short for the compiler to vectorise well: it turns
them inside out and gathers. These steps name the vector instead; LLVM splits it into
what the processor has.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

_types: Any = import_module("numba.core.types")
_extending: Any = import_module("numba.extending")
_ir: Any = import_module("llvmlite.ir")

LINE: Final = 16
_I32 = _ir.IntType(32)
_INTEGERS = _ir.VectorType(_I32, LINE)
_FLOATS = _ir.VectorType(_ir.FloatType(), LINE)


def _splat(builder: Any, value: Any, vector: Any) -> Any:
    single = builder.insert_element(
        _ir.Constant(vector, _ir.Undefined), value, _ir.Constant(_I32, 0)
    )
    zeros = _ir.Constant(_INTEGERS, [0] * LINE)
    return builder.shuffle_vector(single, _ir.Constant(vector, _ir.Undefined), zeros)


def _load(builder: Any, address: Any, vector: Any, align: int = 1) -> Any:
    return builder.load(builder.inttoptr(address, vector.as_pointer()), align=align)


def _scaling(operation: str) -> Callable[[Any, Any, Any], None]:
    def typing(typing_context: Any, source: Any, factor: Any, target: Any) -> Any:
        del typing_context, source, factor, target

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            del signature
            line = _load(builder, args[0], _FLOATS)
            factor_line = _splat(builder, args[1], _FLOATS)
            result = getattr(builder, operation)(line, factor_line)
            place = builder.inttoptr(args[2], _FLOATS.as_pointer())
            builder.store(result, place, align=1)
            return context.get_dummy_value()

        return _types.void(_types.uintp, _types.float32, _types.uintp), generate

    made: Callable[[Any, Any, Any], None] = _extending.intrinsic(typing)
    return made


def _largest(typing_context: Any, source: Any) -> Any:
    del typing_context, source

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        line = _load(builder, args[0], _INTEGERS)
        magnitude = builder.and_(line, _ir.Constant(_INTEGERS, [0x7FFFFFFF] * LINE))
        reduce = builder.module.declare_intrinsic(
            f"llvm.vector.reduce.umax.v{LINE}i32",
            (),
            _ir.FunctionType(_I32, [_INTEGERS]),
        )
        return builder.call(reduce, [magnitude])

    return _types.uint32(_types.uintp), generate


multiply_line: Callable[[Any, Any, Any], None] = _scaling("fmul")
"""``multiply_line(source, factor, target)``: addresses of 16 f32, any alignment."""
divide_line: Callable[[Any, Any, Any], None] = _scaling("fdiv")
"""The same, divided by the factor."""
largest_of_line: Callable[[Any], Any] = _extending.intrinsic(_largest)
"""``largest_of_line(source)``: the largest magnitude pattern of 16 f32."""
