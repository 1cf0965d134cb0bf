"""What a row that is not done has left in the working folder.

A later run goes on with it, if it is of the same row: of the same settings, of
a loss, a network and a training that give the same values, on one backend.
"""

import json
import re

import keras
import methods
import probes
import training
import work

# Checkpoints with what belongs to them, and logits of members of an ensemble.
ENDINGS = (
    "weights.h5",
    "history.json",
    "generators.json",
    "logits.npz",
    training.SECONDS,
)


def begin(path, table, method):
    """Keep what an earlier run of this row left, and nothing of another one.

    Args:
        path: of the files of the row, without their endings.
        table: key of `protocols.PROTOCOLS`.
        method: name in `methods.METHODS`, or of a variant.

    Returns:
        What decides the row but its seed and the machine, for the row itself.
    """
    made = {
        "settings": work.settings(table, method),
        "probe": probes.loss_probe(methods.method(method)),
        "gradient": probes.gradient_probe(methods.method(method)),
        "network": probes.network_probe(table),
        "procedure": probes.procedure_probe(table, method),
    }
    marker, backend = _marker(path), keras.backend.backend()
    known = json.loads(marker.read_text()) if marker.exists() else None
    same = known is not None and known["machine"]["backend"] == backend
    if not same or changed_code(table, method, known):
        left = _files(path)
        if left:
            print("begins again: what was left is of another row", flush=True)
        for each in left:
            each.unlink()
    row = {**made, "machine": {"backend": backend}}
    training.replace_text(marker, json.dumps(row))
    return made


def remove(path):
    """Remove all of it, when the row is stored."""
    for each in (*_files(path), _marker(path)):
        each.unlink(missing_ok=True)


def changed_code(table, method, row):
    """Why the training of a row is another one today, or `None`."""
    settings = json.loads(json.dumps(work.settings(table, method)))
    if row["settings"] != settings:
        return "its settings changed"
    if differ(probes.loss_probe(methods.method(method)), row["probe"]):
        return "its loss gives other values now"
    gradient = row.get("gradient")
    if gradient and differ(
        probes.gradient_probe(methods.method(method)), gradient
    ):
        return "its loss has another gradient now"
    network = row.get("network") and probes.network_probe(table)
    if network and differ(network, row["network"]):
        return "its network gives other values now"
    procedure = row.get("procedure")
    if procedure and row["machine"]["backend"] == keras.backend.backend():
        if differ(probes.procedure_probe(table, method), procedure):
            return "its training gives other values now"
    return None


def differ(found, stored):
    """Whether values are not those of a stored row, but for rounding."""
    if len(found) != len(stored):
        return True
    pairs = zip(found, stored, strict=True)
    # What is not a number is no agreement.
    return not all(abs(a - b) <= 1e-3 * max(1.0, abs(b)) for a, b in pairs)


def _marker(path):
    return path.with_name(f"{path.name}.begun.json")


def _files(path):
    endings = "|".join(map(re.escape, ENDINGS))
    name = re.compile(rf"{re.escape(path.name)}(-member\d+)?\.({endings})")
    return [each for each in path.parent.iterdir() if name.fullmatch(each.name)]
