"""Run a comparison: the pilot and each variant are asked the same requests, then causes are looked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tailcut.errors import ManifestError, StartError, TailcutError
from tailcut.manifest import Manifest
from tailcut.manifest.subject import Subject
from tailcut.parity.analysis.comparing import Comparison, Exchange
from tailcut.parity.analysis.request_form import RequestForm
from tailcut.parity.asking import Asker, exchange_all
from tailcut.parity.causes import diagnose
from tailcut.parity.deployments import (
    Chosen,
    caches_of,
    choose_variants,
    deployment_asker,
    load_uncached,
    serve_variant,
)
from tailcut.parity.matching import (
    NothingCompared,
    check_pilot,
    check_tolerances,
    choose_form,
    choose_pairs,
    refuse_left_over,
    takes_of,
    unmatched,
)
from tailcut.parity.payloads import Payload, read_payloads
from tailcut.parity.pilots import Pilot, open_pilot
from tailcut.parity.plan import ParityPlan, check_plan
from tailcut.parity.results import Sorted, variant_record
from tailcut.profiler.deployments.surroundings import surroundings
from tailcut.report.parity.file import ParityRecord, VariantParity

Tell = Callable[[str], None]


def run(subject: Subject, plan: ParityPlan, *, tell: Tell) -> ParityRecord:
    """Ask the pilot and the deployment the same requests and compare their answers.

    Args:
        subject: the model, loaded with ``keep_unset``.
        plan: what is asked.
        tell: hears what is being done.

    Raises:
        ManifestError: the manifest or the plan is wrong, or the payloads cannot be read.
        ProfileError: the pilot cannot be started.
        StartError: one side cannot be asked, or no answers could be compared.
    """
    check_plan(plan)
    if not plan.deployment:
        subject.refuse_missing()
    with surroundings(subject.manifest, tell) as environment:
        uncached = load_uncached(subject)
        manifest = uncached.manifest
        payloads = read_payloads(manifest, plan.payloads, plan.requests, plan.seed)
        form = plan.form or choose_form(payloads, takes_of(manifest.deployment))
        chosen = [_RUNNING] if plan.deployment else choose_variants(manifest, plan.variants)
        with open_pilot(plan, manifest, environment, tell) as pilot:
            check_pilot(payloads, pilot.asker)
            runner = _Runner(uncached, plan, manifest, environment, payloads, pilot, tell, form)
            return runner.run(chosen)


_RUNNING = Chosen("as served", "", exact=True, judged=True)


@dataclass
class _Runner:
    subject: Subject
    plan: ParityPlan
    manifest: Manifest
    environment: Mapping[str, str]
    payloads: Sequence[Payload]
    pilot: Pilot
    tell: Tell
    form: RequestForm
    comparison: Comparison | None = None
    first: Sequence[Exchange] = ()

    def run(self, chosen: Sequence[Chosen]) -> ParityRecord:
        variants = [self._variant(one) for one in chosen]
        if all(one.failed for one in variants):
            raise StartError(f"no variant could be compared: {variants[0].failed}", hint="run `tailcut check`")
        if self.comparison is None:
            raise NothingCompared("no variant answered", hint="run `tailcut check`")
        rest = unmatched(self.comparison.pairs, self.first)
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
                plan = self.plan
                running = deployment_asker(
                    plan.deployment, self.manifest.deployment, plan.timeout_s, plan.deployment_headers
                )
                return self._asked(chosen, running)
            self.tell(f"starting {chosen.name}")
            with serve_variant(
                self.subject,
                chosen.name,
                environment=self.environment,
                ready_s=self.plan.ready_s,
                timeout_s=self.plan.timeout_s,
            ) as asker:
                return self._asked(chosen, asker)
        except (NothingCompared, ManifestError):
            raise  # it would be the same with every variant
        except TailcutError as error:
            self.tell(f"{chosen.name}: not compared: {error.message}")
            return VariantParity(
                variant=chosen.name, version=chosen.version, exact=chosen.exact, judged=chosen.judged,
                failed=error.explained,
            )  # fmt: skip

    def _asked(self, chosen: Chosen, asker: Asker) -> VariantParity:
        exchanges = exchange_all(
            self.payloads,
            self.pilot.asker,
            asker,
            self.form,
            concurrency=self.plan.concurrency,
        )
        if self.comparison is None:
            self.first = exchanges
            pairs = choose_pairs(exchanges, self.plan.pairs, self.form)
            if not self.plan.pairs:
                refuse_left_over(pairs, exchanges)
            check_tolerances(self.plan.tolerances, pairs)
            self.comparison = Comparison(pairs, self.plan.tolerances)
        found = Sorted(exchanges, self.comparison)
        record = variant_record(chosen, found, self.comparison)
        self.tell(_summary(record))
        if not self.plan.explain:
            return record
        variant = "" if self.plan.deployment else chosen.name
        return diagnose(record, found, self.comparison, self.pilot, asker, self.subject, variant, self.tell)


def _summary(record: VariantParity) -> str:
    parts = [f"{record.differing_requests} of {record.both_answered} requests differ"]
    if record.status_differences:
        parts.append(f"{record.status_differences} answered by one side only")
    if record.uncompared:
        parts.append(f"{record.uncompared} not compared")
    return f"{record.variant}: {', '.join(parts)}"
