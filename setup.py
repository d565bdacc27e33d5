"""What pyproject.toml cannot say: the wheel holds those parts of data/ that the package reads, and
a clone, which is installed editable, can import the workshop."""

from pathlib import Path
from shutil import copytree, ignore_patterns

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

DATA = Path(__file__).parent / "data"


class BuildWithData(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:  # an editable install reads the clone's data/
            target = Path(self.build_lib, "rlbook", "data")
            copytree(DATA, target, ignore=left_out, dirs_exist_ok=True)


class EditableWithWorkshop(editable_wheel):
    def run(self):
        self.distribution.packages += find_packages(include=["workshop*"])
        super().run()


def left_out(folder, names):
    """Names in `folder` that stay out: results, and what only the book reads."""
    if Path(folder) != DATA:
        return set()
    return set(names) - ignore_patterns("tiny-*")(folder, names)


setup(cmdclass={"build_py": BuildWithData, "editable_wheel": EditableWithWorkshop})
