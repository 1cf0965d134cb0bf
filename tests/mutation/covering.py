"""Which tests run the lines that a mutant changes, the quickest first."""

import ast
import json
import pathlib

import coverage

from tests.mutation.mutants import ROOT


def holds(node, line):
    return node.lineno <= line <= node.end_lineno


def header_or_whole(node):
    """Lines of a statement, but not of the block below it."""
    last = node.end_lineno
    if getattr(node, "body", None) and not isinstance(node, ast.Expr):
        last = max(node.lineno, node.body[0].lineno - 1)
    return range(node.lineno, last + 1)


def lines_to_run(source, line):
    """Lines of the statement of a function that `line` belongs to.

    What runs at import, such as a default value, stands for all lines of its
    function or, outside of functions, for those of all functions of the file.
    """
    tree = ast.parse(source)
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    inside = [
        function
        for function in functions
        if function.body[0].lineno <= line <= function.end_lineno
    ]
    if not inside:
        headers = [
            function
            for function in functions
            if min([function.lineno, *lines_of(function.decorator_list)])
            <= line
            < function.body[0].lineno
        ]
        return {
            number
            for function in headers or functions
            for number in range(
                function.body[0].lineno, function.end_lineno + 1
            )
        }
    innermost = max(inside, key=lambda function: function.lineno)
    statements = [
        node
        for node in ast.walk(innermost)
        if isinstance(node, ast.stmt)
        and node is not innermost
        and holds(node, line)
    ]
    return set(header_or_whole(max(statements, key=lambda s: s.lineno)))


def lines_of(nodes):
    return [node.lineno for node in nodes]


class Covering:
    """Tests by the lines they ran, from a data file with contexts."""

    def __init__(self, data_file, seconds_file):
        self.data = coverage.CoverageData(data_file)
        self.data.read()
        self.seconds = json.loads(pathlib.Path(seconds_file).read_text())
        self.files = {
            path[path.index("keras_calib/") :]: path
            for path in self.data.measured_files()
        }

    def tests(self, mutant, budget):
        """Tests that run what is changed, as many as take `budget` seconds."""
        source = (ROOT / mutant.path).read_text()
        lines = lines_to_run(source, mutant.line)
        by_line = self.data.contexts_by_lineno(self.files[mutant.path])
        found = set().union(*(by_line.get(line, ()) for line in lines))
        known = [name for name in found if name in self.seconds]
        chosen, total = [], 0.0
        for name in sorted(known, key=lambda n: (self.seconds[n], n)):
            total += self.seconds[name]
            if chosen and total > budget:
                break
            chosen.append(name)
        return self.by_file(chosen), len(known)

    def by_file(self, names):
        """File by file, as their fixtures ask for; the quickest first."""
        total = {}
        for name in names:
            file = name.split("::")[0]
            total[file] = total.get(file, 0.0) + self.seconds[name]
        return sorted(
            names,
            key=lambda n: (total[n.split("::")[0]], n.split("::")[0]),
        )
