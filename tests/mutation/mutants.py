"""All mutants of a room by cosmic-ray, in an order that a seed gives."""

import ast
import pathlib
import random
from typing import NamedTuple

from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes
from cosmic_ray.ast import get_ast
from cosmic_ray.mutating import mutate_code

ROOT = pathlib.Path(__file__).parents[2]


class Mutant(NamedTuple):
    """One change of one file: the n-th place that an operator can change."""

    path: str
    operator: str
    occurrence: int
    line: int
    end_line: int

    @property
    def key(self):
        return f"{self.path}:{self.operator}:{self.occurrence}"

    def source(self):
        """The changed file, or `None` where it is no program any more."""
        operator = plugins.get_operator(self.operator)()
        before = (ROOT / self.path).read_text()
        after = mutate_code(before, operator, self.occurrence)
        try:
            same = ast.dump(ast.parse(before)) == ast.dump(ast.parse(after))
        except SyntaxError:
            return None
        return None if same else after


def mutants_of_file(path):
    """Mutants of one file, without operators that need arguments."""
    kinds = {name: plugins.get_operator(name) for name in operator_names()}
    operators = {name: kind() for name, kind in kinds.items()}
    count = dict.fromkeys(operators, 0)
    for node in ast_nodes(get_ast((ROOT / path).read_text())):
        for name, operator in operators.items():
            for start, end in operator.mutation_positions(node):
                yield Mutant(path, name, count[name], start[0], end[0])
                count[name] += 1


def operator_names():
    names = sorted(plugins.operator_names())
    return [n for n in names if not plugins.get_operator(n).arguments()]


def in_random_order(room, seed):
    """All mutants of a room, shuffled by the seed and the room's name."""
    folder = ROOT / "keras_calib" / room
    found = [
        mutant
        for path in sorted(folder.glob("*.py"))
        for mutant in mutants_of_file(str(path.relative_to(ROOT)))
    ]
    random.Random(f"{room} {seed}").shuffle(found)
    return found
