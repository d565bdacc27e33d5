"""What a power cut may leave of small files, and what is on the disk before it gets its name."""

import os

import pytest

from rlbook.durable import (
    CHECKSUMS,
    checksums,
    damage,
    publish_folder,
    publish_once,
    read_json,
    write_json,
)


@pytest.mark.parametrize("left", ["", '{"version": 1', "\0" * 16])
def test_a_torn_file_counts_as_absent(tmp_path, left):
    path = tmp_path / "status.json"
    path.write_text(left)
    assert read_json(path, {}) == {}
    write_json(path, {"version": 2})
    assert read_json(path) == {"version": 2}


def test_content_and_folder_reach_the_disk_before_the_name(tmp_path, monkeypatch):
    synced, renamed, replace = [], [], os.replace
    monkeypatch.setattr("rlbook.durable.sync_to_disk", lambda path: synced.append(path))

    def note(source, target):
        renamed.append((len(synced), source))
        replace(source, target)

    monkeypatch.setattr("rlbook.durable.os.replace", note)
    publish_folder(tmp_path / "batch", lambda folder: (folder / "a").write_text("1"))
    ((before, scratch),) = renamed
    assert set(synced[:before]) == {scratch / "a", scratch} and synced[before:] == [tmp_path]
    write_json(tmp_path / "status.json", {})
    assert synced[-2].name.startswith(".status.json") and synced[-1] == tmp_path


def test_every_file_is_looked_at_by_one_of_those_who_look_together(tmp_path):
    for name in "abcde":
        (tmp_path / name).write_text(name)
    write_json(tmp_path / CHECKSUMS, checksums(tmp_path))
    assert damage(tmp_path) is None
    for name in "abcde":
        (tmp_path / name).write_text("other")
        found = [damage(tmp_path, part, 3) for part in range(3)]
        assert sorted(filter(None, found)) == [f"changed or missing: {name}"]
        assert damage(tmp_path) == f"changed or missing: {name}"
        (tmp_path / name).write_text(name)
    (tmp_path / "a").unlink()
    assert damage(tmp_path) == "changed or missing: a"
    (tmp_path / CHECKSUMS).unlink()
    assert [damage(tmp_path, part, 2) for part in range(2)] == [f"no {CHECKSUMS}"] * 2


def test_of_two_writers_of_the_same_the_first_wins(tmp_path):
    final = tmp_path / "model"
    reader = {}

    def late(folder):
        (folder / "a").write_text("late")
        final.mkdir(exist_ok=True)
        (final / "a").write_text("first")
        reader["file"] = (final / "a").open()

    publish_once(final, late)
    assert reader["file"].read() == (final / "a").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(OSError):  # a file of that name is no folder that another writer made
        (tmp_path / "file").write_text("")
        publish_once(tmp_path / "file", lambda empty: None)
