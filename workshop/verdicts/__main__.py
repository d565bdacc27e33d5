"""`python -m workshop.verdicts`: the ledger of the book's claims, as a table.

`… census` prints what readers asked of claims and what the text says now, `… seeds` the claims that
have fewer than ten.
"""

import sys

from workshop.shared.scorecard import load_ledger
from workshop.verdicts.census import census, census_table, few_seeds
from workshop.verdicts.table import write_ledger

if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            print(f"wrote {write_ledger()}")
        case ["census"]:
            print(census_table(census()))
        case ["seeds"]:
            print(few_seeds(load_ledger()).to_string(index=False))
        case asked:
            sys.exit(f"unknown: {' '.join(asked)}; nothing, census or seeds")
