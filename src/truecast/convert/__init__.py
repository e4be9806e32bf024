"""Catalog -> plan -> scan -> shards -> manifest: the writing half of truecast."""

from truecast.convert.execute import convert
from truecast.convert.plan import Plan, Target, plan
from truecast.convert.scan import scan

__all__ = ["Plan", "Target", "convert", "plan", "scan"]
