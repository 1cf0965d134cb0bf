"""Pages of the repository, copied beside those of the documentation.

A link to a copied page leads to the copy; of a link to another file its words
are left, or, with the address of the repository, it leads there. The links of
the documentation's own pages hold in the repository; here they lead to copies.
"""

import pathlib
import re
import shutil
import tomllib

import equations
import gallery

ROOT = pathlib.Path(__file__).parents[2]
# The address of the repository, which is not settled; see `.ci/links`.
ADDRESS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
    "keras-calib"
]["address"]
PAGES = {
    "keras_calib/losses/README.md": "losses",
    "keras_calib/metrics/README.md": "metrics",
    "keras_calib/layers/README.md": "layers",
    "keras_calib/layers/SHRINKING.md": "shrinking",
    "keras_calib/models/README.md": "models",
    "keras_calib/callbacks/README.md": "callbacks",
    "keras_calib/plots/README.md": "plots",
    "keras_calib/reporting/README.md": "reporting",
    "keras_calib/interop/README.md": "interop",
    "keras_calib/command_line/README.md": "command_line",
    "keras_calib/shift/README.md": "shift",
    "keras_calib/datasets/README.md": "datasets",
    "keras_calib/README.md": "equations",
    "examples/results/README.md": "results",
    "examples/results/S.md": "results_S",
    "examples/results/S_figures.md": "results_S_figures",
    "examples/results/S10k.md": "results_S10k",
    "examples/results/S-development.md": "results_S_development",
    "examples/results/S-cross.md": "results_S_cross",
    "examples/results/S-square.md": "results_S_square",
    "examples/results/S-sweep.md": "results_S_sweep",
    "examples/results/G30.md": "results_G30",
    "examples/results/G100.md": "results_G100",
    "examples/results/G200.md": "results_G200",
    "examples/results/F.md": "results_F",
    "examples/results/F_people.md": "results_F_people",
    "examples/results/F_shift.md": "results_F_shift",
    "examples/results/N9.md": "results_N9",
    "examples/results/N40.md": "results_N40",
    "examples/results/C.md": "results_C",
    "examples/results/D.md": "results_D",
    "examples/results/LT.md": "results_LT",
    "examples/results/LT_figures.md": "results_LT_figures",
    "examples/results/T.md": "results_T",
    "examples/results/S-tuning.md": "results_S_tuning",
    "examples/results/F-tuning.md": "results_F_tuning",
    "examples/results/paper_acls.md": "paper_acls",
    "examples/results/paper_mbls.md": "paper_mbls",
    "examples/results/paper_diff_dml.md": "paper_diff_dml",
    "examples/results/paper_class_scaling.md": "paper_class_scaling",
    "examples/results/paper_soft_objectives.md": "paper_soft_objectives",
    "examples/results/questions.md": "questions",
    "examples/results/formulas.md": "formulas",
    "examples/results/acls_stability.md": "acls_stability",
    "examples/results/verdicts.md": "verdicts",
    "examples/results/ranks.md": "ranks",
    "examples/results/no_harm_development.md": "no_harm_development",
    "examples/results/no_harm_test.md": "no_harm_test",
    "examples/results/no_harm_tables.md": "no_harm_tables",
    "examples/results/no_harm_further.md": "no_harm_further",
    "examples/results/no_harm_confirmation.md": "no_harm_confirmation",
    "examples/results/no_harm_all.md": "no_harm_all",
    "examples/results/shrinking_rules.md": "shrinking_rules",
    "examples/results/posthoc_table.md": "posthoc_table",
    "examples/results/mutual_learning_small.md": "mutual_learning_small",
    "examples/results/choice_rules.md": "choice_rules",
    "examples/results/few_samples.md": "few_samples",
    "examples/results/fit_costs.md": "fit_costs",
    "examples/results/large.md": "large",
    "examples/results/compatibility.md": "compatibility",
    "examples/results/keras_io.md": "keras_io",
    "examples/results/mutation.md": "mutation",
    "examples/results/fuzz.md": "fuzz",
    "examples/results/stories.md": "stories",
    "examples/results/can_i_believe_this_ece.md": "can_i_believe_this_ece",
    "README.md": "readme",
    "CHANGELOG.md": "changelog",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def write(folder):
    """Write the copies into `folder / "pages"`, and their figures."""
    target = folder / "pages"
    shutil.rmtree(target, ignore_errors=True)
    (target / "figures").mkdir(parents=True)
    for source, name in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if ADDRESS and source == "README.md":
            # `.ci/links` wrote the address before its links.
            address = rf"{re.escape(ADDRESS.rstrip('/'))}/(blob|raw)/main/"
            text = re.sub(address, "", text)
        text = with_links(text, pathlib.PurePosixPath(source).parent, target)
        text = equations.with_equations(text, name)
        (target / f"{name}.md").write_text(text, encoding="utf-8")


def with_links(text, folder, target):
    """The text of a page in `folder` with links that hold in the copy."""

    def link(match):
        image, words, place = match.groups()
        if ":" in place or place.startswith("#"):
            return match[0]
        place, mark, anchor = place.partition("#")
        path = (ROOT / folder / place).resolve().relative_to(ROOT)
        if image:
            shutil.copy(ROOT / path, target / "figures")
            return f"![{words}](figures/{path.name})"
        name = PAGES.get(path.as_posix()) or PAGES.get(
            (path / "README.md").as_posix()
        )
        if path.parent == pathlib.PurePath("examples/docs"):
            return f"[{words}](../{path.name}{mark}{anchor})"
        if name:
            return f"[{words}]({name}.md{mark}{anchor})"
        return elsewhere(words, path)

    return LINK.sub(link, text)


def elsewhere(words, path):
    """A link to a file that is no page here, where there is an address."""
    return f"[{words}]({ADDRESS}/blob/main/{path})" if ADDRESS else words


def with_links_of_site(text):
    """The text of a page of this folder, with links to copies and stories."""
    places = {f"examples/{script}": to for script, to in gallery.places()}
    places |= {source: f"pages/{name}.md" for source, name in PAGES.items()}
    here = ROOT / "examples" / "docs"

    def link(match):
        image, words, place = match.groups()
        place, mark, anchor = place.partition("#")
        path = (here / place).resolve()
        if ":" in place or not path.is_relative_to(ROOT):
            return match[0]
        path = path.relative_to(ROOT)
        to = places.get(path.as_posix())
        if to:
            return f"{image}[{words}]({to}{mark}{anchor})"
        # A notebook is copied into the site, to be downloaded.
        if path.is_relative_to("examples/docs") or path.suffix == ".ipynb":
            return match[0]
        return elsewhere(words, path)

    return LINK.sub(link, text)
