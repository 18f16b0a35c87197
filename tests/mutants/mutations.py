"""Small wrong changes of Python source: where they can be made, and the source with one of them made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_COMPUTED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "+"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}


@dataclass(frozen=True, slots=True, order=True)
class Mutation:
    """One change: these bytes of a file become those."""

    path: str
    line: int
    start: int
    end: int
    """Offsets in the UTF-8 source."""
    old: str
    new: str
    inside: str
    """Dotted name of the function or class that it stands in."""

    def made(self, source: bytes) -> bytes:
        """The source with this one change."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.inside}: {self.old} -> {self.new}"


def mutations(path: str, source: bytes) -> list[Mutation]:
    """Every change that can be made in a file, in the order of the source. Texts, annotations and errors stay."""
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutation] = []

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + column

    def between(left: ast.expr, right: ast.expr, old: str, new: str, inside: str) -> Iterator[Mutation]:
        """An operator between two operands, wherever brackets and comments put it."""
        begin = offset(left.end_lineno or 0, left.end_col_offset or 0)
        end = offset(right.lineno, right.col_offset)
        gap = source[begin:end]
        code = b"\n".join(line.split(b"#")[0] for line in gap.split(b"\n"))
        at = gap.find(old.encode())
        if code.count(old.encode()) == 1 and at >= 0:
            line = source.count(b"\n", 0, begin + at) + 1
            yield Mutation(path, line, begin + at, begin + at + len(old), old, new, inside)

    def whole(node: ast.expr, new: str, inside: str) -> Iterator[Mutation]:
        begin, end = offset(node.lineno, node.col_offset), offset(node.end_lineno or 0, node.end_col_offset or 0)
        old = source[begin:end].decode()
        if "\n" not in old:
            yield Mutation(path, node.lineno, begin, end, old, new.replace("{}", old), inside)

    def visit(node: ast.AST, inside: tuple[str, ...]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inside = (*inside, node.name)
            for child in node.body:
                visit(child, inside)
            return
        if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)):
            return
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                visit(node.value, inside)
            return
        if inside:
            found.extend(_of(node, ".".join(inside)))
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    def _of(node: ast.AST, inside: str) -> Iterator[Mutation]:
        if isinstance(node, ast.Compare):
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                yield from between(left, right, *_COMPARED[type(operator)], inside)
        elif isinstance(node, ast.BoolOp):
            words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from between(left, right, *words, inside)
        elif isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
            if not isinstance(node.left, (ast.JoinedStr, ast.Constant)) or isinstance(
                getattr(node.left, "value", None), (int, float)
            ):
                yield from between(node.left, node.right, *_COMPUTED[type(node.op)], inside)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            begin = offset(node.lineno, node.col_offset)
            end = offset(node.operand.lineno, node.operand.col_offset)
            if source[begin:end].strip() == b"not":
                yield Mutation(path, node.lineno, begin, end, "not ", "", inside)
        elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
            if not isinstance(node.test, (ast.Compare, ast.UnaryOp)):
                yield from whole(node.test, "not ({})", inside)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, bool):
                yield from whole(node, str(not node.value), inside)
            elif isinstance(node.value, int):
                yield from whole(node, "({} + 1)", inside)
        elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
            yield from whole(node.value, "None", inside)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            yield from whole(node.func, "max" if node.func.id == "min" else "min", inside)
        elif isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Yield, ast.YieldFrom)):
            yield from whole(node.value, "None", inside)

    visit(tree, ())
    return sorted(set(found), key=lambda one: (one.start, one.end, one.new))
