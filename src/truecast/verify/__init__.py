"""The independent proof: `verify` holds two checkpoints against each other, `check` looks at one.

Shares no code with what wrote them.
"""

from truecast.verify.against import verify_against
from truecast.verify.report import Counts, Failure, Inexact, Report
from truecast.verify.verify import verify

__all__ = ["Counts", "Failure", "Inexact", "Report", "verify", "verify_against"]
