"""What is counted, on a package small enough to count by hand."""

from workshop.tools.rooms import lines, report, rooms, to_read


def written(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


PACKAGE = {
    "a.py": "from own.pipe.room.b import thing\nimport os\n\nx = 1\n",
    "room/__init__.py": "",
    "room/b.py": "from own.pipe import c\n",
    "c.py": "from elsewhere import own\n",
    "unread.py": "from own.pipe.a import x\n",
}


def test_what_is_imported_is_read_and_nothing_else(tmp_path):
    folder = written(tmp_path / "pipe", PACKAGE)
    found = to_read(folder, "own.pipe", ["a"])
    assert [file.relative_to(folder).as_posix() for file in found] == ["a.py", "c.py", "room/b.py"]
    assert lines(found) == 6


def test_rooms_have_all_files_once(tmp_path):
    folder = written(tmp_path / "pipe", PACKAGE)
    assert {room: len(files) for room, files in rooms(folder).items()} == {
        "pipe": 3,
        "pipe/room": 2,
    }


def test_the_report_is_of_this_package():
    said = report()
    assert "| scale/train |" in said and "| nano, without its server |" in said
