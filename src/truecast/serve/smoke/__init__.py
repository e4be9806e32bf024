"""Is a server that was just started fit for use? Questions over OpenAI's API that find the known ways to be wrong."""

from truecast.serve.smoke.finding import Finding
from truecast.serve.smoke.smoke import SECONDS, SmokeReport, smoke

__all__ = ["SECONDS", "Finding", "SmokeReport", "smoke"]
