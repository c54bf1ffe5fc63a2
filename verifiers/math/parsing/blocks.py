r"""Parser of blocks between \begin and \end: matrices, determinants, piecewise functions, and lines of formulas."""

from __future__ import annotations

from rlvr.verifiers.math.parsing.quantities import QuantityParser
from rlvr.verifiers.math.parsing.tokens import Token
from rlvr.verifiers.math.parsing.tree import ParseError, Tree

RELATION_SIGNS = {
    "=": "=",
    "==": "=",
    "<": "<",
    ">": ">",
    "<=": "<=",
    ">=": ">=",
    "!=": "!=",
    r"\le": "<=",
    r"\leq": "<=",
    r"\leqslant": "<=",
}
RELATION_SIGNS |= {r"\ge": ">=", r"\geq": ">=", r"\geqslant": ">=", r"\ne": "!=", r"\neq": "!=", r"\lt": "<", r"\gt": ">", r"\in": "in"}
RELATION_SIGNS |= {r"\equiv": "=", r"\approx": "~", r"\colon": ":", r"\implies": "->", r"\mapsto": "->"}
ALIGNED_ENVIRONMENTS = frozenset(("aligned", "align", "gathered", "gather", "split", "alignedat", "equation"))
MATRIX_ENVIRONMENTS = frozenset(("matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"))


class BlockParser(QuantityParser):
    """Parses one block; clauses and whole rows of tokens are parsed by the subclass in `parse.py`."""

    def parse_all(self) -> Tree:
        """Parse the whole input; implemented in the subclass that parses lists."""
        raise NotImplementedError

    def parse_clause(self) -> Tree:
        """Parse one clause; implemented in the subclass that parses relations."""
        raise NotImplementedError

    def parse_environment(self, name: str) -> Tree:
        """Parse a matrix, a determinant, or a piecewise function."""
        if name in ALIGNED_ENVIRONMENTS:
            return self.parse_aligned(name)
        rows: list[list[Tree]] = [[]]
        while self.peek().kind != "end":
            if self.peek().kind == "eof" or len(rows) > 40:
                raise ParseError(f"the {name[:20]} does not end")
            if self.accept("&"):
                continue
            if self.accept(r"\\", r"\cr"):
                rows.append([])
                continue
            if self.accept(r"\hline"):
                continue
            rows[-1].append(self.parse_condition() if name == "cases" else self.parse_clause())
            if name == "cases":
                self.accept(",", ";", ".")
        if self.next_token().text != name:
            raise ParseError(f"the {name[:20]} ends as something else")
        rows = [row for row in rows if row]
        if not rows or len({len(row) for row in rows}) != 1:
            raise ParseError("the rows have different lengths")
        if len(rows[0]) == 1 and (name == "cases" or all(row[0][0] == "rel" for row in rows)):  # a system
            return ("list", *(row[0] for row in rows)) if len(rows) > 1 else rows[0][0]
        if name == "cases":
            return ("cases", *(("tuple", *row) for row in rows))
        matrix: Tree = ("matrix", tuple(tuple(row) for row in rows))
        if name in ("vmatrix", "Vmatrix"):
            return ("fun", "det", matrix)
        if name not in MATRIX_ENVIRONMENTS:
            raise ParseError(f"the environment {name[:20]} is not part of an answer")
        return matrix

    def parse_aligned(self, name: str) -> Tree:
        """Parse lines of formulas: each is a clause, or continues the chain of the line before."""
        end = next((at for at in range(self.position, len(self.tokens)) if self.tokens[at].kind == "end"), None)
        if end is None or self.tokens[end].text != name:
            raise ParseError(f"the {name[:20]} does not end")
        lines: list[Token] = []
        for at in range(self.position, end):
            token, after = self.tokens[at], next((t for t in self.tokens[at + 1 : end] if t.text != "&"), self.tokens[end])
            if token.text == r"\\" and token.kind == "cmd":
                if after.kind != "end" and after.text not in RELATION_SIGNS and lines and lines[-1].text != ",":
                    lines.append(Token("op", ",", False))
            elif token.text != "&":
                lines.append(token)
        self.position = end + 1
        return type(self)(lines).parse_all()

    def parse_condition(self) -> Tree:
        """Parse a cell of a piecewise function; `if` and `otherwise` are keywords in it."""
        while self.peek().kind in ("text", "word") and self.peek().text.strip(" ,").lower() in ("if", "for", "when", "where"):
            self.position += 1
        token = self.peek()
        if token.kind in ("text", "word") and token.text.strip(" ,.").lower() in ("otherwise", "else"):
            self.position += 1
            return ("text", "otherwise")
        return self.parse_clause()
