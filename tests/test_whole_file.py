"""Files that are written as a whole have the permissions of `open`."""

import os
import stat

import pytest

from keras_calib._whole_file import whole_file

pytestmark = [
    pytest.mark.one_backend,
    pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions"),
]


@pytest.fixture
def umask():
    """Sets the umask of this process, and resets it afterwards."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def write(path, text):
    with whole_file(path) as place:
        place.write_text(text)


def permissions(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)]
)
def test_new_file_has_the_permissions_that_the_umask_leaves(
    tmp_path, umask, mask, mode
):
    umask(mask)
    write(tmp_path / "report.html", "new")
    assert permissions(tmp_path / "report.html") == mode == 0o666 & ~mask
    assert os.listdir(tmp_path) == ["report.html"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o666])
def test_replaced_file_keeps_its_permissions(tmp_path, umask, mode):
    path = tmp_path / "report.html"
    path.write_text("old")
    path.chmod(mode)
    with whole_file(path) as place:
        # Nobody else may read what only the owner may, at any time.
        assert permissions(place) & ~mode & 0o077 == 0
        place.write_text("new")
    assert (permissions(path), path.read_text()) == (mode, "new")


def test_error_names_the_file_and_not_the_hidden_one(tmp_path):
    path = tmp_path / "no folder" / "report.html"
    with pytest.raises(FileNotFoundError) as caught:
        write(path, "new")
    assert caught.value.filename == str(path)


def test_error_of_another_file_is_left_alone(tmp_path):
    other = str(tmp_path / "other")
    with pytest.raises(FileNotFoundError) as caught:
        with whole_file(tmp_path / "report.html"):
            open(other)
    assert caught.value.filename == other
    assert os.listdir(tmp_path) == []


def test_symbolic_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    file, link = tmp_path / "folder" / "report.html", tmp_path / "last.html"
    file.write_text("old")
    link.symlink_to(file)
    write(link, "new")
    assert link.is_symlink() and file.read_text() == "new"
    assert os.listdir(tmp_path / "folder") == ["report.html"]
