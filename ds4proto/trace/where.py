"""The language of ``--where``: a condition on one row, parsed once, run on every row.

Grammar, loosest binding first::

    condition  = all { ("or" | "||") all }
    all        = one { ("and" | "&&") one }
    one        = ("not" | "!") one | comparison
    comparison = masked [ op masked ]       op: == != < <= > >= in "not in" contains
    masked     = atom { "&" atom }
    atom       = number | string | name | "(" condition ")" | "[" atom, ... "]"

Names are those of `ds4proto.trace.names`. A name alone asks whether the row has it
and it is not zero or empty. A field that the row does not have makes every comparison
false. A field with several values (``ds4d.work.route.port``) holds where one of them
does. A string compared with a number means the number's name: an enumeration's word, or
bits of a flag word; a word that no dialect has is refused.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from ds4proto.errors import WrongUsage
from ds4proto.trace.names import MISSING, Column, find_column, known_names, way_to_names

__all__ = ["WhereError", "compile_where"]

_Row = Any
_Value = Callable[[_Row], Any]
_Compare = Callable[[Any, Any], bool]

_MAX_DEPTH: Final = 50
_MAX_TEXT: Final = 10_000
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>0[xX][0-9a-fA-F]+|[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?
        |\.[0-9]+|-[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)
    |(?P<string>"[^"]*"|'[^']*')
    |(?P<name>[A-Za-z_][A-Za-z0-9_.]*)
    |(?P<op>==|!=|<=|>=|&&|\|\||[<>&!()\[\],])""",
    re.VERBOSE,
)
_OPERATORS: Final[dict[str, _Compare]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WORDS: Final = {"&&": "and", "||": "or", "!": "not"}
_KEYWORDS: Final = frozenset({"and", "or", "not", "in", "contains"})


class WhereError(WrongUsage):
    """A condition that cannot be read; the text points at the place.

    Attributes
    ----------
    column : int
        Where in the condition, counted from 1.
    """

    def __init__(self, text: str, column: int, message: str) -> None:
        self.column = column
        pointer = " " * (column - 1) + "^"
        shown = "".join(c if c.isprintable() else " " for c in text)
        super().__init__(f"--where, column {column}: {message}\n{shown}\n{pointer}")


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class _Term:
    """A part of the condition: how to get its value, and what it is a name of."""

    value: _Value
    column: Column | None = None
    constant: bool = False


def compile_where(text: str) -> Callable[[Any], bool]:
    """Return a function that tells whether a `FrameRow` meets the condition.

    Parameters
    ----------
    text : str
        The condition; see the module for the grammar.

    Raises
    ------
    WhereError
        With the column, where the text is no condition or names an unknown field.
    """
    if len(text) > _MAX_TEXT:
        found = f"expected at most {_MAX_TEXT} characters, found {len(text)}"
        raise WrongUsage(f"--where: {found}")
    term = _Parser(text).whole()
    value = term.value
    return lambda row: _truth(value(row))


def _truth(value: Any) -> bool:
    return value is not MISSING and bool(value)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _split(text)
        self._at = 0
        self._depth = 0

    def whole(self) -> _Term:
        if self._peek().kind == "end":
            raise self._error("expected a condition, found nothing")
        term = self._any()
        if self._peek().kind != "end":
            raise self._error(f"expected the end, found {self._peek().text!r}")
        return term

    def _any(self) -> _Term:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"nested deeper than {_MAX_DEPTH} levels")
        parts = [self._all()]
        while self._take("or"):
            parts.append(self._all())
        self._depth -= 1
        if len(parts) == 1:
            return parts[0]
        values = [part.value for part in parts]
        return _Term(lambda row: any(_truth(value(row)) for value in values))

    def _all(self) -> _Term:
        parts = [self._one()]
        while self._take("and"):
            parts.append(self._one())
        if len(parts) == 1:
            return parts[0]
        values = [part.value for part in parts]
        return _Term(lambda row: all(_truth(value(row)) for value in values))

    def _one(self) -> _Term:
        negations = 0
        while self._take("not"):
            negations += 1
        term = self._comparison()
        if not negations:
            return term
        value, wanted = term.value, negations % 2 == 0
        return _Term(lambda row: _truth(value(row)) is wanted)

    def _comparison(self) -> _Term:
        start = self._at
        left = self._masked()
        token = self._peek()
        if token.text in _OPERATORS and token.kind == "op":
            self._next()
            return _compared(left, self._other(left, start), _OPERATORS[token.text])
        if self._take("contains"):
            return _inside(self._other(left, start), left)
        if self._take("in"):
            return _inside(left, self._other(left, start))
        after = self._tokens[self._at + 1] if token.kind != "end" else token
        if token.text == "not" and after.text == "in":
            self._at += 2
            value = _inside(left, self._other(left, start)).value
            present = left.value
            return _Term(lambda row: present(row) is not MISSING and not value(row))
        return left

    def _other(self, left: _Term, start: int) -> _Term:
        """Return the other side of a comparison whose ``left`` began at ``start``."""
        at = self._at
        right = self._masked()
        self._known(left, right, at)
        self._known(right, left, start)
        return right

    def _known(self, field: _Term, constant: _Term, at: int) -> None:
        """Refuse a word that no dialect has for the numbers of a field."""
        words = None if field.column is None else field.column.words
        if words is None or field.column is None or not constant.constant:
            return
        given = (w for w in _each(constant.value(None)) if isinstance(w, str))
        for word in (part.strip() for text in given for part in text.split("|")):
            if word in words:
                continue
            near = get_close_matches(word.upper(), words, n=3, cutoff=0.6)
            hint = "its values have no names; compare with a number"
            if near:
                hint = f"did you mean {', '.join(near)}?"
            elif words:
                hint = f"it knows {', '.join(words)}"
            self._at = at
            raise self._error(f"{field.column.name} has no value {word!r}; {hint}")

    def _masked(self) -> _Term:
        start = self._at
        term = self._atom()
        while self._peek().text == "&" and self._peek().kind == "op":
            self._next()
            at = self._at
            bits = self._atom()
            self._known(term, bits, at)
            self._known(bits, term, start)
            term = _and_bits(term, bits)
        return term

    def _atom(self) -> _Term:
        token = self._next()
        if token.kind == "number":
            return _constant(_number(token.text))
        if token.kind == "string":
            return _constant(token.text[1:-1])
        if token.text == "(" and token.kind == "op":
            first = self._any()
            if self._peek().text != ",":
                self._expect(")")
                return first
            return self._list(first, ")")
        if token.text == "[" and token.kind == "op":
            return self._list(self._any(), "]")
        if token.kind == "name" and token.text not in _KEYWORDS:
            return self._named(token)
        self._at -= 1
        found = repr(token.text) if token.text else "the end"
        raise self._error(f"expected a name, a number or a string, found {found}")

    def _list(self, first: _Term, closing: str) -> _Term:
        terms = [first]
        while self._take(",") and self._peek().text != closing:
            terms.append(self._any())
        self._expect(closing)
        values = [term.value for term in terms]
        constant = all(term.constant for term in terms)
        return _Term(lambda row: [value(row) for value in values], constant=constant)

    def _named(self, token: _Token) -> _Term:
        column = find_column(token.text.lower())
        if column is not None:
            return _Term(column.get, column)
        names = known_names()
        near = get_close_matches(token.text.lower(), names, n=3, cutoff=0.6)
        hint = f"did you mean {', '.join(near)}?" if near else way_to_names(token.text)
        self._at -= 1
        raise self._error(f"unknown name {token.text!r}; {hint}")

    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        else:
            self._at = len(self._tokens)  # so that stepping back lands on the end
        return token

    def _take(self, word: str) -> bool:
        token = self._peek()
        if token.kind == "string":
            return False
        text = _WORDS.get(token.text, token.text)
        found = text == word and token.kind in ("op", "name")
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            found = self._peek().text
            shown = repr(found) if found else "the end"
            raise self._error(f"expected {text!r}, found {shown}")

    def _error(self, message: str) -> WhereError:
        at = self._tokens[min(self._at, len(self._tokens) - 1)].at
        return WhereError(self._text, at + 1, message)


def _split(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            message = f"unexpected character {text[at]!r}"
            if text[at] in "\"'":
                message = "a string without its closing quote"
            elif text[at] == "=":
                message = "'=' alone; write == to compare"
            raise WhereError(text, at + 1, message)
        kind = str(match.lastgroup)
        if kind != "space":
            tokens.append(_Token(kind, match.group(), at))
        at = match.end()
    tokens.append(_Token("end", "", len(text)))
    return tokens


def _number(text: str) -> int | float:
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    return float(text) if any(c in text for c in ".eE") else int(text)


def _constant(value: Any) -> _Term:
    return _Term(lambda _row: value, constant=True)


def _each(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else (value,)


def _compared(left: _Term, right: _Term, test: _Compare) -> _Term:
    get_left, get_right = left.value, right.value
    names = left.column or right.column

    def compare(row: _Row) -> bool:
        a, b = get_left(row), get_right(row)
        if a is MISSING or b is MISSING:
            return False
        return any(_holds(x, y, test, names, row) for x in _each(a) for y in _each(b))

    return _Term(compare)


def _holds(a: Any, b: Any, test: _Compare, column: Column | None, row: _Row) -> bool:
    if isinstance(a, str) != isinstance(b, str):
        # "LOGITS" against 2, or "FFN" against 1: compare with the number's name
        number = b if isinstance(a, str) else a
        word = "" if column is None else column.name_of(row, number)
        if not word:
            return test is operator.ne
        a, b = (a, word) if isinstance(a, str) else (word, b)
    try:
        return bool(test(a, b))
    except TypeError:
        return False


def _inside(item: _Term, container: _Term) -> _Term:
    get_item, get_container = item.value, container.value
    column = item.column or container.column

    def contains(row: _Row) -> bool:
        wanted, found = get_item(row), get_container(row)
        if wanted is MISSING or found is MISSING:
            return False
        if isinstance(found, str):
            return any(isinstance(w, str) and w in found for w in _each(wanted))
        values = _each(found)
        return any(
            _holds(w, value, operator.eq, column, row)
            for w in _each(wanted)
            for value in values
        )

    return _Term(contains)


def _and_bits(left: _Term, right: _Term) -> _Term:
    get_left, get_right = left.value, right.value
    column = left.column or right.column

    def masked(row: _Row) -> Any:
        a, b = get_left(row), get_right(row)
        if a is MISSING or b is MISSING:
            return MISSING
        if column is not None:
            a, b = (column.bits_of(row, v) if isinstance(v, str) else v for v in (a, b))
        if not (isinstance(a, int) and isinstance(b, int)):
            return MISSING
        return a & b

    return _Term(masked, column)
