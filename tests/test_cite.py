"""The page *Cite* has an entry for the paper of each method."""

import inspect
import re

import keras
import pytest

import keras_calib as kc
from tests.test_documentation import ROOT

pytestmark = pytest.mark.one_backend
PAGE = (ROOT / "examples/docs/cite.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`.+) \| (.*`.*`.*) \|$", PAGE, flags=re.M)
ENTRIES = dict(re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", PAGE, flags=re.M | re.S))
FAMILIES = (kc.losses, kc.models, kc.layers, kc.metrics, kc.callbacks)
FAMILIES += (kc.plots, kc.shift, kc)
# Bases and parts, and what is this library's own or of another package.
WITHOUT = {"ClassificationLoss", "PenalizedLoss", "LossPart"}
WITHOUT |= {"BayesianTemperatureScaling", "QuadraticScaling"}
# Has the papers of its two maps.
WITHOUT |= {"MultiLabelScaling"}
LETTERS = {'{\\"u}': "ü", '{\\"a}': "ä", "{\\'o}": "ó", "{\\L}": "Ł"}


def field(key, name):
    """A field of an entry as plain text; empty if it has none."""
    found = re.search(rf"^  {name} += \{{(.*?)\}},$", ENTRIES[key], re.M | re.S)
    text = " ".join(found[1].split()) if found else ""
    for written, letter in LETTERS.items():
        text = text.replace(written, letter)
    return re.sub(r"[{}]", "", text)


def references(name):
    """What the docstrings of a name, and of its function, refer to."""
    family = next(each for each in FAMILIES if name in each.__all__)
    documents = [inspect.getdoc(getattr(family, name))]
    plain = name.replace("_", "").lower()
    documents += [
        inspect.getdoc(getattr(family, other))
        for other in family.__all__
        if other != name and other.replace("_", "").lower() == plain
    ]
    found = [text.partition("Reference:")[2] for text in documents]
    return " ".join(" ".join(found).split())


def test_every_key_of_the_table_has_an_entry():
    keys = re.findall(r"`(\w+)`", " ".join(keys for _, keys in ROWS))
    assert set(keys) == set(ENTRIES)
    assert len(ENTRIES) > 50


@pytest.mark.parametrize(("names", "keys"), ROWS)
def test_docstrings_refer_to_the_paper_of_their_row(names, keys):
    papers = re.findall(r"`(\w+)`", keys)
    for name in re.findall(r"`(\w+)`", names):
        known = references(name)
        if name in kc.losses.__all__:
            preprints = set(re.findall(r"arXiv:(\d+\.\d+)", known))
            assert preprints <= {field(key, "eprint") for key in papers}
        for key in papers:
            family = field(key, "author").split(" and ")[0].split(",")[0]
            assert (family or field(key, "title")) in known, key
            assert field(key, "year") in known, key


@pytest.mark.parametrize("base", [keras.losses.Loss, keras.layers.Layer])
def test_every_loss_and_map_with_a_paper_is_in_the_table(base):
    listed = re.findall(r"`(\w+)`", " ".join(names for names, _ in ROWS))
    for family in (kc.losses, kc.layers, kc.models):
        for name in family.__all__:
            found = getattr(family, name)
            if isinstance(found, type) and issubclass(found, base):
                document = inspect.getdoc(found)
                if "Reference:" in document and name not in WITHOUT:
                    assert name in listed
    assert WITHOUT <= {*kc.losses.__all__, *kc.layers.__all__}
