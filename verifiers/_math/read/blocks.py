r"""Parser of blocks between \begin and \end: matrices, determinants, piecewise functions, and lines of formulas."""

from __future__ import annotations

from rlvr.verifiers._math.read.quantities import Quantities
from rlvr.verifiers._math.read.tokens import Token
from rlvr.verifiers._math.read.tree import Tree, Unreadable

RELATIONS = {"=": "=", "==": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "!=": "!=", r"\le": "<=", r"\leq": "<=", r"\leqslant": "<="}
RELATIONS |= {r"\ge": ">=", r"\geq": ">=", r"\geqslant": ">=", r"\ne": "!=", r"\neq": "!=", r"\lt": "<", r"\gt": ">", r"\in": "in"}
RELATIONS |= {r"\equiv": "=", r"\approx": "~", r"\colon": ":", r"\implies": "->", r"\mapsto": "->"}
ALIGNED = frozenset(("aligned", "align", "gathered", "gather", "split", "alignedat", "equation"))
MATRICES = frozenset(("matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"))


class Blocks(Quantities):
    """Parses one block; clauses and whole rows of tokens are parsed by the subclass in `parse.py`."""

    def top(self) -> Tree:
        """Parse the whole input; implemented in the subclass that parses lists."""
        raise NotImplementedError

    def clause(self) -> Tree:
        """Parse one clause; implemented in the subclass that parses relations."""
        raise NotImplementedError

    def environment(self, name: str) -> Tree:
        """Parse a matrix, a determinant, or a piecewise function."""
        if name in ALIGNED:
            return self.aligned(name)
        rows: list[list[Tree]] = [[]]
        while self.peek().kind != "end":
            if self.peek().kind == "eof" or len(rows) > 40:
                raise Unreadable(f"the {name[:20]} does not end")
            if self.accept("&"):
                continue
            if self.accept(r"\\", r"\cr"):
                rows.append([])
                continue
            if self.accept(r"\hline"):
                continue
            rows[-1].append(self.condition() if name == "cases" else self.clause())
            if name == "cases":
                self.accept(",", ";", ".")
        if self.take().text != name:
            raise Unreadable(f"the {name[:20]} ends as something else")
        rows = [row for row in rows if row]
        if not rows or len({len(row) for row in rows}) != 1:
            raise Unreadable("the rows have different lengths")
        if len(rows[0]) == 1 and (name == "cases" or all(row[0][0] == "rel" for row in rows)):  # a system
            return ("list", *(row[0] for row in rows)) if len(rows) > 1 else rows[0][0]
        if name == "cases":
            return ("cases", *(("tuple", *row) for row in rows))
        matrix: Tree = ("matrix", tuple(tuple(row) for row in rows))
        if name in ("vmatrix", "Vmatrix"):
            return ("fun", "det", matrix)
        if name not in MATRICES:
            raise Unreadable(f"the environment {name[:20]} is not part of an answer")
        return matrix

    def aligned(self, name: str) -> Tree:
        """Parse lines of formulas: each is a clause, or continues the chain of the line before."""
        end = next((at for at in range(self.at, len(self.row)) if self.row[at].kind == "end"), None)
        if end is None or self.row[end].text != name:
            raise Unreadable(f"the {name[:20]} does not end")
        lines: list[Token] = []
        for at in range(self.at, end):
            token, after = self.row[at], next((t for t in self.row[at + 1 : end] if t.text != "&"), self.row[end])
            if token.text == r"\\" and token.kind == "cmd":
                if after.kind != "end" and after.text not in RELATIONS and lines and lines[-1].text != ",":
                    lines.append(Token("op", ",", False))
            elif token.text != "&":
                lines.append(token)
        self.at = end + 1
        return type(self)(lines).top()

    def condition(self) -> Tree:
        """Parse a cell of a piecewise function; `if` and `otherwise` are keywords in it."""
        while self.peek().kind in ("text", "word") and self.peek().text.strip(" ,").lower() in ("if", "for", "when", "where"):
            self.at += 1
        token = self.peek()
        if token.kind in ("text", "word") and token.text.strip(" ,.").lower() in ("otherwise", "else"):
            self.at += 1
            return ("text", "otherwise")
        return self.clause()
