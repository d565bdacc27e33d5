"""What makes the book; notebooks and tests import it, `rlbook` never does, no wheel holds it.

| room | |
|---|---|
| `figures` | what one chapter draws |
| `checks` | the judges of its exercises |
| `worlds` | enumerable worlds of one chapter or two |
| `evidence` | the recorded tables, differences with their verdicts, scorecards |
| `bases` | the making and measuring of the book's own base models |
| `experiments` | the reference experiments behind the chapters' evidence |
| `bench` | speed and memory beside TRL and the machine's limit |
| `chaos` | strikes at a real run, and what must hold afterwards |
| `tools` | execute the notebooks, keep them clean, hold them to the package |

`python -m workshop` lists its commands.
"""
