"""Making a model file from an official checkpoint, and from any source: two faces of one pipeline.

Planning reads the small files and the tensor directory and finds every fault; carrying a plan out streams tensor by
tensor and expert by expert, so memory stays at some hundreds of MB whatever the size of the model.
"""

from __future__ import annotations

import os
from pathlib import Path

from ds4.imatrix import Imatrix
from ds4.progress import Progress

from .hfsource import CheckpointSource
from .plan import Plan, PlanError, make_plan
from .policy import Policy
from .sources import GGUFSource, Source
from .template import Template
from .writing import Tell, carry_out

StrPath = str | os.PathLike[str]


def plan_conversion(
    source: StrPath,
    out: StrPath,
    *,
    recipe: str | None = None,
    policy: Policy | None = None,
    imatrix: StrPath | Imatrix | None = None,
    imatrix_strict: bool = False,
    mtp_out: StrPath | None = None,
    name: str | None = None,
    template: StrPath | None = None,
) -> Plan:
    """Read a checkpoint directory and plan its conversion.

    Parameters
    ----------
    source : path-like
        Directory with config.json, tokenizer.json and model.safetensors (or its shards and their index).
    out : path-like
        The GGUF file.
    recipe : str, optional
        A key of `RECIPES`; or give a whole policy.
    policy : Policy, optional
        The types, with a recipe.
    imatrix : path-like or Imatrix, optional
        Importance of the input columns, for Q2_K, Q4_K and IQ2_XXS.
    imatrix_strict : bool
        Refuse an importance file that lacks data, instead of falling back.
    mtp_out : path-like, optional
        A file of its own for the MTP block, which is otherwise part of `out`.
    name : str, optional
        `general.name`; by default the name of the directory, or that of the template.
    template : path-like, optional
        A GGUF file of the same model, in either layout of experts. Its metadata (without the provenance of an
        imatrix) and with them the tokenizer, the order of its tensors, their shapes and, where the policy does not
        decide, their types become those of `out`. `general.file_type` follows the recipe, or the type of most values
        when that is another. A template without MTP block leaves that of the source out, unless `mtp_out` is given.

    Raises
    ------
    OSError
        A file is missing or unreadable.
    ModelFileError, UnsupportedModelError
        The template is damaged, or is no DeepSeek V4 model in one file.
    TemplateError
        The template is not of the checkpoint's model; every difference is listed.
    CheckpointError
        The checkpoint is damaged, incomplete, or not DeepSeek V4.
    ImatrixError
        The importance file is damaged or of another model.
    ValueError
        The recipe is unknown, types do not fit tensors, or there is no MTP block for `mtp_out`.
    """
    like = None if template is None else Template.read(template)
    chosen = _policy(recipe, policy, needed=_needs_recipe(like, mtp_out))
    return _plan(
        CheckpointSource(source),
        out,
        chosen,
        imatrix=imatrix,
        imatrix_strict=imatrix_strict,
        mtp_out=mtp_out,
        name=name,
        template=like,
    )


def plan_quantization(
    source: StrPath,
    out: StrPath | None,
    *,
    recipe: str | None = None,
    policy: Policy | None = None,
    imatrix: StrPath | Imatrix | None = None,
    imatrix_strict: bool = False,
    mtp_out: StrPath | None = None,
    name: str | None = None,
    allow_requantize: bool = False,
    template: StrPath | None = None,
) -> Plan:
    """Read the directory of a GGUF file or a checkpoint, and plan a file of other types.

    Tensors that have their type already are copied byte for byte.

    Parameters
    ----------
    source : path-like
        A GGUF file of higher precision, or a checkpoint directory.
    out : path-like or None
        The GGUF file; None for a plan that is only compared (`compare`).
    recipe, policy, imatrix, imatrix_strict, mtp_out, name, template
        As for `plan_conversion`; without template, recipe and policy every tensor of a GGUF
        file keeps its type.
    allow_requantize : bool
        Take tensors of 2 bits as a source of other types.

    Raises
    ------
    OSError, CheckpointError, ImatrixError, TemplateError, ValueError
        As for `plan_conversion`.
    ModelFileError, UnsupportedModelError
        The GGUF file or the template is damaged, or is no DeepSeek V4 model in one file.
    """
    like = None if template is None else Template.read(template)
    chosen = _policy(recipe, policy, needed=Path(source).is_dir() and _needs_recipe(like, mtp_out))
    opened: Source = CheckpointSource(source) if Path(source).is_dir() else GGUFSource(source)
    return _plan(
        opened,
        out,
        chosen,
        imatrix=imatrix,
        imatrix_strict=imatrix_strict,
        mtp_out=mtp_out,
        name=name,
        allow_requantize=allow_requantize,
        template=like,
    )


def convert(
    plan: Plan,
    *,
    force: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    tell: Tell | None = None,
) -> None:
    """Carry out a plan: all files appear complete, or none does. See `carry_out`."""
    carry_out(plan, force=force, threads=threads, progress=progress, tell=tell)


quantize = convert
"""The same for a plan of `plan_quantization`."""


def _policy(recipe: str | None, policy: Policy | None, *, needed: bool = True) -> Policy:
    if policy is not None:
        if recipe is not None and recipe != policy.recipe:
            raise ValueError(f"recipe {recipe!r} and a policy of recipe {policy.recipe!r} are both given")
        chosen = policy
    else:
        chosen = Policy(recipe)
    if needed and chosen.recipe is None:
        raise PlanError("a checkpoint has no types of a GGUF file; name a recipe, or a template that has them all")
    return chosen


def _needs_recipe(template: Template | None, mtp_out: StrPath | None) -> bool:
    """Whether tensors of a checkpoint get no type without one."""
    return template is None or (mtp_out is not None and not template.mtp_names)


def _plan(
    source: Source,
    out: StrPath | None,
    policy: Policy,
    *,
    imatrix: StrPath | Imatrix | None,
    imatrix_strict: bool,
    mtp_out: StrPath | None,
    name: str | None,
    template: Template | None,
    allow_requantize: bool = False,
) -> Plan:
    try:
        return make_plan(
            source,
            out,
            policy,
            imatrix=imatrix,
            imatrix_strict=imatrix_strict,
            mtp_out=mtp_out,
            name=name,
            allow_requantize=allow_requantize,
            template=template,
        )
    except BaseException:
        source.close()
        raise
