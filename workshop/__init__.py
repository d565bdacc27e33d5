"""What makes the book; notebooks and tests import it, `rlbook` never does, no wheel holds it.

| room | |
|---|---|
| `ch01` … `ch18` | of one chapter alone: its `questions`, `figures`, `checks` and worlds |
| `appendices` | what the appendices draw and read |
| `shared` | of several chapters: what a question is, evidence, worlds, masks, widgets |
| `bases` | the making and measuring of the book's own base models |
| `experiments` | the catalogue of all chapters' experiments, and running one |
| `verdicts` | the ledger of all chapters' claims, and whether the pages say what it holds |
| `bench` | speed and memory beside TRL and the machine's limit |
| `chaos` | strikes at a real run, and what must hold afterwards |
| `symptoms` | faults put into the trainer, and what `rlbook doctor` says of them |
| `site` | the web edition and the PDF |
| `course` | the book as a course of some weeks |
| `tools` | execute the notebooks, keep them clean, hold them to the package |

`python -m workshop` lists its commands. No chapter imports another one: see the contract.
A new question of a chapter is one record in its `questions.py`: `shared/question.py` says of what.
"""
