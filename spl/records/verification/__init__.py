"""Whether records are what was written: every id anew, a run's chain, its judgement, its sums; and a whole log's rows.

It imports the standard library, `spl.errors` and the rest of `spl.records`, asks no daemon and believes nothing it
reads: whatever is wrong is a finding, and never an exception. The command line calls it, and whoever tests the log.
"""

from spl.records.verification.findings import Finding, LogVerification, ThreadVerification, Verification
from spl.records.verification.log import verify_log
from spl.records.verification.thread import records_of, verify_thread

__all__ = [
    "Finding",
    "LogVerification",
    "ThreadVerification",
    "Verification",
    "records_of",
    "verify_log",
    "verify_thread",
]
