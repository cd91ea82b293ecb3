"""Run a comparison: the pilot and each variant are asked the same requests, then causes are looked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tailcut.core.json_values import encode
from tailcut.core.parity.comparing import Exchange, Reply
from tailcut.core.parity.mapping import Answered, guess_pairs, unmatched
from tailcut.core.parity.request_form import RequestForm, Takes, guess_forms
from tailcut.errors import StartError, TailcutError
from tailcut.manifest import Manifest, load
from tailcut.parity.asking import Asker, exchange_all
from tailcut.parity.causes import Comparison
from tailcut.parity.deployments import (
    Chosen,
    caches_of,
    choose_variants,
    deployment_asker,
    load_uncached,
    serve_variant,
)
from tailcut.parity.diagnosing import diagnose
from tailcut.parity.payloads import Payload, read_payloads
from tailcut.parity.pilots import Pilot, open_pilot
from tailcut.parity.plan import ParityPlan, check_plan, nothing_compared
from tailcut.parity.results import Sorted, variant_record
from tailcut.profile.surroundings import surroundings
from tailcut.report.parity_file import ParityRecord, VariantParity

Tell = Callable[[str], None]

_GUESSED_FROM = 50
_FORMS_TRIED_ON = 10


def run(
    path: Path, plan: ParityPlan, *, tell: Tell, on_progress: Callable[[int], None] = lambda _: None
) -> ParityRecord:
    """Ask the pilot and the deployment the same requests and compare their answers.

    Args:
        path: of the manifest.
        plan: what is asked.
        tell: hears what is being done.
        on_progress: hears how many requests of the current variant have ended.

    Raises:
        ManifestError: the manifest or the plan is wrong.
        LoadTestError, ProfileError: the payloads cannot be read, or the pilot cannot be started.
        StartError: one side cannot be asked, or no answers could be compared.
    """
    check_plan(plan)
    outside = load(path, overrides=plan.overrides, keep_unset=True)
    with surroundings(outside, tell) as environment:
        manifest = load_uncached(path, plan.overrides)
        payloads = read_payloads(manifest, plan.payloads, plan.requests, plan.seed)
        chosen = [_RUNNING] if plan.deployment else choose_variants(manifest, plan.variants)
        with open_pilot(plan, manifest, environment, tell) as pilot:
            runner = _Runner(path, plan, manifest, environment, payloads, pilot, tell, on_progress)
            return runner.run(chosen)


_RUNNING = Chosen("as served", "", exact=True, judged=True)


@dataclass
class _Runner:
    path: Path
    plan: ParityPlan
    manifest: Manifest
    environment: Mapping[str, str]
    payloads: Sequence[Payload]
    pilot: Pilot
    tell: Tell
    on_progress: Callable[[int], None]
    form: RequestForm | None = None
    comparison: Comparison | None = None
    answered: Sequence[Answered] = ()

    def run(self, chosen: Sequence[Chosen]) -> ParityRecord:
        variants = [self._variant(one) for one in chosen]
        if all(one.failed for one in variants):
            raise StartError(f"no variant could be asked: {variants[0].failed}", hint="`tailcut check` tries the path")
        if self.comparison is None or self.form is None:
            raise nothing_compared("the pilot and the deployment answered no request both", "see `tailcut check`")
        rest = unmatched(self.comparison.pairs, self.answered)
        return ParityRecord(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            deployment=self.manifest.deployment.name,
            pilot=self.pilot.name,
            payloads=self.plan.payloads or self.manifest.deployment.ladder.traffic,
            command=self.plan.command,
            form=str(self.form),
            caches="as the server has them" if self.plan.deployment else caches_of(self.manifest.deployment),
            variants=tuple(variants),
            unmatched_pilot=tuple(rest[0]),
            unmatched_outputs=tuple(rest[1]),
        )

    def _variant(self, chosen: Chosen) -> VariantParity:
        try:
            if self.plan.deployment:
                with deployment_asker(self.plan.deployment, self.manifest.deployment, self.plan.timeout_s) as asker:
                    return self._asked(chosen, asker)
            self.tell(f"starting {chosen.name}")
            with serve_variant(
                self.manifest,
                self.path,
                self.plan.overrides,
                chosen.name,
                environment=self.environment,
                ready_s=self.plan.ready_s,
                timeout_s=self.plan.timeout_s,
            ) as asker:
                return self._asked(chosen, asker)
        except _CannotAsk as error:
            raise error.why from None
        except TailcutError as error:
            self.tell(f"{chosen.name}: not asked: {error.message}")
            return VariantParity(
                variant=chosen.name, version=chosen.version, exact=chosen.exact, judged=chosen.judged,
                failed=error.explained,
            )  # fmt: skip

    def _asked(self, chosen: Chosen, asker: Asker) -> VariantParity:
        if self.form is None:
            self.form = self.plan.form or self._choose_form(asker)
        exchanges = exchange_all(
            self.payloads,
            self.pilot.asker,
            asker,
            self.form,
            concurrency=self.plan.concurrency,
            on_progress=self.on_progress,
        )
        if self.comparison is None:
            self.comparison = self._choose_pairs(exchanges)
        found = Sorted(exchanges, self.comparison)
        record = variant_record(chosen, found, self.comparison)
        self.tell(_summary(record))
        if not self.plan.explain:
            return record
        variant = "" if self.plan.deployment else chosen.name
        return diagnose(record, found, self.comparison, self.pilot, asker, self.manifest, variant, self.tell)

    def _choose_form(self, asker: Asker) -> RequestForm:
        """Take the first form of request that the deployment answers."""
        deployment = self.manifest.deployment
        columns = tuple(
            name
            for tensor in deployment.model.inputs
            for name in (tensor.columns or (() if deployment.model.reads_any_field else (tensor.name,)))
        )
        takes = Takes(tuple(deployment.features.entity) if deployment.features.groups else (), columns)
        refused = Reply(0, None, "")
        understood: RequestForm | None = None
        for payload in self._answered_by_pilot():
            for form in guess_forms(payload.body, takes):
                asked = form.apply(payload.body)
                if asked is None:
                    continue
                reply = asker.ask(encode(asked))
                if reply.answered:
                    return form
                understood = understood or (form if reply.status == 404 else None)
                refused = reply
        if understood is not None:
            return understood
        raise _CannotAsk(
            nothing_compared(
                f"the deployment answers no form of the pilot's request; it says {refused.status}: {refused.text}",
                "say where its rows or entities are: --request entities=PATH, rows=PATH or rows.FIELD=PATH",
            )
        )

    def _answered_by_pilot(self) -> list[Payload]:
        first = self.payloads[:_FORMS_TRIED_ON]
        replies = [self.pilot.asker.ask(payload.raw, payload.path) for payload in first]
        found = [payload for payload, reply in zip(first, replies, strict=True) if reply.answered]
        if not found:
            raise _CannotAsk(
                nothing_compared(
                    f"the pilot answers none of the first {len(first)} requests at {self.pilot.asker.url};"
                    f" it says {replies[0].status}: {replies[0].text}",
                    "--path names its route, --header 'NAME: VALUE' what it asks for besides",
                )
            )
        return found

    def _choose_pairs(self, exchanges: Sequence[Exchange]) -> Comparison:
        both = [one for one in exchanges if one.theirs.answered and one.ours.answered]
        self.answered = [Answered(one.theirs.body, one.ours.body, one.rows) for one in both[:_GUESSED_FROM]]
        if not both:
            first = exchanges[0]
            raise _CannotAsk(
                nothing_compared(
                    f"no request was answered by both; of the first the pilot says {first.theirs.status}:"
                    f" {first.theirs.text}, the deployment {first.ours.status}: {first.ours.text}",
                    "are both asked of the same data? --request says how the deployment's request is made",
                )
            )
        pairs = self.plan.pairs or tuple(guess_pairs(self.answered))
        if not pairs:
            theirs, ours = unmatched([], self.answered)
            raise _CannotAsk(
                nothing_compared(
                    f"no field of the pilot ({', '.join(theirs)}) looks like one of the deployment ({', '.join(ours)})",
                    "say which belong together: --map PILOT.PATH=OUTPUT",
                )
            )
        return Comparison(pairs, self.plan.tolerances)


class _CannotAsk(Exception):
    """What stops the whole comparison, not one variant."""

    def __init__(self, why: TailcutError) -> None:
        super().__init__(why.message)
        self.why = why


def _summary(record: VariantParity) -> str:
    parts = [f"{record.differing_requests} of {record.both_answered} requests differ"]
    if record.status_differences:
        parts.append(f"{record.status_differences} answered by one side only")
    return f"{record.variant}: {', '.join(parts)}"
