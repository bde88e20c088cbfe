"""Rules of the declarations as Lua expressions, where Lua can say the same.

A rule is a small Python function of the values of a frame. Its source is read as a
syntax tree and written in Lua: arithmetic, comparisons, bits, sizes of texts. What
needs more than that (lists, helpers with loops) is left out, never guessed.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import cache
from types import CodeType, ModuleType
from typing import Any, Final

from ds4proto.schema.declare import Length

_COMPARE: Final = {
    ast.Eq: "==",
    ast.NotEq: "~=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_ARITHMETIC: Final = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Mod: "%"}


class NotInLuaError(Exception):
    """The expression uses something that has no counterpart here."""


def lua_length(length: Length | str) -> str | None:
    """Return the body of ``function(v)`` that gives a length; None for the rest.

    Raises
    ------
    NotInLuaError
        If the length is computed by a Python function.
    """
    if isinstance(length, str):
        return None
    text = repr(length)
    if text.startswith("<"):
        return _Writer(length).number()
    return text.replace("this[", "v[").replace("'", '"')


def lua_test(test: Callable[[Any], bool]) -> str | None:
    """Return a rule as a Lua condition on ``v``, or None where Lua cannot say it."""
    try:
        return _Writer(test).condition()
    except NotInLuaError:
        return None


class _Writer:
    """One function's expression, read from its source and written in Lua."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType):
            raise NotInLuaError(repr(function))
        closed = inspect.getclosurevars(function)
        self._known = {**closed.globals, **closed.nonlocals}
        self._body = _expression(inspect.getmodule(function), code)
        self._argument = code.co_varnames[0]

    def condition(self) -> str:
        return self._truth(self._body)

    def number(self) -> str:
        return self._value(self._body)

    def _truth(self, node: ast.expr) -> str:
        if isinstance(node, ast.BoolOp):
            word = " and " if isinstance(node.op, ast.And) else " or "
            return "(" + word.join(self._truth(part) for part in node.values) + ")"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return f"not ({self._truth(node.operand)})"
        if isinstance(node, ast.Compare):
            return self._compared(node)
        if isinstance(node, ast.Call) and self._called(node) is bool:
            return self._truth(node.args[0])
        return f"{self._value(node)} ~= 0"

    def _compared(self, node: ast.Compare) -> str:
        parts = []
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.In | ast.NotIn):
                inside = self._member(left, right)
                parts.append(
                    inside if isinstance(operator, ast.In) else f"not ({inside})"
                )
            else:
                sign = _COMPARE.get(type(operator))
                if sign is None:
                    raise NotInLuaError(ast.dump(node))
                if self._is_text(left) or self._is_text(right):
                    raise NotInLuaError(ast.dump(node))
                parts.append(f"{self._value(left)} {sign} {self._value(right)}")
            left = right
        return "(" + " and ".join(parts) + ")"

    def _member(self, item: ast.expr, group: ast.expr) -> str:
        if isinstance(item, ast.Constant) and item.value == "\0":
            return f'string.find({self._value(group)}, "\\0", 1, true) ~= nil'
        values = self._constant(group)
        if not isinstance(values, tuple) or not all(type(v) is int for v in values):
            raise NotInLuaError(ast.dump(group))
        shown = self._value(item)
        return "(" + " or ".join(f"{shown} == {value}" for value in values) + ")"

    def _value(self, node: ast.expr) -> str:
        if isinstance(node, ast.Subscript):
            owner, key = node.value, self._constant(node.slice)
            if (
                isinstance(owner, ast.Name)
                and owner.id == self._argument
                and isinstance(key, str)
            ):
                return f'v["{key}"]'
            raise NotInLuaError(ast.dump(node))
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.BitAnd):
                return self._masked(node)
            sign = _ARITHMETIC.get(type(node.op))
            if sign is None:
                raise NotInLuaError(ast.dump(node))
            return f"({self._value(node.left)} {sign} {self._value(node.right)})"
        if isinstance(node, ast.Call):
            name = getattr(self._called(node), "__name__", "")
            if name in {"len", "text_size"}:
                return f"#{self._value(node.args[0])}"
            if name == "int" or (name == "max" and self._is_zero(node.args[0])):
                # a length that would be negative is refused by the bytes at hand
                return self._value(node.args[-1])
            raise NotInLuaError(ast.dump(node))
        if isinstance(node, ast.BoolOp):
            raise NotInLuaError(ast.dump(node))
        value = self._constant(node)
        if type(value) is not int:
            raise NotInLuaError(ast.dump(node))
        return str(value)

    def _masked(self, node: ast.BinOp) -> str:
        mask = self._constant(node.right)
        if type(mask) is not int:
            raise NotInLuaError(ast.dump(node))
        return f"band({self._value(node.left)}, {mask & 0xFFFFFFFF})"

    def _is_text(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Constant) and isinstance(node.value, str)

    def _is_zero(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Constant) and node.value == 0

    def _called(self, node: ast.Call) -> Any:
        return self._constant(node.func)

    def _constant(self, node: ast.expr) -> Any:
        """Return the value of an expression that names no value of the frame."""
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        if self._argument in names or any(
            isinstance(part, ast.Call) for part in ast.walk(node)
        ):
            raise NotInLuaError(ast.dump(node))
        allowed = {"bool": bool, "int": int, "len": len, "max": max, **self._known}
        expression = ast.Expression(body=node)
        try:
            return eval(compile(expression, "<rule>", "eval"), {}, allowed)
        except NameError as error:
            raise NotInLuaError(str(error)) from error


@cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _expression(module: ModuleType | None, code: CodeType) -> ast.expr:
    """Return the expression that a function of one line returns."""
    if module is None:
        raise NotInLuaError(code.co_name)
    tree = _tree(module)
    if code.co_name != "<lambda>":
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
                last = [part for part in node.body if not _is_docstring(part)]
                if len(last) == 1 and isinstance(last[0], ast.Return):
                    return last[0].value or ast.Constant(value=None)
        raise NotInLuaError(code.co_name)
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda) and _stands_at(node, code)
    ]
    if len(found) > 1:
        found = [node for node in found if _same(node, code)]
    if not found:
        raise NotInLuaError(code.co_name)
    return found[0].body


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _stands_at(node: ast.Lambda, code: CodeType) -> bool:
    lines = [line for _, _, line in code.co_lines() if line is not None]
    return node.lineno <= min(lines) <= max(lines) <= (node.end_lineno or node.lineno)


def _same(node: ast.Lambda, code: CodeType) -> bool:
    """Tell whether a lambda of the source is the one that was compiled."""
    compiled = compile(ast.Expression(body=node), "<rule>", "eval")
    inner = next(c for c in compiled.co_consts if isinstance(c, CodeType))
    return inner.co_code == code.co_code and inner.co_names == code.co_names
