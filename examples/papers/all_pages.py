"""Every page of the results again, from the rows that there are.

python examples/papers/table.py all --work papers_work
"""

import sys

import figures
import paper_pages
import people_page
import protocols
import questions
import ranks
import sentences
import shift_page
import table
import verdicts
from row_files import read_rows

# Tables whose figures have a page.
DRAWN = ("S", "LT")


def write(arguments):
    """Write the pages; yields their files.

    Sentences go into the page of results, where there is one.

    Args:
        arguments: of `table.main`: `results`, `work`, and where the pages
            (`into`) and the figures go, by default beside the others.
    """
    into = arguments.into or arguments.results
    drawn = arguments.figures or table.FIGURES
    into.mkdir(parents=True, exist_ok=True)
    for name, text in pages(arguments, drawn):
        path = into / f"{name}.md"
        path.write_text(text + "\n")
        yield path
    yield from paper_pages.write_all(arguments.results, into)
    page = into / "README.md"
    if page.exists():
        sentences.write(page, arguments.results)
        yield page


def pages(arguments, drawn):
    """Yields the name of a page and its text."""
    results, with_rows = arguments.results, set()
    for name in protocols.TABLES:
        rows = read_rows(results / f"{name}.jsonl")
        if not rows:
            continue
        with_rows.add(name)
        arguments.table = name
        yield name, "\n\n".join([heading(name), *table.tables(arguments, rows)])
        if "tuning" not in name and any("people" in r for r in rows.values()):
            yield f"{name}_people", people_page.page(name, rows)
        source = figures.Source(name, rows, results, arguments.work)
        if name in DRAWN:
            kept = not all_logits(source)
            yield f"{name}_figures", figures.page(source, drawn, kept)
        shifted = read_rows(results / f"{name}_shift.jsonl")
        if shifted:
            yield f"{name}_shift", shift_page.page(name, shifted, drawn)
    if with_rows.intersection(verdicts.TABLES):
        yield "verdicts", verdicts.page(results)
    yield "questions", questions.page(results)
    if ranks.TABLE in with_rows:
        yield "ranks", ranks.page(results)
    yield "formulas", figures.formula_page(drawn)


def all_logits(source):
    """Whether figures would show all that they showed before.

    Most logits are outside git. Without them a picture would lose curves.
    """
    methods = dict.fromkeys(method for method, _ in source.rows)
    lost = [name for name in methods if source.path(name) is None]
    if lost:
        print(
            f"{source.table}: figures of logits are left as they are; no "
            f"logits in {source.work} of {'; '.join(lost)}",
            file=sys.stderr,
        )
    return not lost


def heading(name):
    return (
        f"# Protocol {name}: stored rows\n\nPrinted by `python "
        f"examples/papers/table.py {name}` from `{name}.jsonl`."
    )
