"""What the book claims from training: claims with their defence, and the ledger of them all."""

from workshop.shared.runs import Column, Runs, runs_of
from workshop.shared.verdict import Claim, Refused, Row, Verdict, ledger

__all__ = ["Claim", "Column", "Refused", "Row", "Runs", "Verdict", "ledger", "runs_of"]
