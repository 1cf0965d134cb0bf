"""Files that are broken by chance, or made to do harm."""

import io
import json
import pickle
import struct
import zipfile

import keras
import numpy as np
from hypothesis import strategies as st

N = 8


def arrays():
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2, (N, 3)).astype("float32")
    return z, np.arange(N) % 3


def npz(compressed=False):
    z, y = arrays()
    file = io.BytesIO()
    save = np.savez_compressed if compressed else np.savez
    save(file, logits=z, labels=y)
    return file.getvalue()


def csv():
    z, y = arrays()
    rows = ["label,logit_0,logit_1,logit_2"]
    rows += [
        f"{label}," + ",".join(map(str, row))
        for label, row in zip(y, z, strict=True)
    ]
    return "\n".join(rows).encode()


def parquet():
    import pyarrow
    from pyarrow import parquet

    z, y = arrays()
    columns = {"label": y, **{f"logit_{k}": z[:, k] for k in range(3)}}
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def parquet_of(rows):
    """A table of 8 rows whose header announces others, in all its places."""
    content = parquet()
    (length,) = struct.unpack("<I", content[-8:-4])
    body, footer = content[: -8 - length], content[-8 - length : -8]
    assert footer.count(integer(N)) == 6  # in all, of the group, 4 columns
    footer = footer.replace(integer(N), integer(rows))
    return body + footer + struct.pack("<I", len(footer)) + content[-4:]


def integer(value):
    """A number in the header of a table: a field, zigzag, base 128."""
    value, digits = 2 * value, []
    while value > 127:
        digits.append(value % 128 + 128)
        value //= 128
    return bytes([0x16, *digits, value])


def model(folder):
    inputs = keras.Input((3,))
    network = keras.Model(inputs, keras.layers.Dense(3, "softmax")(inputs))
    network.save(folder / "model.keras")
    return (folder / "model.keras").read_bytes()


@st.composite
def broken(draw, content):
    """A file that lost its end, or some of whose bits are others."""
    way = draw(st.integers(0, 4))
    at = draw(st.integers(0, len(content) - 1))
    if way == 0:
        return content[:at]
    if way == 1:
        return content[at:]
    size = draw(st.integers(0, 40))
    if way == 2:
        return content[:at] + bytes(size) + content[at + size :]
    if way == 3:
        return content[:at] + content[at + size :]
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 8))):
        bit = draw(st.integers(0, 8 * len(content) - 1))
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


class Harm:
    """What a pickle would call."""

    def __reduce__(self):
        return (print, ("a pickle was loaded",))


def npy(header, content=b""):
    """An array whose header says what it likes."""
    text = (str(header) + "\n").encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


def header(shape=(N,), descr="<f8"):
    return {"descr": descr, "fortran_order": False, "shape": shape}


def archive(members, method=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as found:
        for name, content in members.items():
            found.writestr(name, content)
    return file.getvalue()


def array(values):
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def archives():
    """Archives that were made to do harm, by what they try."""
    z, y = arrays()
    good = {"logits.npy": array(z), "labels.npy": array(y)}
    objects = npy(header(descr="|O"), pickle.dumps([Harm()] * N))
    structured = np.zeros(N, [("a", "f8"), ("b", "i4")])
    cases = {
        "a pickle": {**good, "labels.npy": objects},
        "a pickle without a header": {
            **good,
            "labels.npy": pickle.dumps(Harm()),
        },
        "a pickle that nobody asked for": {**good, "other.npy": objects},
        "10^12 numbers": {**good, "logits.npy": npy(header((10**12, 3)))},
        "10^12 labels": {**good, "labels.npy": npy(header((10**12,), "<i8"))},
        "more than there is": {**good, "labels.npy": npy(header((10**9,)))},
        "a shape below zero": {**good, "labels.npy": npy(header((-5,)))},
        "a shape that overflows": {
            **good,
            "labels.npy": npy(header((2**40, 2**40))),
        },
        "no numbers in the shape": {**good, "labels.npy": npy(header(("a",)))},
        "code as header": {**good, "labels.npy": npy("__import__('os')")},
        "half a header": {**good, "labels.npy": npy("{'descr': '<f8', ")},
        "a header of 60 KB": {**good, "labels.npy": npy("(" * 60000)},
        "a bomb of zeros": {**good, "labels.npy": array(np.zeros(10**7))},
        "paths outside": {**good, "../../outside.npy": array(y)},
        "absolute paths": {**good, "/tmp/outside.npy": array(y)},
        "text": {**good, "labels.npy": "labels"},
        "text as an array": {**good, "labels.npy": array(["a"] * N)},
        "dates": {**good, "labels.npy": array(np.zeros(N, "datetime64[s]"))},
        "complex": {**good, "logits.npy": array(z + 1j)},
        "complex labels": {**good, "labels.npy": array(y + 1j)},
        "records": {**good, "labels.npy": array(structured)},
        "a single number": {**good, "labels.npy": array(3)},
        "a single weight": {**good, "sample_weight.npy": array(1.0)},
        "weights as text": {**good, "sample_weight.npy": array(["a"] * N)},
        "groups of another length": {**good, "groups.npy": array([1, 2])},
        "two labels": {**good, "label.npy": array(y)},
        "nothing": {},
        "no rows": {"logits.npy": array(z[:0]), "labels.npy": array(y[:0])},
        "no classes": {"logits.npy": array(z[:, :0]), "labels.npy": array(y)},
        "inputs as text": {"x.npy": array(["a"] * N), "labels.npy": array(y)},
    }
    found = {name: archive(members) for name, members in cases.items()}
    found["an array alone"] = array(y)
    found["a pickle alone"] = pickle.dumps(Harm())
    found["an array alone, of 10^12 numbers"] = npy(header((10**12,)))
    found["one name twice"] = twice(good)
    for name, method in {
        "bzip2": zipfile.ZIP_BZIP2,
        "lzma": zipfile.ZIP_LZMA,
    }.items():
        found[name] = archive(good, method)
    found["encrypted"] = flagged(archive(good), 0x1)
    found["another method"] = archive(good).replace(
        b"PK\x01\x02\x14\x03\x14\x00\x00\x00\x08\x00",
        b"PK\x01\x02\x14\x03\x14\x00\x00\x00\x63\x00",
    )
    return found


def twice(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as found:
        for name, content in [*members.items(), *members.items()]:
            found.writestr(name, content)
    return file.getvalue()


def flagged(content, flag):
    """An archive whose members have a flag set."""
    changed = bytearray(content)
    for sign, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(sign)
        while at >= 0:
            changed[at + place] |= flag
            at = content.find(sign, at + 1)
    return bytes(changed)


def tables():
    """Tables of the same kind."""
    good = csv().decode()
    head = good.splitlines()[0]
    return {
        "a zero byte": good.replace(",", ",\0", 1).encode(),
        "a long field": (head + "\n" + "1" * 200_000 + ",1,2,3").encode(),
        "an open quote": (head + '\n"0,1,2,3').encode(),
        "latin 1": (head + "\n\xe9,1,2,3").encode("latin-1"),
        "UTF-16": good.encode("utf-16"),
        "no line": b"",
        "a line without names": b"\n\n\n",
        "large labels": (head + "\n1e300,1,2,3").encode(),
        "labels of infinity": (head + "\ninf,1,2,3").encode(),
        "superscripts": "label,logit_²,logit_³\n0,1,2".encode(),
        "one name twice": b"label,label,logit_0,logit_1\n0,1,2,3",
        "10^5 columns": (",".join(["logit_0"] * 10**5)).encode(),
        "formulas": (head + "\n=1+1,1,2,3").encode(),
        "numbers of other scripts": (head + "\n\u0661,1,2,3").encode(),
    }


def models(content, folder):
    """Model files that were made to do harm, from a good one.

    Args:
        content: a good model file.
        folder: where an absolute path leads.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    config = json.loads(members["config.json"])

    def with_layer(module, class_name, inner):
        layer = {"module": module, "class_name": class_name, "config": inner}
        layer |= {"registered_name": None, "build_config": None}
        changed = json.loads(json.dumps(config))
        changed["config"]["layers"][1] |= layer
        return archive({**members, "config.json": json.dumps(changed)})

    code = {"class_name": "__lambda__", "config": {"value": "gANjb3M="}}
    return {
        "a lambda": with_layer(
            "keras.layers", "Lambda", {"name": "a", "function": code}
        ),
        "another module": with_layer("os", "system", {"command": "echo"}),
        "a builtin": with_layer("builtins", "eval", {"source": "1"}),
        "paths outside": archive({**members, "assets/../../outside": b"x"}),
        "paths far outside": archive(
            {**members, "assets/a": b"x", "../../../outside": b"x"}
        ),
        "absolute paths": archive(
            {**members, "assets/a": b"x", f"{folder}/outside": b"x"}
        ),
        "no config": archive({"model.weights.h5": b""}),
        "config of 10^5 brackets": archive(
            {**members, "config.json": "[" * 10**5}
        ),
        "no weights": archive({"config.json": members["config.json"]}),
        "other weights": archive({**members, "model.weights.h5": b"x" * 99}),
        "pickled weights": archive(
            {**members, "model.weights.h5": pickle.dumps(Harm())}
        ),
        "weights of 10^10 numbers": archive(
            {**members, "model.weights.h5": announced(members)}
        ),
        "a pickle": pickle.dumps(Harm()),
    }


def announced(members):
    """Weights of which the first has a shape that is announced alone."""
    import h5py

    file = io.BytesIO(members["model.weights.h5"])
    with h5py.File(file, "r+") as store:
        found = []
        store.visititems(
            lambda name, each: (
                found.append(name) if isinstance(each, h5py.Dataset) else None
            )
        )
        for name in found:
            del store[name]
            store.create_dataset(name, (10**5, 10**5), "f4", chunks=True)
    return file.getvalue()
