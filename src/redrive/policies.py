"""More on policies, for those who look at them: what will happen, and how errors are told apart.

for tried in preview(Policy(retries=5), "invoice-7", datetime.now(UTC)):
    print(tried.number, tried.at)
"""

from redrive.core.durations import parse_duration
from redrive.core.failure import ErrorClass
from redrive.core.preview import Try, preview

__all__ = ["ErrorClass", "Try", "parse_duration", "preview"]
