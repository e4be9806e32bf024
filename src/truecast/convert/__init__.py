"""Contents -> plan -> scan -> shards -> manifest: the writing half of truecast."""

from truecast.convert.execute import convert
from truecast.convert.plan import Plan, Target, plan
from truecast.convert.scan import Scan, scan

__all__ = ["Plan", "Scan", "Target", "convert", "plan", "scan"]
