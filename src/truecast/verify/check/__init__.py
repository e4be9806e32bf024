"""The judge of one checkpoint, whoever made it: findings about files, scales, config and exclude lists."""

from truecast.verify.check.findings import Finding, Place
from truecast.verify.check.judge import CheckReport, check

__all__ = ["CheckReport", "Finding", "Place", "check"]
