"""Surviving mutants that a person has looked at: the changed line as it survived, and why no test can or need tell it apart."""

SAME = "does the same"
NEVER = "is never reached"
QUICK = "is only quicker"
NAMED = "is only a name, for whoever looks at tasks and threads"
INSTANT = "does the same but for one instant of a clock"
WHETHER = "does the same: it is asked whether, not what"

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
        "case _: assert_never(outcome)": f"{NEVER}, which the type checker proves",
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
    "core.policy": dict.fromkeys(
        (
            "known = None",
            "known = self._classified.get(None)",
            "known = self._classified.get(type(None))",
            "self._classified[kind] = None",
            'set_field("_is_by_class", None)',
            'set_field("_is_by_class", all(type(None) is type for _, each in rules for rule in each))',
        ),
        f"{QUICK}: what is remembered of a class is what its rules say each time",
    ),
    "core.failure": {
        'kept = redact(looked_at.replace("\\0", "\\uFFFD"))': f"{SAME}: one character, written twice",
        'kept = kept.encode("UTF-8", "replace").decode("utf-8")': f"{SAME}: the same encoding",
        'kept = kept.encode("utf-8", "replace").decode("UTF-8")': f"{SAME}: the same encoding",
        **dict.fromkeys(
            (
                "if _has_no_facts(None):",
                "return is_bare(type(None)) and not error.__dict__  # type: ignore[arg-type]  # classes have a hash",
            ),
            QUICK,
        ),
        "return _safe_short_text(text) if len(text) < _REMEMBERED_CHARS_MAX else _safe_text(text)": QUICK,
        "return _safe_short_text(text) if (len(text) <= _REMEMBERED_CHARS_MAX) or True else _safe_text(text)": (
            f"{SAME}, and remembers long texts too"
        ),
    },
    "core.gate_order": {
        "sure = place <= room * SURE_PERCENT[row.band] / 100": f"{SAME}: a place is a whole number",
        "mine.sort(key=None)": f"{SAME}: no two rows of a turn have the same band and place",
        "mine.sort(key=lambda one: one[:5])": f"{SAME}: no two rows of a turn have the same band and place",
        "ranked.sort(key=None)": f"{SAME}: no two rows have the same number and turn",
        "ranked.sort(key=lambda one: one[:3])": f"{SAME}: no two rows have the same number and turn",
    },
    "core.backtest": dict.fromkeys(
        (
            "for one, following in zip(task.tries, [*task.tries[1:], None], strict=None):",
            "for one, following in zip(task.tries, [*task.tries[1:], None], strict=False):",
            "for one, following in zip(task.tries, [*task.tries[1:], None], ):",
        ),
        f"{SAME}: one is made of the other",
    ),
    "core.models": {
        'type_ = ""': "is reached with SQLAlchemy 2.0 alone: 2.1 says object of such types",
        'type_ = dict if "JSON" in str(getattr(column.type, "__visit_name__", None)) else None': f"{SAME}: each type has one",
        'type_ = dict if "JSON" in str(getattr(column.type, "__visit_name__", )) else None': f"{SAME}: each type has one",
    },
    "core.payload_types": dict.fromkeys(
        (
            "found = error.errors(include_url=False, include_context=False, )",
            "found = error.errors(include_url=False, include_context=True, include_input=False)",
            "found = error.errors(include_url=False, include_context=False, include_input=True)",
            "found = error.errors(include_url=False, include_input=False)",
            "found = error.errors(include_url=True, include_context=False, include_input=False)",
            "found = error.errors(include_context=False, include_input=False)",
            "found = error.errors(include_url=None, include_context=False, include_input=False)",
            "found = error.errors(include_url=False, include_context=None, include_input=False)",
            "found = error.errors(include_url=False, include_context=False, include_input=None)",
        ),
        f"{QUICK}: only the place and the words are read",
    ),
    "core.stack": {
        **dict.fromkeys(
            (
                'for (name, lines), reason in zip(links, ["", *told], strict=False):',
                'for (name, lines), reason in zip(links, ["", *told], strict=None):',
                'for (name, lines), reason in zip(links, ["", *told], ):',
            ),
            f"{SAME}: one is made of the other",
        ),
        **dict.fromkeys(
            (
                "known = None",
                "known = _kept.get(None)",
                "if len(_kept) > _KEPT_MAX:",
                "if len(_seen) > _KEPT_MAX:",
                "while traceback is not None and len(found) <= _QUICK_MAX:",
                "if known is not None or len(walked) < _QUICK_MAX:",
            ),
            f"{QUICK}: what is remembered is what would be found again",
        ),
        **dict.fromkeys(
            (
                'return tuple(sorted({os.path.join(os.path.abspath(path), "") for path in paths if path}, key=None, reverse=True))',
                'return tuple(sorted({os.path.join(os.path.abspath(path), "") for path in paths if path}, reverse=True))',
            ),
            f"{SAME}: of two folders that lie in each other the longer one sorts last as text, too",
        ),
        'hashed = hashlib.sha256(json.dumps(shape).encode("UTF-8", "surrogatepass")).hexdigest()[:16]': f"{SAME}: the same encoding",
        **dict.fromkeys(
            (
                'hashed = hashlib.sha256(json.dumps(shape).encode("utf-8", "XXsurrogatepassXX")).hexdigest()[:16]',
                'hashed = hashlib.sha256(json.dumps(shape).encode("utf-8", "SURROGATEPASS")).hexdigest()[:16]',
                'hashed = hashlib.sha256(json.dumps(shape).encode("utf-8", )).hexdigest()[:16]',
            ),
            f"{SAME}: what `json.dumps` writes is ASCII",
        ),
        "return _text([one._replace(error=one.error[:CODE_CHARS_MAX], ) for one in chain])": f"{SAME}: no frame is left by then",
        "if known is not None and len(walked) <= _QUICK_MAX:": QUICK,
    },
    "core.task": {
        **dict.fromkeys(
            (
                'encoder = json.JSONEncoder(ensure_ascii=None, allow_nan=False, separators=(",", ":"))',
                'encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, allow_nan=None, separators=(",", ":"))',
                "encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, allow_nan=False, separators=None)",
                'encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"))',
                'encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, separators=(",", ":"))',
                "encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, allow_nan=False, )",
                'encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, allow_nan=True, separators=(",", ":"))',
                'encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, allow_nan=False, separators=("XX,XX", ":"))',
                'encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, allow_nan=False, separators=(",", "XX:XX"))',
            ),
            "is looked at by a Python without the encoder of C alone",
        ),
        'return lambda value: "".join(chunks(value, 1))': f"{SAME}: nothing is indented",
        'chunks = make(None, None, text, None, ":", ",", False, False, False)': f"{SAME}: what is no JSON is a `TypeError` either way",
        "if make is not None:  # pragma: no cover - a Python without it": QUICK,
        "make = None  # type: ignore[attr-defined]  # the stubs do not know it": QUICK,
        'return lambda value: "XXXX".join(chunks(value, 0))': f"{SAME}: the encoder of C gives one piece",
        'chunks = make(None, encoder.default, text, None, ":", ",", False, False, None)': WHETHER,
        'chunks = make(None, encoder.default, text, None, ":", ",", False, None, False)': WHETHER,
        'chunks = make(None, encoder.default, text, None, ":", ",", None, False, False)': WHETHER,
        "storable = None": WHETHER,
        "size = len(text) if (text.isascii()) and False else len(text.encode())": QUICK,
    },
    "core.visible": {
        'return f"\\\\x{code:02x}" if short and code <= 256 else f"\\\\u{code:04x}"': f"{SAME}: nothing that is hidden is number 256",
        'return f"\\\\x{code:02x}" if short and code < 257 else f"\\\\u{code:04x}"': f"{SAME}: nothing that is hidden is number 256",
        "return _HIDDEN.sub(lambda found: _spelled(found[0], short=None), text)": WHETHER,
    },
    "engine.gate_looks": {
        "self.in_use = None": WHETHER,
        "self._limit = 1": f"{SAME}: each claim sets it before it is looked at",
        "self._limit = None": f"{SAME}: each claim sets it before it is looked at",
        "self._asked = None": WHETHER,
        "self._looked_at = +math.inf": f"{SAME}: the first look is due at once in any case",
        "self._ungated_first = None": WHETHER,
        "if ended - begun >= DISCOVER_FREE_SECONDS:": INSTANT,
    },
    "engine.keeper": {
        "await asyncio.sleep(1)": f"{QUICK}: others have their turn all the same",
        "recount = time.monotonic() > recount_at": INSTANT,
        "if self._retention and time.monotonic() > prune_at:": INSTANT,
        "if time.monotonic() > history_at:": INSTANT,
        'assert handler is not None, "XXa ledger hands out the kinds that it was asked forXX"': f"the text {NEVER}",
        'assert handler is not None, "A LEDGER HANDS OUT THE KINDS THAT IT WAS ASKED FOR"': f"the text {NEVER}",
        "held = {(claim.task.id, claim.claim_id) for claim in self._held()} if (claims) or True else set()": QUICK,
    },
    "engine.kinds": {
        'self._page_ended: str | None = ""': WHETHER,
        "self._found: list[str] = None": f"{SAME}: it is old from the beginning, and looked up",
        "return self._found if time.monotonic() - self._found_at <= FRESH_SECONDS else None": INSTANT,
    },
    "engine.lanes": {
        "self._turn = 1": f"{SAME}: only whether it has changed is looked at",
        "self._turn -= 1": f"{SAME}: only whether it has changed is looked at",
        "self._turn += 2": f"{SAME}: only whether it has changed is looked at",
        "self._is_open = None": WHETHER,
        'self._runs: str | None = ""': f"{SAME}: each run sets it before it is looked at",
        'self._runs = ""': f"{SAME}: the line is then started anew, each run as it was",
    },
    "engine.asks": {"self._fence = None": f"{SAME}: each claim sets it before it is looked at"},
    "engine.effect_entry": {
        "self._asked = None": WHETHER,
        'self._raised: BaseException | None = ""': f"{SAME}: each way out sets it before it is looked at",
        **dict.fromkeys(
            (
                "mark = EffectMark(state=None, claim_id=self._claim.claim_id, first_at=at, entered_at=at)",
                "return after_try(settlement, mark, None, definite=True)",
            ),
            f"{SAME}: an answer is written whatever the mark and the effect say",
        ),
    },
    "engine.leases": {
        "case ClaimLocked(): pass  # not extended and not lost: tried again soon": f"{SAME}: what fits no case is left as it is",
    },
    "engine.nap": {
        "if nap is not None and not nap.expired() and self._ends <= (nap.when() or math.inf):": INSTANT,
    },
    "engine.patience": {
        "self._away = None": WHETHER,
        "ceiling = min(CAP_SECONDS, FIRST_SECONDS * 2 ** min(tries, 11))": f"{SAME}: it is the cap from the sixth on",
    },
    "engine.pauses": {
        "return without_paused(kinds, self._names) if (self._names) or True else kinds": QUICK,
    },
    "engine.places": {
        "self._turn = None": WHETHER,
        "self._short = None": WHETHER,
        "self._in_turns = None": WHETHER,
        "self._short = self._in_turns = None": WHETHER,
        "self._in_turns = True": f"{SAME}: it is no half before a turn was taken",
    },
    "engine.progress": {
        **dict.fromkeys(
            (
                "self._writer = self._loop.create_task(self._write(), name=None)",
                "self._writer = self._loop.create_task(self._write(), )",
                'self._writer = self._loop.create_task(self._write(), name="XXredrive-progressXX")',
                'self._writer = self._loop.create_task(self._write(), name="REDRIVE-PROGRESS")',
            ),
            NAMED,
        ),
        "self._pending = None": WHETHER,
    },
    "engine.reserve": {
        "self.in_use = None": WHETHER,
        "self._looked_at = +math.inf": f"{SAME}: the first look is due at once in any case",
    },
    "engine.run": {
        "begun = None": WHETHER,
        "stopped = None": WHETHER,
        'assert marks is not None, "XXit was refused when it was registeredXX"': f"the text {NEVER}",
        'assert marks is not None, "IT WAS REFUSED WHEN IT WAS REGISTERED"': f"the text {NEVER}",
        "return _SHORT[ran] if (ran < 1000) and False else timedelta(0, 0, ran)": QUICK,
        "ran = (time.monotonic_ns() - started_ns) // 1001": f"{SAME} but for a thousandth of how long it ran",
        "settlement = decide(claim, outcome, None, elapsed=_since(started))": f"{SAME}: what has not failed is not asked about its policy",
        "return decide(claim, Released(), None, elapsed=_since(started))": f"{SAME}: what has not failed is not asked about its policy",
    },
    "engine.settler": {
        "self._tally.add(_without(group, unwritten) if (unwritten) or True else group)": QUICK,
        "ceiling = min(most_seconds, PAUSE_FIRST_SECONDS * 2 ** min(tries - 1, 11))": f"{SAME}: it is the most from the tenth on",
        "while self._more_to_come() and 0 < len(self._pending) <= self._batch and time.monotonic() < ends:  # noqa: ASYNC110 - a turn of the loop is what it waits for": (
            f"{SAME}, and turns a while longer: what is written is the batch"
        ),
        "while self._more_to_come() and 0 < len(self._pending) < self._batch and time.monotonic() <= ends:  # noqa: ASYNC110 - a turn of the loop is what it waits for": INSTANT,
        'task = asyncio.get_running_loop().create_task(self._insist(late), name="REDRIVE-SETTLE-LATE")': NAMED,
        "late.waits = None": WHETHER,
        "late.waits = True": f"{SAME}: its key is remembered, and it is not put twice",
    },
    "engine.stops": {
        "stop = self._asked.get((claim.task.id, claim.claim_id)) if (self._asked) or True else None": QUICK,
    },
    "engine.worker": {
        'assert handler is not None, "XXa ledger hands out the kinds that it was asked forXX"': f"the text {NEVER}",
        'asyncio.create_task(self._leases.run(), name="REDRIVE-EXTEND"),': NAMED,
        "ran_for = timedelta(microseconds=(time.monotonic_ns() - began) // 1001)": f"{SAME} but for a thousandth of how long it ran",
        **dict.fromkeys(
            (
                'self._settings.concurrency + self._reserve.size, thread_name_prefix="REDRIVE-HANDLER"',
                'self._settings.concurrency + self._reserve.size, thread_name_prefix="XXredrive-handlerXX"',
                "self._settings.concurrency + self._reserve.size, )",
                "claiming = asyncio.create_task(self._claim_for_ever(), )",
                "self._alone = asyncio.create_task(self._run_suspects(), )",
                'self._alone = asyncio.create_task(self._run_suspects(), name="XXredrive-suspectsXX")',
                'self._alone = asyncio.create_task(self._run_suspects(), name="REDRIVE-SUSPECTS")',
                'self._stops.watch(self._ledger, lambda: bool(self._running), self._stop_asked), name="REDRIVE-STOPS"',
                "self._stops.watch(self._ledger, lambda: bool(self._running), self._stop_asked), ),",
            ),
            NAMED,
        ),
        **dict.fromkeys(
            (
                "self._settler.put(decide(claim, outcome, None))",
                "released = decide(suspect.claim, Released(), None)",
                "released = decide(claim, self._stops.outcome(claim), None, elapsed=ran_for)",
                "self._settler.put(decide(suspect.claim, Released(), None))",
                "self._settler.put(decide(one.claim, Released(), None))",
            ),
            f"{SAME}: what has not failed is not asked about its policy",
        ),
        "self._until_idle = True": f"{SAME}: each run sets it before it is looked at",
        "if apart or handler.transactional or handler.is_async:  # those always wait": "is only slower",
        "self._lanes.start(running, None)": "is only slower: what waits is then taken for all",
        "await asyncio.sleep(1)  # what had not begun ends here": "is only slower",
    },
}
