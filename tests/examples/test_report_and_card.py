import pytest

from tests.helpers import example


@pytest.mark.slow
@pytest.mark.one_backend
def test_report_and_card_are_written(tmp_path, capsys):
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    folder = tmp_path / "report"
    script = example("report_and_card.py")
    script.main(["--folder", str(folder), "--figure", str(picture)])
    card = (folder / "README.md").read_text()
    assert "(reliability.png)" in card
    assert picture.read_bytes() == (folder / "reliability.png").read_bytes()
    assert "<svg" in (folder / "report.html").read_text()
    before, after, both = capsys.readouterr().out.splitlines()[-3:]
    assert before.startswith("before: Overconfident by ")
    assert after.startswith("after: No miscalibration can be shown")
    assert both.startswith("after predicts better than before")


@pytest.mark.one_backend
def test_another_readme_is_left_alone(tmp_path, capsys):
    page = tmp_path / "README.md"
    page.write_text("# Mine\n")
    with pytest.raises(SystemExit):
        example("report_and_card.py").main(["--folder", str(tmp_path)])
    assert "would be overwritten" in capsys.readouterr().err
    assert page.read_text() == "# Mine\n"
