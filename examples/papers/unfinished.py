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

# What `made_of` finds by code.
VALUES = ("probe", "network", "procedure")
# Checkpoints with what belongs to them, and logits of members of an ensemble.
ENDINGS = ("weights.h5", "history.json", "generators.json", "logits.npz")


def made_of(table, method):
    """What decides a row but its seed and the machine, for the row itself."""
    return {
        "settings": work.settings(table, method),
        "probe": probes.loss_probe(methods.method(method)),
        "network": probes.network_probe(table),
        "procedure": probes.procedure_probe(table, method),
    }


def begin(path, made):
    """Keep what an earlier run of this row left, and nothing of another one.

    Args:
        path: of the files of the row, without their endings.
        made: what `made_of` found.
    """
    now = json.loads(json.dumps({**made, "backend": keras.backend.backend()}))
    marker = _marker(path)
    known = json.loads(marker.read_text()) if marker.exists() else None
    if not _same(known, now):
        left = _files(path)
        if left:
            print("begins again: what was left is of another row", flush=True)
        for each in left:
            each.unlink()
    training.replace_text(marker, json.dumps(now))


def remove(path):
    """Remove all of it, when the row is stored."""
    for each in (*_files(path), _marker(path)):
        each.unlink(missing_ok=True)


def differ(found, stored):
    """Whether values are not those of a stored row, but for rounding."""
    if len(found) != len(stored):
        return True
    pairs = zip(found, stored, strict=True)
    # What is not a number is no agreement.
    return not all(abs(a - b) <= 1e-3 * max(1.0, abs(b)) for a, b in pairs)


def _same(known, now):
    if known is None:
        return False
    alike = all(known[key] == now[key] for key in ("settings", "backend"))
    return alike and not any(
        differ(now[key] or [], known[key] or []) for key in VALUES
    )


def _marker(path):
    return path.with_name(f"{path.name}.begun.json")


def _files(path):
    endings = "|".join(map(re.escape, ENDINGS))
    name = re.compile(rf"{re.escape(path.name)}(-member\d+)?\.({endings})")
    return [each for each in path.parent.iterdir() if name.fullmatch(each.name)]
