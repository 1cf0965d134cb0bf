"""What each map does to unseen data, against temperature scaling.

Every map at its defaults is fitted to n samples and measured on others: NLL and
Brier score minus those of temperature scaling, and minus those of the model as
it came. Means over draws of the n samples, with standard errors: five draws, or
as many as `--draws` says (those that are stored stay).

    python examples/benchmarks/no_harm.py run RESULTS.jsonl [--data development]
    python examples/benchmarks/no_harm.py show RESULTS.jsonl [--figure FILE.png]

`run` appends a line for each fit and skips those that are there, so that it can
be stopped at any time. `--plain` fits the papers' maps instead of the defaults.
`show` prints the tables, and names each cell outside the limits: a mean NLL
above that of temperature scaling by more than 0.002 nats for n >= 200, or 0.01
for n >= 50; above that of the model as it came by more than 0.004, or 0.015; a
Brier score above that of temperature scaling by more than 0.001 for n >= 200.
Then, over all files, n and draws that all contestants have: the part of duels
that each wins, its mean rank, and its processor seconds. With `--peers`, maps
of probmetrics take part (`pip install -e ".[peers]"`), and vector and
matrix scaling are compared with its structured ones; with `--chosen`, what
`kc.calibrate` returns by default and with `method="auto"`.

Data comes from the folder `$KERAS_CALIB_DATA`. The constants of the maps were
set on the `development` files; `test` data was opened after that. Two odds of
`method="auto"` were then set on the development files and `tables`. The
`further` data, of kinds that `test` lacks, was opened last of all.
"""

import collections
import json
import os
import pathlib
import sys
import time
import warnings

import keras
import numpy as np

import keras_calib as kc
from keras_calib.calibration._choose import NOISY_SAMPLES

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import stored_rows
from argument_types import positive_int
from maps import ANY_CLASSES
from maps import TWO_CLASSES

LOGITS = pathlib.Path(__file__).parents[1] / "results" / "logits"
SIZES = (50, 100, 200, 500, 1000, 2000, 5000)
DRAWS = 5
# (first n, most that the NLL may rise), from the largest n down.
AGAINST_TEMPERATURE = ((200, 0.002), (50, 0.01))
AGAINST_MODEL = ((200, 0.004), (50, 0.015))
BRIER = ((200, 0.001),)
SHRINKING = {"regularization", "shrinkage"}
MAPS = (
    *("TemperatureScaling", "BayesianTemperatureScaling"),
    *(*ANY_CLASSES, *TWO_CLASSES),
)
# What `kc.calibrate` returns: temperature scaling or the model as it came; the
# best of several maps; their mixture.
CHOSEN = {
    "calibrate": {},
    "auto": {"method": "auto"},
    "auto mixture": {"method": "auto", "mixture": True},
}
# The maps whose mixture is compared with the best of them; those of two classes
# are measured there alone.
MIXED = (
    *("none", "TemperatureScaling", "BayesianTemperatureScaling"),
    *("SplineCalibration", "MatrixScaling"),
    *("IntraOrderPreserving", "ParameterizedTemperatureScaling"),
    *("PlattScaling", "BetaCalibration", "QuadraticScaling"),
)
# Up to `NOISY_SAMPLES` `auto` tries the structured matrix, too, whose rows here
# are those of probmetrics.
STRUCTURED = "probmetrics SMS"
PEERS = {
    "probmetrics TS": ("TemperatureScalingCalibrator", {}),
    "probmetrics SVS": ("SVSCalibrator", {}),
    "probmetrics SMS": ("SMSCalibrator", {"print_init_info": False}),
}

# Maps of one kind.
BESIDE = {
    "VectorScaling": "probmetrics SVS",
    "MatrixScaling": "probmetrics SMS",
}


def predictions(folder):
    """The three files that the constants were set on."""
    for file in sorted((folder / "predictions").glob("*.npz")):
        with np.load(file) as arrays:
            p, labels = arrays["predictions"], arrays["ground_truth"]
        tiny = np.finfo("float32").tiny
        yield file.stem, np.log(np.maximum(p, tiny)), labels.reshape(-1)


def residual_networks(folder):
    """Published ResNets on the test images of CIFAR-10."""
    with np.load(folder / "cifar10_test_logits.npz") as arrays:
        for name in ("resnet20", "resnet32", "resnet56"):
            yield f"{name}-cifar-10", arrays[name], arrays["label"]


def tables(folder):
    """Networks of scikit-learn on made tables, and on its digits."""
    from sklearn.datasets import load_digits

    yield "digits", *_of_network(*load_digits(return_X_y=True))
    for classes, weights in ((2, None), (2, [0.9]), (20, None)):
        name = f"table-{classes}{'-imbalanced' if weights else ''}"
        yield name, *_of_network(*_made(classes, weights=weights))


def further_tables(folder):
    """A network on a made table whose twenty classes have unequal sizes."""
    sizes = 20 ** -np.linspace(0, 1, 20)
    data = _made(20, seed=1, weights=list(sizes / sizes.sum()))
    yield "table-20-imbalanced", *_of_network(*data, seed=1)


def confirming_tables(folder):
    """Networks on made tables with three unequal and with eight classes."""
    for classes, seed, weights in ((3, 21, [0.7, 0.2]), (8, 22, None)):
        data = _made(classes, seed, weights=weights)
        name = f"table-{classes}{'-unequal' if weights else ''}"
        yield name, *_of_network(*data, (48,), seed)


def development_tables(folder):
    """Networks of scikit-learn on other made tables."""
    # Classes, informative columns, fraction of random labels, widths.
    kinds = (
        (5, 8, 0.1, (32,)),
        (10, 10, 0.02, (128,)),
        (30, 12, 0.05, (64,)),
        (15, 15, 0.2, (64, 64)),
    )
    for seed, (classes, informative, flipped, widths) in enumerate(kinds, 11):
        data = _made(classes, seed, n_informative=informative, flip_y=flipped)
        yield f"dev-table-{classes}", *_of_network(*data, widths, seed)


def _made(classes, seed=0, **options):
    """A made table and its labels."""
    from sklearn.datasets import make_classification

    options = {"n_informative": 10, "flip_y": 0.05, **options}
    return make_classification(
        12_000, 30, n_classes=classes, random_state=seed, **options
    )


def _of_network(x, y, widths=(64,), seed=0):
    """Log-probabilities and labels of what a network was not trained on."""
    from sklearn.neural_network import MLPClassifier

    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)
    order = np.random.default_rng(seed).permutation(len(x))
    trained, held_out = np.split(order, [len(x) // 6])
    network = MLPClassifier(widths, alpha=0, max_iter=300, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.fit(x[trained], y[trained])
    p = np.maximum(network.predict_proba(x[held_out]), 1e-30)
    return np.log(p).astype("float32"), y[held_out]


def newsgroups(folder):
    """A linear model of TF-IDF vectors, on 20 Newsgroups."""
    yield "newsgroups-20", *_of_texts(*_texts(folder))


def further_texts(folder):
    """20 Newsgroups again: two classes, and twenty of unequal sizes."""
    texts, groups = _texts(folder)

    def topics(*names):
        """Whether each document is of the first topic; others are left out."""
        chosen = {"train": [], "test": []}, {"train": [], "test": []}
        for split, own in groups.items():
            for text, group in zip(texts[split], own, strict=True):
                if group.startswith(names):
                    chosen[0][split].append(text)
                    chosen[1][split].append(group.startswith(names[0]))
        return chosen

    yield "newsgroups-2", *_of_texts(*topics("comp.", "sci."))
    yield "newsgroups-2-imbalanced", *_of_texts(*topics("misc.forsale", ""))
    yield "newsgroups-20-imbalanced", *_of_texts(*_thinned(texts, groups))


def _texts(folder):
    """Texts of 20 Newsgroups, and the group of each, by split."""
    import lzma

    texts, groups = {"train": [], "test": []}, {"train": [], "test": []}
    with lzma.open(folder / "20newsgroups.jsonl.xz", "rt") as lines:
        for line in map(json.loads, lines):
            texts[line["split"]].append(line["text"])
            groups[line["split"]].append(line["group"])
    return texts, groups


def _thinned(texts, groups, ratio=20):
    """Of group k of K, `ratio^(-k / (K - 1))` of the documents."""
    names = sorted(set(groups["train"]))
    kept = ratio ** -np.linspace(0, 1, len(names))
    rng = np.random.default_rng(0)
    found = {}, {}
    for split, own in groups.items():
        index = np.array([names.index(group) for group in own])
        rows = np.flatnonzero(rng.uniform(size=len(own)) < kept[index])
        found[0][split] = [texts[split][row] for row in rows]
        found[1][split] = [own[row] for row in rows]
    return found


def _of_texts(texts, groups):
    """Logits and labels of test documents, of a linear model of the others."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import SGDClassifier

    names = sorted(set(groups["train"]))
    vectors = TfidfVectorizer(min_df=2, sublinear_tf=True)
    model = SGDClassifier(loss="modified_huber", random_state=0)
    model.fit(vectors.fit_transform(texts["train"]), groups["train"])
    scores = model.decision_function(vectors.transform(texts["test"]))
    if scores.ndim == 1:  # of the second of two classes
        scores = np.stack([np.zeros_like(scores), scores], axis=1)
    labels = np.array([names.index(group) for group in groups["test"]])
    # In the file, the groups stand one after the other.
    order = np.random.default_rng(0).permutation(len(labels))
    return (4 * scores).astype("float32")[order], labels[order]


def protocol_s(folder):
    """Networks of `examples/papers/run.py S`, on the test images."""
    yield from _stored(sorted(LOGITS.glob("S-*.npz")))


def confirming_networks(folder):
    """Networks of protocols C and T, on their test data in random order."""
    for name, *data in _stored(sorted((LOGITS / "no_harm").glob("*.npz"))):
        order = np.random.default_rng(0).permutation(len(data[1]))
        yield name, *(each[order] for each in data)


def _stored(files):
    for file in files:
        with np.load(file) as arrays:
            logits = arrays["test_logits"].astype("float32")
            yield file.stem, logits, arrays["test_labels"].astype("int32")


SETS = {
    "development": (predictions,),
    "tables": (development_tables,),
    "test": (residual_networks, tables, newsgroups, protocol_s),
    "further": (further_texts, further_tables),
    "confirmation": (confirming_networks, confirming_tables),
}


def fitted(name, plain, logits, labels):
    """Calibrated logits as a function of logits."""
    if name in PEERS or name in CHOSEN:
        import posthoc
    if name in PEERS:
        peer, arguments = PEERS[name]
        return posthoc.probmetrics(peer, **arguments)(logits, labels)
    if name in CHOSEN:
        return posthoc.calibrated(**CHOSEN[name])(logits, labels)
    layer = make(name, plain).adapt(logits, labels)
    return lambda z: keras.ops.convert_to_numpy(layer(z))


def make(name, plain):
    """A map at its defaults, or the paper's."""
    name, _, per_class = name.partition(" ")
    layer = getattr(kc.layers, name)
    arguments = {"per_class": True} if per_class else {}
    if plain:
        settings = SHRINKING & set(layer().settings)
        arguments |= dict.fromkeys(settings)
        if name == "DirichletScaling":
            arguments["regularization"] = "odir"
    return layer(**arguments)


def measure(scores, labels):
    """NLL and Brier score."""
    p, rows = np.exp(log_softmax(scores)), np.arange(len(labels))
    brier = (p**2).sum(axis=1) - 2 * p[rows, labels] + 1
    nll = losses(scores, labels)
    return {"nll": float(nll.mean()), "brier": float(brier.mean())}


def losses(scores, labels):
    """Negative log-likelihood of each row, at most that of 1e-30."""
    log_p = log_softmax(scores)[np.arange(len(labels)), labels]
    return -np.maximum(log_p, np.log(1e-30))


def log_softmax(scores):
    scores = scores.astype("float64")
    scores = scores - scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def fit(name, plain, chosen, rest):
    """Figures of one map, fitted to `chosen` and measured on `rest`."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            scores = fitted(name, plain, *chosen)
        except ValueError as error:
            return {"error": str(error)[:200]}
        seconds = time.process_time() - start
        z, labels = rest
        return {"seconds": seconds, **measure(scores(z), labels)}


def data_folder():
    """The folder of the data; exits where the environment names none."""
    if not os.environ.get("KERAS_CALIB_DATA"):
        sys.exit("Set KERAS_CALIB_DATA to the folder that holds the data.")
    return pathlib.Path(os.environ["KERAS_CALIB_DATA"])


def run(arguments):
    folder = data_folder()
    arguments.results.touch()
    done = {key_of(row) for row in stored_rows.read(arguments.results)}
    for source in SETS[arguments.data]:
        for file, logits, labels in source(folder):
            half = len(labels) // 2
            rest = logits[half:], labels[half:]
            for n, draw, name in work(arguments, half, logits.shape[1]):
                row = {
                    "file": file,
                    "map": name,
                    "n": n,
                    "draw": draw,
                    "plain": arguments.plain,
                }
                if key_of(row) in done:
                    continue
                rng = np.random.default_rng([n, draw])
                rows = rng.permutation(half)[:n]
                chosen = logits[rows], labels[rows]
                if name == "none":
                    row |= measure(*rest)
                else:
                    row |= fit(name, arguments.plain, chosen, rest)
                stored_rows.append(arguments.results, row)


def work(arguments, half, num_classes):
    """What there is to fit: number of samples, draw and map."""
    names = ["none", *(arguments.maps or MAPS)]
    if arguments.chosen is not None:
        names += arguments.chosen or CHOSEN
    names += PEERS if arguments.peers else ()
    for n in (n for n in arguments.sizes if n <= half):
        for draw in range(arguments.draws if n < half else 1):
            for name in names:
                if name not in TWO_CLASSES or num_classes == 2:
                    yield n, draw, name


def key_of(row):
    return tuple(row[key] for key in ("file", "map", "n", "draw", "plain"))


def cells(rows, metric, base):
    """Mean and standard error of the differences, by file, map and n."""
    values = {key_of(row): row.get(metric) for row in rows}
    found = collections.defaultdict(list)
    for file, name, n, draw, plain in values:
        reference = values.get((file, base, n, draw, plain))
        value = values[file, name, n, draw, plain]
        if name not in ("none", base) and None not in (value, reference):
            found[file, name, n].append(value - reference)
    return {
        key: (np.mean(each), np.std(each, ddof=1) / len(each) ** 0.5)
        if len(each) > 1
        else (each[0], np.nan)
        for key, each in found.items()
    }


def show(arguments):
    paths = [arguments.results, *arguments.also]
    rows = [row for path in paths for row in stored_rows.read(path)]
    rows = [row for row in rows if row["map"] not in arguments.without]
    rows = [row for row in rows if row["draw"] < arguments.draws]
    if not arguments.also:
        show_files(rows, arguments.figure)
    print_ranks(rows)
    print_peers(rows)
    print_regrets(rows)


def show_files(rows, figure):
    """A table and a heat map for each file, and what is outside the limits."""
    tables = {
        "NLL minus temperature scaling's": (
            cells(rows, "nll", "TemperatureScaling"),
            AGAINST_TEMPERATURE,
        ),
        "NLL minus the untouched model's": (
            cells(rows, "nll", "none"),
            AGAINST_MODEL,
        ),
        "Brier score minus temperature scaling's": (
            cells(rows, "brier", "TemperatureScaling"),
            BRIER,
        ),
        "Brier score minus the untouched model's": (
            cells(rows, "brier", "none"),
            (),  # no limit is set
        ),
    }
    outside = []
    for title, (found, limits) in tables.items():
        outside += print_table(title, found, limits)
    print(f"\nOutside the limits: {len(outside)}")
    for line in outside:
        print(f"- {line}")
    refused = collections.Counter(
        (row["file"], row["map"], row["n"]) for row in rows if "error" in row
    )
    for (file, name, n), count in refused.items():
        print(f"- refused {count} times: {name} on {file}, n = {n}")
    if figure:
        draw_tables(tables, figure)


def print_ranks(rows):
    """Duels and ranks over the cells that most contestants have."""
    cells = collections.defaultdict(dict)
    for row in rows:
        if (
            row["map"] != "none"
            and "nll" in row
            and row["map"] not in TWO_CLASSES
        ):
            cells[row["file"], row["n"], row["draw"]][row["map"]] = row
    names = set.intersection(*(set(cell) for cell in cells.values()))
    names = [name for name in (*MAPS, *CHOSEN, *PEERS) if name in names]
    print(f"\n{len(cells)} cells; duels won and mean rank, seconds\n")
    print("| map | NLL | rank | Brier | rank | median s |")
    print("|---|---|---|---|---|---|")
    columns = []
    for metric in ("nll", "brier"):
        values = np.array(
            [[cell[n][metric] for n in names] for cell in cells.values()]
        )
        beats = values[:, :, None] < values[:, None, :]
        ties = values[:, :, None] == values[:, None, :]
        won = (beats + 0.5 * ties).sum(axis=(0, 2)) - 0.5 * len(values)
        rate = won / len(values) / max(len(names) - 1, 1)
        columns += [rate, 1 + (len(names) - 1) * (1 - rate)]
    for i, name in enumerate(names):
        seconds = [cell[name]["seconds"] for cell in cells.values()]
        nll, nll_rank, brier, brier_rank = (column[i] for column in columns)
        print(
            f"| {name} | {nll:.0%} | {nll_rank:.1f} | {brier:.0%} "
            f"| {brier_rank:.1f} | {np.median(seconds):.3f} |"
        )


def print_peers(rows):
    """Ridge fits beside the structured maps of probmetrics, over all files."""
    for name, peer in BESIDE.items():
        by_size = collections.defaultdict(list)
        for (_, each, n), (mean, _) in cells(rows, "nll", peer).items():
            if each == name:
                by_size[n].append(mean)
        if not by_size:
            continue
        print(f"\nNLL of {name} minus that of {peer}, over files\n")
        print("| samples | files | mean | best | worst |")
        print("|---|---|---|---|---|")
        for n, found in sorted(by_size.items()):
            figures = np.mean(found), np.min(found), np.max(found)
            texts = (f"{figure:+.4f}" for figure in figures)
            print(f"| {n} | {len(found)} |", " | ".join(texts), "|")


def print_regrets(rows):
    """How far `auto` is behind the best of the maps that it chooses from."""
    cells = collections.defaultdict(lambda: collections.defaultdict(dict))
    for row in rows:
        if "nll" in row:
            found = cells[row["file"], row["n"]][row["map"]]
            found[row["draw"]] = row["nll"]
    for name in ("auto", "auto mixture"):
        behind = []
        for (_, n), cell in cells.items():
            tried = [*MIXED, STRUCTURED] if n <= NOISY_SAMPLES else MIXED
            gaps = [
                np.mean([cell[name][k] - cell[each][k] for k in shared])
                for each in tried
                # Some maps refuse a draw.
                if (shared := cell[name].keys() & cell[each].keys())
            ]
            if gaps:
                behind.append(max(gaps))
        if behind:
            print(
                f"\n{name}: NLL behind the best of its maps, {len(behind)} "
                f"cells: {np.mean(behind):+.4f} on average, "
                f"{np.max(behind):+.4f} at worst"
            )


def limit_of(n, limits):
    return next((most for first, most in limits if n >= first), np.inf)


def print_table(title, found, limits):
    """Print one table; returns the cells that are outside the limits."""
    outside = []
    for file in dict.fromkeys(file for file, _, _ in found):
        sizes = sorted({n for f, _, n in found if f == file})
        print(f"\n{title}, {file}\n")
        print("| map |", " | ".join(map(str, sizes)), "|")
        print("|---|" + "---|" * len(sizes))
        for name in (*MAPS, *CHOSEN, *PEERS):
            texts = []
            for n in sizes:
                mean, error = found.get((file, name, n), (np.nan, np.nan))
                if name not in PEERS and mean > limit_of(n, limits):
                    outside.append(
                        f"{title}: {name}, {file}, n = {n}: {mean:+.4f}"
                    )
                spread = "" if np.isnan(error) else f" ± {error:.4f}"
                texts.append("-" if np.isnan(mean) else f"{mean:+.4f}{spread}")
            if set(texts) != {"-"}:
                print(f"| {name} |", " | ".join(texts), "|")
    return outside


def draw_tables(tables, path):
    """A heat map for each table: color by mean, over all files."""
    import matplotlib.pyplot as plt

    width = 4.5 + 0.08 * max(
        len({(file, n) for file, _, n in found}) for found, _ in tables.values()
    )
    figure, axes = plt.subplots(
        len(tables), 1, figsize=(width, 5 * len(tables)), layout="constrained"
    )
    for axis, (title, (found, _)) in zip(axes, tables.items(), strict=True):
        files = list(dict.fromkeys(file for file, _, _ in found))
        measured = {name for _, name, _ in found}
        names = [n for n in (*MAPS, *CHOSEN, *PEERS) if n in measured]
        columns = [
            (file, n)
            for file in files
            for n in sorted({n for f, _, n in found if f == file})
        ]
        values = np.array(
            [
                [found.get((f, name, n), (np.nan,))[0] for f, n in columns]
                for name in names
            ]
        )
        image = axis.imshow(
            1000 * values, cmap="RdBu_r", vmin=-10, vmax=10, aspect="auto"
        )
        axis.set_yticks(range(len(names)), names, fontsize=7)
        axis.set_xticks(
            range(len(columns)),
            [f"{n}" for _, n in columns],
            rotation=90,
            fontsize=5,
        )
        for file in files:
            first = [f for f, _ in columns].index(file)
            axis.axvline(first - 0.5, color="black", linewidth=0.8)
            axis.text(first, -0.8, file, fontsize=6, rotation=25)
        axis.set_xlabel("calibration samples")
        axis.set_title(f"{title}, in thousandths", fontsize=9, pad=48)
        figure.colorbar(image, ax=axis, shrink=0.6, extend="both")
    figure.savefig(path, dpi=110)


def main():
    parser, command, shown = stored_rows.run_and_show(__doc__, run, show)
    command.add_argument("--data", choices=SETS, default="development")
    command.add_argument("--maps", nargs="*", choices=MAPS)
    command.add_argument("--plain", action="store_true")
    command.add_argument("--peers", action="store_true")
    command.add_argument(
        "--chosen", nargs="*", choices=CHOSEN, help="calibrate(); all if none"
    )
    command.add_argument("--sizes", nargs="*", type=positive_int, default=SIZES)
    command.add_argument("--draws", type=positive_int, default=DRAWS)
    shown.add_argument("--figure", type=pathlib.Path)
    stored_rows.add_also(shown, "files")
    shown.add_argument("--without", nargs="*", default=[], help="maps")
    shown.add_argument(
        "--draws", type=positive_int, default=DRAWS, help="the first"
    )
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
