"""The model card of a converted checkpoint, from recorded JSON alone.

records ──> checked, each value traced    record.py and one file a kind
traced ───> blocks of words               render.py
blocks ───> README.md, one HTML page      markdown.py, html.py
"""

from truecast.report.card.record import Record
from truecast.report.card.render import Card, make_card, render_card

__all__ = ["Card", "Record", "make_card", "render_card"]
