"""The independent proof: two checkpoints read from disk and compared. Shares no code with what wrote them."""

from truecast.verify.report import Counts, Failure, Inexact, Report
from truecast.verify.verify import verify

__all__ = ["Counts", "Failure", "Inexact", "Report", "verify"]
