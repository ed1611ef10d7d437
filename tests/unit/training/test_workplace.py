"""The folder beside the draft: new, gone on with, or somebody else's."""

import pytest

from training.workplace import finish, workplace

SETTINGS = {"target": "abc", "seed": 1}


def test_work_begins_beside_and_takes_the_drafts_place(tmp_path):
    out = tmp_path / "deep" / "draft"
    work = workplace(out, SETTINGS)
    assert work.parent == out.parent
    assert not out.exists()
    (work / "draft").mkdir()
    (work / "draft" / "weights").write_text("w")
    finish(work, out)
    assert [path.name for path in out.iterdir()] == ["weights"]
    assert not work.exists()


def test_the_same_run_finds_its_work_again(tmp_path):
    work = workplace(tmp_path / "draft", SETTINGS)
    (work / "answers").write_text("kept")
    assert workplace(tmp_path / "draft", SETTINGS) == work
    assert (work / "answers").read_text() == "kept"


def test_another_runs_work_is_refused_and_stays(tmp_path):
    work = workplace(tmp_path / "draft", SETTINGS)
    with pytest.raises(FileExistsError, match=r"another run \(seed 1 instead of 2\)"):
        workplace(tmp_path / "draft", SETTINGS | {"seed": 2})
    (work / "settings.json").unlink()
    with pytest.raises(FileExistsError, match=r"another run \(it has no settings.json\)"):
        workplace(tmp_path / "draft", SETTINGS)


def test_a_full_folder_is_refused_and_an_empty_one_is_taken(tmp_path):
    out = tmp_path / "draft"
    out.mkdir()
    work = workplace(out, SETTINGS)
    (work / "draft").mkdir()
    (work / "draft" / "weights").write_text("w")
    finish(work, out)
    with pytest.raises(FileExistsError, match="is there already"):
        workplace(out, SETTINGS)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FileExistsError, match="is there already"):
        workplace(file, SETTINGS)
