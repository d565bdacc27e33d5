"""`python -m workshop.verdicts`: the ledger of the book's claims, as a table."""

from workshop.verdicts.table import write_ledger

if __name__ == "__main__":
    print(f"wrote {write_ledger()}")
