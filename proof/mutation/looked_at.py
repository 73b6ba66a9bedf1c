"""Surviving mutants that a person has looked at: the changed line as it survived, and why no test can or need tell it apart."""

SAME = "does the same"
NEVER = "is never reached"
QUICK = "is only quicker"

LOOKED_AT: dict[str, dict[str, str]] = {
    "core.backoff": {
        "if self.step > ZERO and steps >= (self.cap - self.first) / self.step:": f"{SAME}: there the wait is the cap",
        "if self.step > ZERO and steps > (self.cap + self.first) / self.step:": f"{SAME} but for spans that are too long to be made",
        **dict.fromkeys(
            (
                "return min(self.cap, self.first + self.step * (steps if (self.step > ZERO) or True else 0))",
                "return min(self.cap, self.first + self.step * (steps if self.step >= ZERO else 0))",
                "return min(self.cap, self.first + self.step * (steps if self.step > ZERO else 1))",
            ),
            f"{SAME}: a step is never negative, and none taken often is none",
        ),
        "return Schedule([parse_duration(one) if (isinstance(one, str)) or True else one for one in wait])": (
            f"{SAME}: a schedule reads its spans in the same way"
        ),
    },
    "core.durations": {
        'return read_span("duration", _amount(float(number), _UNITS[(unit or "S").lower()]))': f"{SAME}: it is lowered at once",
        'sign, left_ms = ("-", -left_ms) if left_ms <= 0 else ("", left_ms)': f"{SAME}: zero is answered below without its sign",
        'sign, left_ms = ("-", -left_ms) if left_ms < 1 else ("", left_ms)': f"{SAME}: zero is answered below without its sign",
        'parts.append(f"{left_ms / 1000:.3f}".rstrip("XX0XX").rstrip(".") + "s")': f"{SAME}: a number has no X",
        'parts.append(f"{left_ms / 1000:.3f}".rstrip("0").rstrip("XX.XX") + "s")': f"{SAME}: a number has no X",
        "unit = 3600 if abs(span) > timedelta(days=1) else 60 if abs(span) >= timedelta(hours=1) else 1": (
            f"{SAME}: a whole day is a whole day in hours and in minutes"
        ),
        "unit = 3600 if abs(span) >= timedelta(days=1) else 60 if abs(span) > timedelta(hours=1) else 1": (
            f"{SAME}: a whole hour is a whole hour in minutes and in seconds"
        ),
    },
    "core.decide": {
        'parts[+1] += f" drew {self.draw:.3f}"': f"{SAME}: there are two parts by then",
        "case _:": f"{NEVER}, which the type checker proves",
        "assert_never(None)": f"{NEVER}, which the type checker proves",
        "stack = None if (raised is None) and False else stack_of(raised)": f"{SAME}: None has no stack",
        "explanation = told[alike] = _explain(claim, policy, None, error_class, rule, patience, stack)": (
            f"{SAME}: how long it ran matters with a deadline alone, and with one nothing is told to many"
        ),
        "explanation = told[alike] = _explain(claim, policy, elapsed, error_class, rule, None, stack)": (
            f"{SAME}: who asks for patience is told alone"
        ),
    },
    "core.gate_rules": {
        'return min(fitting, key=lambda one: ("XX*XX" in one, one.count("*") - len(one), one.count("*"), one), default=None)': (
            f"{SAME}: nothing that fits has more letters than the name itself, or as many without a star"
        ),
    },
    "core.gates": {
        "for (answer, _), one in zip(answers, settlements, strict=None)": f"{SAME}: one is made of the other",
        "for (answer, _), one in zip(answers, settlements, )": f"{SAME}: one is made of the other",
        "for (answer, _), one in zip(answers, settlements, strict=False)": f"{SAME}: one is made of the other",
        "return in_window(_windowed(gate, rule, now, Settled(claims=None)), rule, now)": f"{SAME}: no window looks at it",
        "return in_window(_windowed(gate, rule, now, Settled(claims=1)), rule, now)": f"{SAME}: no window looks at it",
        'if settlement.outcome != "failed" and explained is None:': f"{SAME}: all that failed is explained",
    },
    "core.histograms": {
        "return TRIES[tries - 1] if 1 <= tries <= TRIES_MAX else TRIES[0 if tries <= 1 else -1]": (
            f"{SAME}: one try is answered before"
        ),
        "return TRIES[tries - 1] if 1 <= tries <= TRIES_MAX else TRIES[0 if tries < 2 else -1]": (
            f"{SAME}: one try is answered before"
        ),
    },
    "core.jitter": {
        'return type(self).__name__.strip("XX_XX").lower()': f"{SAME}: no name begins or ends with an X",
    },
    "core.operation": {
        "return 0 if (slot > now) and False else (now - slot) // course.ramp.interval + 1": (
            f"{SAME}: less than one slot is none, and a slot to come counts as none or less"
        ),
        "return 0 if slot > now else (now - slot) / course.ramp.interval + 1": f"{SAME}: the amount is cut to a whole number",
    },
}
