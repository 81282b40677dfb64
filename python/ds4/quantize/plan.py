"""A plan: every tensor of the files to be written, its type and where its values come from.

Making a plan reads directories and small files only; it finds every fault at once, and tells what the weights will be
made of, before anything is written.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ds4
from ds4.errors import listed_faults
from ds4.gguf_writer import KV, TensorInfo, check_targets, make_layout
from ds4.imatrix import Imatrix

from .importance import NEEDS_WEIGHTS, WEIGHTED_TYPES, Importance, WantedTensor, plan_importance, read_imatrix
from .policy import FLOAT_TYPES, MADE_TYPES, Policy, type_faults
from .recipes import FILE_TYPES, RECIPES, role_of
from .registry import check_runs
from .sources import Source, SourceTensor, split_mtp
from .template import Template, TemplateTensor, match

TWO_BIT_TYPES = ("Q2_K", "IQ2_XXS")
_MTP_DROPPED = "tokenizer."


class PlanError(ValueError):
    """A plan that cannot be: types that do not fit tensors, a name that fits none."""


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor to be written.

    Attributes
    ----------
    source : SourceTensor
        Where its values come from.
    type : str
        Its type in the new file.
    shape : tuple of int or None
        Its dimensions as a template writes them: those of the source, but for ones at the end.
    """

    source: SourceTensor
    type: str
    shape: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.source.name

    @property
    def info(self) -> TensorInfo:
        """Its record in the directory."""
        return TensorInfo(self.name, self.shape or self.source.ne, self.type)

    @property
    def n_bytes(self) -> int:
        """Bytes of its payload."""
        return self.info.n_bytes

    @property
    def how(self) -> str:
        """ "copy": the stored bytes; "table": expert ids, checked; "encode": values encoded anew."""
        if self.source.is_stored_as(self.type):
            return "copy"
        return "table" if self.type == "I32" else "encode"

    @property
    def by_importance(self) -> bool:
        """Whether importance would make it better."""
        return self.how == "encode" and self.type in WEIGHTED_TYPES


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One file to be written."""

    path: Path
    kvs: tuple[KV, ...]
    tensors: tuple[TensorPlan, ...]
    n_bytes: int
    """Size of the file."""
    payload_bytes: int
    """Bytes of its data section: all tensors, each padded to the alignment."""

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        """The records of its directory."""
        return tuple(t.info for t in self.tensors)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors without padding."""
        return sum(t.n_bytes for t in self.tensors)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a conversion or quantization will write; nothing has been written yet. Close it when done."""

    source: Source
    policy: Policy
    importance: Importance
    files: tuple[FilePlan, ...]
    """The model, then the file of the MTP block when that is asked for; none for a plan that is only compared."""
    tensors: tuple[TensorPlan, ...]
    """The tensors of all files."""
    notes: tuple[str, ...]
    template: Template | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(f.n_bytes for f in self.files)

    def check(self, *, force: bool = False) -> None:
        """Check that the plan can be carried out, writing nothing that stays.

        Raises
        ------
        OSError
            A name is taken (and `force` is not set), a directory is missing, or a disk is too full.
        UnsupportedModelError
            The engine would not run the file; every difference is listed.
        """
        check_targets([(f.path, f.n_bytes) for f in self.files], force=force)
        for file in self.files[:1]:
            if any(t.name == "token_embd.weight" for t in file.tensors):  # else a file of the MTP block alone
                check_runs(file.kvs, file.infos, what="planned")

    def resume_key(self) -> str:
        """Return what the payloads depend on besides types: source, importance and version."""
        return json.dumps(["ds4", ds4.__version__, self.source.identity(), self.importance.digest])

    def close(self) -> None:
        """Close the source."""
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def make_plan(
    source: Source,
    out: str | os.PathLike[str] | None,
    policy: Policy,
    *,
    imatrix: str | os.PathLike[str] | Imatrix | None = None,
    imatrix_strict: bool = False,
    mtp_out: str | os.PathLike[str] | None = None,
    name: str | None = None,
    allow_requantize: bool = False,
    template: Template | None = None,
) -> Plan:
    """Plan the files made from a source.

    Raises
    ------
    PlanError
        Types do not fit tensors (all are listed), a name of the policy fits none, or there is no MTP block.
    TemplateError
        The template is not of the source's model; every difference is listed.
    OSError, ImatrixError
        About the importance file.
    """
    notes = list(source.notes)
    tensors: Sequence[SourceTensor] = source.tensors
    if template is not None:
        tensors, told = match(template, source, mtp_apart=mtp_out is not None)
        notes += told
    main, mtp = split_mtp(tensors, source.n_layer)
    if mtp_out is not None:
        if not mtp:
            raise PlanError(f"{source.path} has no MTP block to write to {mtp_out}")
        if out is None or not main:
            raise PlanError(f"a file of the MTP block ({mtp_out}) goes with one of the model, and there is none")
        if Path(mtp_out).absolute() == Path(out).absolute():
            raise PlanError(f"{out} cannot be both the model and the file of the MTP block")
    for path in (out, mtp_out):
        if path is not None and _same_file(Path(path), source.path):
            raise PlanError(f"{path} is the source itself; write to another file")
        if path is not None and template is not None and _same_file(Path(path), template.path):
            raise PlanError(f"{path} is the template itself; write to another file")
    plans = {t.name: _plan_tensor(policy, t, source.n_layer, template) for t in tensors}
    _check_types(plans, policy)
    notes += _check_sources(plans, allow_requantize)
    wanted = [
        WantedTensor(p.name, p.type, p.source.ne[0], p.source.n_matrices) for p in plans.values() if p.by_importance
    ]
    data, digest = read_imatrix(imatrix)
    importance, told = plan_importance(wanted, data, digest, n_layer=source.n_layer, strict=imatrix_strict)
    files = []
    if out is not None:
        records = _records(source, template, name, policy, plans.values())
        inside = list(plans.values()) if mtp_out is None else [plans[t.name] for t in main]
        files.append(_file(Path(out), records, inside, importance))
        if mtp_out is not None:
            files.append(_file(Path(mtp_out), _mtp_records(records), [plans[t.name] for t in mtp], importance))
    return Plan(source, policy, importance, tuple(files), tuple(plans.values()), (*notes, *told), template)


def _plan_tensor(policy: Policy, tensor: SourceTensor, n_layer: int, template: Template | None) -> TensorPlan:
    like = template.tensors.get(tensor.name) if template is not None else None
    kind = policy.type_of(
        tensor.name, tensor.ne, tensor.nearest_type, n_layer, template_type=None if like is None else like.type
    )
    return TensorPlan(tensor, kind, None if like is None else like.ne)


def _same_file(path: Path, source: Path) -> bool:
    return path.exists() and source.is_file() and path.samefile(source)


def _check_types(plans: dict[str, TensorPlan], policy: Policy) -> None:
    faults = type_faults({name: (p.source.ne, p.type) for name, p in plans.items()})
    sources = [p.source for p in plans.values()]
    for prefix in policy.unused((s.name, s.ne, s.nearest_type) for s in sources):
        fits = any(s.name.startswith(prefix) for s in sources)
        what = f"{'matrix' if fits else 'tensor'} has a name that begins with"
        hint = "; vectors and tables must be named whole" if fits else ""
        faults.append(f"no {what} {prefix!r} (--tensor-type){hint}")
    for name, p in plans.items():
        if (p.source.stored in ("I32", "I64")) != (p.type == "I32"):
            faults.append(
                f"{name}: a table of expert ids is I32 and nothing else is, not {p.source.stored} as {p.type}"
            )
        elif p.how == "encode" and p.type not in MADE_TYPES:
            faults.append(
                f"{name} is {p.type} in the template, which ds4 does not make; choose a type for it "
                f"(--tensor-type {name}=Q8_0) or a recipe"
            )
    if faults:
        raise PlanError(f"the chosen types do not fit:{listed_faults(faults)}")


def _check_sources(plans: dict[str, TensorPlan], allow_requantize: bool) -> list[str]:
    """Refuse or tell of tensors that were quantized before."""
    again = [p for p in plans.values() if p.how == "encode"]
    two_bit = [p for p in again if p.source.stored in TWO_BIT_TYPES]
    if two_bit and not allow_requantize:
        raise PlanError(
            f"the source holds {len(two_bit)} tensors in 2 bits ({two_bit[0].name} is {two_bit[0].source.stored}): "
            "nothing good comes of quantizing those again; take a source of higher precision, or insist with "
            "--allow-requantize"
        )
    out = []
    for stored in sorted({p.source.stored for p in again} - {*FLOAT_TYPES, "FP8", "FP4", "I32", "I64"}):
        some = [p for p in again if p.source.stored == stored and p.type not in FLOAT_TYPES]
        if some:
            to = ", ".join(sorted({p.type for p in some}))
            exact = " (lossless only if made from an FP4 checkpoint)" if stored == "MXFP4" else ""
            out.append(f"{len(some)} tensors are {stored}{exact} in the source and become {to}: errors of both add up")
    return out


def _records(
    source: Source, template: Template | None, name: str | None, policy: Policy, plans: Iterable[TensorPlan]
) -> list[KV]:
    if template is None:
        return _with_types(source.records(), source.title if name is None else name, policy)
    records = _with_types(template.records, name, policy)
    if policy.recipe is not None or template.file_type is None:
        return records
    before, after = (_main_type(t) for t in (template.tensors.values(), [p.info for p in plans]))
    if before == after or after not in FILE_TYPES:
        return records
    corrected = KV("general.file_type", "u32", FILE_TYPES[after])
    return [corrected if kv.key == corrected.key else kv for kv in records]


def _main_type(tensors: Iterable[TensorInfo | TemplateTensor]) -> str:
    """The type of most values: what `general.file_type` is about."""
    values: dict[str, int] = {}
    for t in tensors:
        values[t.type] = values.get(t.type, 0) + math.prod(t.ne)
    return max(values, key=lambda kind: values[kind])


def _with_types(records: Sequence[KV], title: str | None, policy: Policy) -> list[KV]:
    replaced = {} if title is None else {"general.name": KV("general.name", "string", title)}
    if policy.recipe is not None:
        replaced["general.file_type"] = KV("general.file_type", "u32", RECIPES[policy.recipe].file_type)
        replaced["general.quantization_version"] = KV("general.quantization_version", "u32", 2)
    out = [replaced.pop(kv.key, kv) for kv in records]
    place = max((i + 1 for i, kv in enumerate(out) if kv.key.startswith("general.")), default=0)
    return [*out[:place], *replaced.values(), *out[place:]]


def _mtp_records(records: Sequence[KV]) -> list[KV]:
    out = [kv for kv in records if not kv.key.startswith(_MTP_DROPPED)]
    return [KV(kv.key, kv.type, f"{kv.value} MTP") if kv.key == "general.name" else kv for kv in out]


def _file(path: Path, records: Sequence[KV], tensors: Sequence[TensorPlan], importance: Importance) -> FilePlan:
    kvs = [*records, *importance.records(t.name for t in tensors)]
    layout = make_layout(kvs, [t.info for t in tensors])
    return FilePlan(path, tuple(kvs), tuple(tensors), layout.n_bytes, layout.n_bytes - len(layout.header))


def plan_facts(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values, for a report."""
    return {
        "source": str(plan.source.path),
        "template": None if plan.template is None else str(plan.template.path),
        "recipe": plan.policy.recipe,
        "notes": list(plan.notes),
        "imatrix": _imatrix_facts(plan.importance),
        "files": [
            {
                "path": str(f.path),
                "bytes": f.n_bytes,
                "payload_bytes": f.payload_bytes,
                "tensors": [_tensor_facts(t, plan.importance) for t in f.tensors],
            }
            for f in plan.files
        ],
    }


def _tensor_facts(t: TensorPlan, importance: Importance) -> dict[str, Any]:
    n_values = math.prod(t.source.ne)
    out: dict[str, Any] = {
        "name": t.name,
        "ne": list(t.source.ne),
        "from": t.source.stored,
        "type": t.type,
        "how": t.how,
        "bytes": t.n_bytes,
        "bits_per_value": round(8 * t.n_bytes / n_values, 4) if n_values else None,
    }
    if t.by_importance:
        without = {*importance.missing.get(t.name, ()), *importance.unobserved.get(t.name, ())}
        if importance.imatrix is None:
            without = set(range(t.source.n_matrices))
        out["importance"] = "imatrix" if len(without) < t.source.n_matrices else _without(t.type)
        out["fallback_matrices"] = sorted(without) if importance.imatrix is not None else None
    return out


def _without(kind: str) -> str:
    return "synthetic" if kind in NEEDS_WEIGHTS else "none"


def _imatrix_facts(importance: Importance) -> dict[str, Any] | None:
    data = importance.imatrix
    if data is None:
        return None
    return {
        "file": data.source,
        "sha256": importance.digest,
        "dataset": data.dataset,
        "entries": data.n_entries,
        "chunks": data.n_chunks,
        "missing": {k: list(v) for k, v in importance.missing.items()},
        "unobserved": {k: list(v) for k, v in importance.unobserved.items()},
    }


def summary(file: FilePlan) -> list[tuple[str, str, int, int]]:
    """Return (role, type, tensors, bytes) of a file, the largest first."""
    totals: dict[tuple[str, str], list[int]] = {}
    for t in file.tensors:
        entry = totals.setdefault((role_of(t.name) or "other", t.type), [0, 0])
        entry[0] += 1
        entry[1] += t.n_bytes
    return sorted(((r, k, n, b) for (r, k), (n, b) in totals.items()), key=lambda row: -row[3])


def bits_per_value(file: FilePlan) -> float:
    """Return the mean bits that a value takes in a file."""
    n_values = sum(math.prod(t.source.ne) for t in file.tensors)
    return 8 * file.tensor_bytes / n_values if n_values else math.nan
