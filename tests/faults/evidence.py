"""A row of the papers' tables on made images, killed if that is asked for."""

import argparse
import dataclasses
import pathlib
import sys

from tests.examples.test_paper_protocols import images
from tests.examples.test_papers import small_network
from tests.faults.processes import kill

PAPERS = pathlib.Path(__file__).parents[2] / "examples" / "papers"
SIZES = {"train": 96, "validation": 40, "calibration": 40, "test": 50}


def run_row(place, kill_in):
    """The row of a network with dropout, four epochs of three batches."""
    sys.path.insert(0, str(PAPERS))
    import measures
    import run
    import work

    protocol = dataclasses.replace(
        work.protocols.PROTOCOLS["miniature"], batch_size=32, epochs=4
    )
    work.protocols.PROTOCOLS["miniature"] = protocol
    data = {part: images(size) for part, size in SIZES.items()}
    work.data_sets.load = lambda *_: data
    work.networks.build = small_network
    measures.ANY_CLASSES, measures.BALANCED_MAPS = ("VectorScaling",), ()
    measures.CALIBRATED = {}

    class Killed(work.training.Resumable):
        def on_train_batch_begin(self, batch, logs=None):
            if (self.batches.epoch + 1, batch) == (kill_in, 1):
                kill()

    if kill_in:
        work.training.Resumable = Killed
    places = ["--results", place, "--work", place]
    run.main(["miniature", "--row", "MC dropout", "0", *map(str, places)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=pathlib.Path)
    parser.add_argument("--kill-in", type=int, help="an epoch")
    given = parser.parse_args()
    run_row(given.place, given.kill_in)
