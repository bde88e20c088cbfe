"""Planted faults made by machine: the check of one rule taken out.

``without_check(module, clause)`` compiles the module's source anew with every ``if``
whose body names the clause (or a variable that holds it) set to ``if False``, and lends
the changed code to the live functions while the context lasts. Functions that other
modules imported by name change with it, since the objects stay and only their code is
another. The source on disk is not touched.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any


class _Remover(ast.NodeTransformer):
    """Set to False every ``if`` whose body, without inner ones, names a clause."""

    def __init__(self, clause: str) -> None:
        self.clause = clause
        self.removed = 0

    def visit_If(self, node: ast.If) -> ast.If:
        self.generic_visit(node)
        if any(_names(statement, self.clause) for statement in node.body):
            node.test = ast.copy_location(ast.Constant(False), node.test)
            self.removed += 1
        return node


def _names(statement: ast.stmt, clause: str) -> bool:
    if isinstance(statement, ast.If | ast.For | ast.While | ast.FunctionDef | ast.With):
        return False
    return any(
        (isinstance(node, ast.Constant) and node.value == clause)
        or (isinstance(node, ast.Name) and node.id == clause)
        for node in ast.walk(statement)
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


def _functions(owner: ModuleType | type, module: str) -> Iterator[FunctionType]:
    for value in list(vars(owner).values()):
        found: Any = value
        if isinstance(found, property):
            found = found.fget
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        found = inspect.unwrap(found) if callable(found) else found
        if isinstance(found, FunctionType) and found.__module__ == module:
            yield found
        elif isinstance(found, type) and found.__module__ == module:
            yield from _functions(found, module)


@cache
def _changed(module: ModuleType, clause: str) -> dict[str, CodeType]:
    tree = ast.parse(inspect.getsource(module))
    remover = _Remover(clause)
    tree = ast.fix_missing_locations(remover.visit(tree))
    if not remover.removed:
        raise LookupError(f"{module.__name__} has no check that names {clause}")
    whole = compile(tree, str(module.__file__), "exec")
    return {code.co_qualname: code for code in _codes(whole)}


@contextmanager
def without_check(module: ModuleType, clause: str) -> Iterator[None]:
    """Run with the checks of ``clause`` taken out of ``module``.

    Raises
    ------
    LookupError
        If no check of the module names the clause.
    """
    codes = _changed(module, clause)
    sound: dict[FunctionType, CodeType] = {}
    try:
        for function in _functions(module, module.__name__):
            other = codes.get(function.__qualname__)
            if other is not None and other.co_freevars == function.__code__.co_freevars:
                sound[function] = function.__code__
                function.__code__ = other
        yield
    finally:
        for function, code in sound.items():
            function.__code__ = code
