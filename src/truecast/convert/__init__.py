"""Contents -> plan -> scan -> shards -> manifest: the writing half of truecast."""

from truecast.convert.execute import convert
from truecast.convert.plan import Plan, plan
from truecast.convert.scan import Scan, scan
from truecast.convert.select import Target

__all__ = ["Plan", "Scan", "Target", "convert", "plan", "scan"]
