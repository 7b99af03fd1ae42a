"""What the tests of packages share: `check` counts, `skip` names what could not be tried, `results` sums up."""
counts = {"passed": 0, "failed": 0}


def check(name, good, detail=""):
    counts["passed" if good else "failed"] += 1
    if not good:
        print(f"[  FAILED  ] {name}\n    {detail}", flush=True)
    return bool(good)


def skip(name, why):
    """tools/run_tests shows the line of a program that passed."""
    print(f"note: skipped {name}: {why}", flush=True)


def results():
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    return 1 if counts["failed"] or not counts["passed"] else 0
