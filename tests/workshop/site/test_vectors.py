"""Figures as vectors, kept under the hash of the picture that a notebook holds."""

import gzip

import nbformat
import numpy as np
import pytest
from matplotlib.figure import Figure

from rlbook.paths import ROOT
from rlbook.viz.style import use_style
from workshop.site.vectors import SVG, folder_of, slim, take_vectors, vector, vector_of


@pytest.fixture
def figure():
    use_style()
    figure = Figure(figsize=(5, 3))
    figure.subplots().plot(np.linspace(0, 1, 50) ** 2, color="#0072b2")
    return figure


def notebook_of(*outputs):
    cell = nbformat.v4.new_code_cell(
        "draw()", outputs=[nbformat.v4.new_output("display_data", data=data) for data in outputs]
    )
    return nbformat.v4.new_notebook(cells=[cell])


def test_a_figure_is_drawn_the_same_twice_and_says_its_colours(figure):
    drawn = vector(figure)
    assert drawn == vector(figure)
    assert drawn.startswith('<svg fill="#000000" ') and "#0072b2" in drawn
    assert 'transform="scale(0.015625)"' in drawn  # letters have their size
    assert "<metadata" not in drawn and "<!--" not in drawn


def test_pixels_and_crowds_stay_pictures(figure):
    figure.axes[0].scatter(*np.random.default_rng(0).normal(size=(2, 20_000)))
    assert vector(figure) is None
    image = Figure()
    image.subplots().imshow([[1, 2], [3, 4]])
    assert vector(image) is None


def test_numbers_are_rounded_and_names_are_not():
    drawn = slim('<?xml?>\n<svg a="1">\n <use href="#m0123.4567" x="-12.34567"/>\n</svg>')
    assert drawn.endswith('x="-12.35"/></svg>') and drawn.startswith('<svg fill="#000000" a="1"><')
    assert 'scale(0.015625)"' in slim('<svg ><path transform="scale(0.015625)"/></svg>')


def test_a_vector_belongs_to_its_picture_alone(tmp_path):
    folder = tmp_path / "05_grpo"
    notebook = notebook_of({"image/png": "QUJD", SVG: "<svg>one</svg>"}, {"image/png": "REVG"})
    take_vectors(notebook, folder)
    assert SVG not in str(notebook)
    assert vector_of("QU\nJD\n", folder) == "<svg>one</svg>"
    assert vector_of("REVG", folder) is None and vector_of("QUJD", None) is None
    assert [gzip.decompress(each.read_bytes()) for each in folder.iterdir()] == [b"<svg>one</svg>"]
    take_vectors(notebook_of({"image/png": "REVG", SVG: "<svg>two</svg>"}), folder)
    assert vector_of("QUJD", folder) is None and vector_of("REVG", folder) == "<svg>two</svg>"
    take_vectors(other := notebook_of({"image/png": "REVG", SVG: "<svg/>"}), None)
    assert SVG not in str(other)


def test_only_notebooks_of_the_book_have_a_folder(tmp_path):
    assert folder_of(ROOT / "chapters/05_grpo.ipynb").name == "05_grpo"
    assert folder_of(ROOT / "chapters/solutions/05_grpo_solutions.ipynb").name.endswith("solutions")
    assert folder_of(tmp_path / "05_grpo.ipynb") is None
