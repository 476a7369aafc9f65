"""What a report says in the end."""

from ._report import Report

_MOST = 5


def verdict(report: Report) -> list[str]:
    """What the report says in the end."""
    explained = report.explanation
    return [*in_short(report), *(["", str(explained)] if explained is not None else [])]


def in_short(report: Report) -> list[str]:
    """The same without what float64 explains."""
    return [*report.interface, *_of_values(report)]


def random_numbers(report: Report) -> list[str]:
    """A line about the nodes that draw random numbers, if there are such."""
    if not report.random:
        return []
    names = ", ".join(report.random[:_MOST])
    more = f" and {len(report.random) - _MOST} more" if len(report.random) > _MOST else ""
    return [f"random numbers are drawn by {names}{more}: their distribution is compared, not the numbers"]


def _of_values(report: Report) -> list[str]:
    if report.first_divergence is not None:
        count = len(report.diverged)
        said = "1 row differs; it is" if count == 1 else f"{count} rows differ; the first is"
        return [said, f"  {report.first_divergence}"]
    if report.failed:
        return [f"what was judged is close, but the comparison is not complete: {report.failed[0]}"]
    outputs = [row for row in report.rows if row.kind == "output"]
    unjudged = [row for row in outputs if not row.judged]
    if unjudged or not outputs:
        return [
            f"nothing was found to differ, but output {row.value!r} could not be judged: {row.reason}"
            for row in unjudged
        ] or ["nothing could be judged"]
    worst = report.worst
    largest = f"; the largest error is {worst.error:.1e}, at {worst.value} ({worst.op})" if worst else ""
    return [("otherwise, " if report.interface else "") + _all_close(report) + largest]


def _all_close(report: Report) -> str:
    """Not more than was found: what had no reference is not among what is close."""
    missing = []
    for stage in dict.fromkeys(row.stage for row in report.rows):
        rows = [row for row in report.rows if row.stage == stage and row.kind != "output"]
        without = sum(not row.judged for row in rows)
        missing += [f"{without} of {len(rows)} {stage} values"] if without else []
    return f"all that could be judged is close, {' and '.join(missing)} could not" if missing else "all close"
