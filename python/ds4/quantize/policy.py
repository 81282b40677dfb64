"""Which type each tensor of a file gets: a recipe, and options that override it for families of tensors or by name.

The first rule that applies decides:

1. `tensor_types`, in the order given: a name, or the beginning of the names of matrices (vectors and tables must be
   named whole).
2. Routed experts of the layers: `routed_w1` (gate), `routed_w2` (down), `routed_w3` (up).
3. Types that ds4 does not make (I32 tables): kept.
4. Vectors: kept, with a template as they are in it.
5. `token_embd.weight`: `embedding`.
6. Names that begin with `output.`: `output`.
7. Shared experts: `shared`.
8. `attn_kv`, `attn_q_a`, `attn_q_b`, `attn_output_a`, `attn_output_b`: `attention_proj`.
9. Other names with `.attn`, `attn_`, `.indexer` or `indexer_` (`hc_attn_fn` too): `attention`.
10. All others but the routed experts of the MTP block: `dense`.

What no rule changes has the type of the recipe; without a recipe, the type that it has in the template, or without
one in the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

from ds4.gguf import stripped, type_info

from .layers import parse_layers
from .recipes import RECIPES, is_mtp, recipe_type, split_name

FLOAT_TYPES = ("F32", "F16", "BF16")
MADE_TYPES = (*FLOAT_TYPES, "Q8_0", "MXFP4", "Q4_K", "Q2_K", "IQ2_XXS")
"""Tensor types that ds4 can make."""

TEMPLATE = "template"
"""In the place of a type: the one that a tensor has in the template (without one: in the source)."""

_UNSET = ("copy", "template")
_TABLE_TYPES = ("I8", "I16", "I32", "I64")
_BY_SHORT_NAME = {name.replace("_", "").lower(): name for name in MADE_TYPES}
_PROJECTIONS = ("attn_kv", "attn_q_a", "attn_q_b", "attn_output_a", "attn_output_b")
_ROUTED = {"ffn_gate_exps": "routed_w1", "ffn_down_exps": "routed_w2", "ffn_up_exps": "routed_w3"}

FLAGS: Mapping[str, tuple[str, ...]] = {
    "routed-w1": ("routed_w1",),
    "routed-w2": ("routed_w2",),
    "routed-w3": ("routed_w3",),
    "routed-gate": ("routed_w1",),
    "routed-down": ("routed_w2",),
    "routed-up": ("routed_w3",),
    "experts": ("routed_w1", "routed_w2", "routed_w3"),
    "routed": ("routed_w1", "routed_w2", "routed_w3"),
    "embedding": ("embedding",),
    "output": ("output",),
    "shared": ("shared",),
    "attention-proj": ("attention_proj",),
    "attention": ("attention",),
    "dense": ("dense",),
}
"""Names of options and the fields of `Policy` that they set."""


def parse_type(text: str) -> str | None:
    """Read the name of a tensor type; case, hyphens and underscores do not matter.

    Returns
    -------
    str or None
        The name as the format has it; None for "copy" and "template", which leave the type to the recipe or, if
        there is one, to the template.

    Raises
    ------
    ValueError
        There is no such type, or ds4 cannot make it.
    """
    short = text.strip().replace("-", "").replace("_", "").lower()
    if short in _UNSET:
        return None
    if short not in _BY_SHORT_NAME:
        raise ValueError(f"{text!r} is not a tensor type that ds4 makes; these are: {', '.join(MADE_TYPES)}")
    return _BY_SHORT_NAME[short]


@dataclass(frozen=True, slots=True)
class Policy:
    """The choice of types for a file.

    Attributes
    ----------
    recipe : str or None
        A key of `RECIPES`, or None to keep the types of the source.
    tensor_types : tuple of (str, str or None)
        Name or beginning of a name, and type; the first that fits decides. A type may be `TEMPLATE` here and below.
    routed_w1, routed_w2, routed_w3 : str or None
        Type of the gate, down and up matrices of the routed experts.
    embedding, output, shared, attention_proj, attention, dense : str or None
        Types of the other families; None leaves them to the recipe.
    q4_layers : frozenset of int or None
        Layers with Q4_K experts in the recipe q2-q4.

    Raises
    ------
    ValueError
        The recipe or a type is unknown.
    """

    recipe: str | None = None
    tensor_types: tuple[tuple[str, str | None], ...] = ()
    routed_w1: str | None = None
    routed_w2: str | None = None
    routed_w3: str | None = None
    embedding: str | None = None
    output: str | None = None
    shared: str | None = None
    attention_proj: str | None = None
    attention: str | None = None
    dense: str | None = None
    q4_layers: frozenset[int] | None = None

    def __post_init__(self) -> None:
        if self.recipe is not None and self.recipe not in RECIPES:
            raise ValueError(f"unknown recipe {self.recipe!r}; known: {', '.join(RECIPES)}")
        if self.q4_layers is not None and self.recipe != "q2-q4":
            raise ValueError("a choice of Q4_K layers belongs to the recipe q2-q4")
        if any(not prefix for prefix, _ in self.tensor_types):
            raise ValueError("a tensor type needs the name of a tensor, or the beginning of one, before the '='")
        types = [kind for _, kind in self.tensor_types]
        types += [getattr(self, f.name) for f in fields(self) if f.name in _FAMILIES]
        for kind in types:
            if kind is not None and kind not in (*MADE_TYPES, TEMPLATE):
                raise ValueError(f"{kind!r} is not a tensor type that ds4 makes; these are: {', '.join(MADE_TYPES)}")

    @classmethod
    def from_flags(
        cls,
        recipe: str | None,
        flags: Iterable[tuple[str, str]] = (),
        *,
        q4_layers: str | None = None,
        template: bool = False,
    ) -> Self:
        """Build a policy from options as they are typed.

        Parameters
        ----------
        recipe : str or None
            The recipe.
        flags : iterable of (str, str)
            Option without dashes and its value, in order: "tensor-type" with "NAME=TYPE", or a key of `FLAGS` with a
            type. Of two that set the same field the later one wins.
        q4_layers : str, optional
            See `parse_layers`.
        template : bool
            There is a template: "copy" and "template" mean the type that a tensor has in it.

        Raises
        ------
        ValueError
            A value is malformed or a type unknown.
        """
        unset = TEMPLATE if template else None
        by_name: list[tuple[str, str | None]] = []
        policy = cls(recipe, q4_layers=None if q4_layers is None else frozenset(parse_layers(q4_layers)))
        for flag, value in flags:
            if flag == "tensor-type":
                name, equals, kind = value.rpartition("=")
                if not equals or not name:
                    raise ValueError(f"{value!r} is not of the form NAME=TYPE")
                by_name.append((name, parse_type(kind) or unset))
            else:
                policy = replace(policy, **dict.fromkeys(FLAGS[flag], parse_type(value) or unset))
        return replace(policy, tensor_types=tuple(by_name))

    def type_of(
        self, name: str, ne: tuple[int, ...], source_type: str, n_layer: int, *, template_type: str | None = None
    ) -> str:
        """Return the type of a tensor in the output.

        Parameters
        ----------
        name : str
            Name of the tensor in the GGUF file.
        ne : tuple of int
            Its dimensions, the contiguous one first.
        source_type : str
            The type it has in the source, or the nearest one that a GGUF file can hold.
        n_layer : int
            Layers of the model without the MTP block.
        template_type : str, optional
            The type it has in the template, if there is one.
        """
        base = template_type or source_type
        default = base
        if self.recipe is not None:
            default = recipe_type(self.recipe, name, n_layer, self.q4_layers) or base

        def chosen(kind: str | None) -> str:
            return base if kind == TEMPLATE else kind or default

        is_matrix = default not in _TABLE_TYPES and len(stripped(ne)) > 1
        for prefix, kind in self.tensor_types:
            if name == prefix or (is_matrix and name.startswith(prefix)):
                return chosen(kind)
        group, _, leaf = split_name(name)
        mtp = is_mtp(name, n_layer)
        if group == "blk" and leaf in _ROUTED and not mtp:
            return chosen(getattr(self, _ROUTED[leaf]))
        if len(stripped(ne)) == 1:
            return template_type or default
        if default not in MADE_TYPES or (mtp and leaf in _ROUTED):
            return default
        return chosen(getattr(self, _family(name, leaf)))

    def unused(self, tensors: Iterable[tuple[str, tuple[int, ...], str]]) -> list[str]:
        """Return the names and beginnings of `tensor_types` that fit no tensor; each is (name, ne, source type)."""
        known = [(name, len(stripped(ne)) > 1 and kind not in _TABLE_TYPES) for name, ne, kind in tensors]
        return [
            prefix
            for prefix, _ in self.tensor_types
            if not any(name == prefix or (is_matrix and name.startswith(prefix)) for name, is_matrix in known)
        ]


_FAMILIES = {field for targets in FLAGS.values() for field in targets}


def _family(name: str, leaf: str) -> str:
    """The field of `Policy` for a matrix that is no routed expert."""
    if name == "token_embd.weight":
        return "embedding"
    if name.startswith("output."):
        return "output"
    if "_shexp." in name:
        return "shared"
    if leaf in _PROJECTIONS:
        return "attention_proj"
    if any(part in name for part in (".attn", "attn_", ".indexer", "indexer_")):
        return "attention"
    return "dense"


def type_faults(types: Mapping[str, tuple[tuple[int, ...], str]]) -> list[str]:
    """Return what is wrong with a choice of types: blocks that do not fill rows, gate and up that differ.

    Parameters
    ----------
    types : mapping of str to (tuple of int, str)
        Name of every tensor to its dimensions and type.
    """
    out = []
    for name, (ne, kind) in types.items():
        block = type_info(kind).block_elements
        if ne[0] % block:
            fitting = [t for t in MADE_TYPES if ne[0] % type_info(t).block_elements == 0]
            out.append(
                f"{name}: rows of {ne[0]} values do not fill {kind} blocks of {block}; choose {' or '.join(fitting)} "
                f"for it (--tensor-type {name}={fitting[-1]})"
            )
        if name.endswith("ffn_gate_exps.weight"):
            other = name.replace("ffn_gate_exps", "ffn_up_exps")
            if other in types and types[other][1] != kind:
                out.append(
                    f"{name} would be {kind} and {other} {types[other][1]}: gate and up of a layer need one type; "
                    "set --routed-w1 and --routed-w3 (or --tensor-type) alike"
                )
    return out
