"""The README's table of evidence is what its script prints."""

import pytest


@pytest.fixture
def readme(papers):
    import readme

    return readme


def test_readme_holds_the_table_of_the_stored_rows(readme):
    import places

    page = readme.README.read_text()
    assert readme.with_evidence(page, readme.evidence(places.RESULTS)) == page


def test_only_what_stands_between_the_marks_changes(readme):
    page = f"above\n{readme.BEGIN}\nold\n\n{readme.stored_pages.END}\nbelow\n"
    assert readme.with_evidence(page, "new") == page.replace("old", "new")
    with pytest.raises(ValueError, match="no place"):
        readme.with_evidence("a page without the marks", "new")


def test_sentence_of_seeds_counts_rows(readme):
    methods = [[0] * 2, [0] * 3, [0] * 2, [0]]
    assert readme.seeds_of(methods) == (
        "Of 4 rows, 1 is of 3 seeds, 2 are of 2 seeds, 1 is of 1 seed."
    )


def test_method_of_the_command_has_the_default_weight(readme):
    import inspect
    import re

    import methods

    import keras_calib as kc

    text = " ".join(readme.README.read_text().split())
    (name,) = re.findall(r"run\.py S --only (\S+) --seeds 1", text)
    assert f"That is {name} with its default weight" in text
    loss = methods.METHODS[name]["loss"]
    known = inspect.signature(getattr(kc.losses, loss["class"])).parameters
    for key, value in loss.items():
        if key != "class":
            assert known[key].default == value
    assert "weight" in known
