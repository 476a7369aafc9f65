"""Operators of classical learning: linear models, support vectors, trees, and what prepares their features.

Labels that are strings are left out.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ._operator import NodeCall, Operator, Tensor, UnsupportedError, plain

_ML = "ai.onnx.ml"
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_COMPARE: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "LEQ": torch.le,
    "LT": torch.lt,
    "GTE": torch.ge,
    "GT": torch.gt,
    "EQ": torch.eq,
    "NEQ": torch.ne,
}


def _numbers(values: Any) -> Tensor:
    return torch.as_tensor(values if isinstance(values, Tensor) else [*values], dtype=torch.float64)


def _transformed(scores: Tensor, name: str) -> Tensor:
    """Apply the function of the attribute `post_transform`."""
    if name == "SOFTMAX":
        return scores.softmax(-1)
    if name == "LOGISTIC":
        return torch.sigmoid(scores)
    if name == "PROBIT":
        return math.sqrt(2) * torch.erfinv(2 * scores - 1)
    if name == "SOFTMAX_ZERO":  # zeros stay zeros
        return torch.where(scores == 0, 0.0, scores.masked_fill(scores == 0, -math.inf).softmax(-1))
    return scores


def _scaled(call: NodeCall, x: Tensor) -> Tensor:
    return (x.double() - _numbers(call["offset"])) * _numbers(call["scale"])


def _normalized(call: NodeCall, x: Tensor) -> Tensor:
    wide = x.double()
    if call["norm"] == "MAX":
        size = wide.amax(-1, keepdim=True)
    else:
        size = torch.linalg.vector_norm(wide, {"L1": 1, "L2": 2}[call["norm"]], -1, keepdim=True)
    return torch.where(size == 0, wide, wide / size)


def _imputed(call: NodeCall, x: Tensor) -> Tensor:
    kind = "float" if x.is_floating_point() else "int64"
    replaced, values = call[f"replaced_value_{kind}"], torch.as_tensor([*call[f"imputed_value_{kind}s"]], dtype=x.dtype)
    is_missing = x.isnan() if math.isnan(replaced) else x == replaced
    return torch.where(is_missing, values, x)


def _linear(call: NodeCall, x: Tensor) -> Tensor:
    count = call["targets"]
    result = x.double() @ _numbers(call["coefficients"]).reshape(count, -1).T
    result = result if call.get("intercepts") is None else result + _numbers(call["intercepts"])
    return _transformed(result, call["post_transform"])


def _one_hot(call: NodeCall, x: Tensor) -> Tensor:
    if call.get("cats_int64s") is None:
        raise UnsupportedError("strings")
    found = x.long().unsqueeze(-1) == torch.tensor([*call["cats_int64s"]])
    if not call["zeros"] and not bool(found.any(-1).all()):
        raise UnsupportedError("a category that is not known")
    return found.double()


def _supported(call: NodeCall, x: Tensor) -> Tensor:
    """Return the sum of the kernels of support vectors; without these, it is a linear model."""
    wide, weights, count = x.double(), _numbers(call["coefficients"]), call["n_supports"]
    if count:
        vectors = _numbers(call["support_vectors"]).reshape(count, -1)
        total = _kernel(call, wide, vectors) @ weights + call["rho"][0]
    else:
        total = wide @ weights + call["rho"][0]
    result = torch.where(total > 0, 1.0, -1.0) if call["one_class"] else total
    return _transformed(result[:, None], call["post_transform"]).double()


def _kernel(call: NodeCall, x: Tensor, vectors: Tensor) -> Tensor:
    name = call["kernel_type"]
    gamma, shift, degree = call.get("kernel_params") or (0.0, 0.0, 0.0)
    if name == "RBF":
        return torch.exp(-gamma * (x[:, None] - vectors).square().sum(-1))
    product = x @ vectors.T
    if name == "LINEAR":
        return product
    # POLY, or else SIGMOID.
    return (gamma * product + shift) ** int(degree) if name == "POLY" else torch.tanh(gamma * product + shift)


@dataclass(frozen=True)
class _Trees:
    """Trees as tables with a row for each node; leaves are their own children.

    Attributes:
        feature: the feature that a node compares.
        value: what it compares the feature with.
        mode: how, as an index of `_MODES`; -1 for a leaf.
        branches: the rows of the children: if the comparison is false, and if it is true.
        missing: whether NaN counts as true.
        members: for each node, the numbers of a comparison with `MEMBER`.
        roots: the rows of the roots.
        weights: what a leaf contributes to each target: [nodes, targets].
        has: whether it contributes to the target.
    """

    feature: Tensor
    value: Tensor
    mode: Tensor
    branches: Tensor
    missing: Tensor
    members: list[Tensor]
    roots: Tensor
    weights: Tensor
    has: Tensor

    def leaves(self, x: Tensor) -> Tensor:
        """Return the row of the leaf that each tree reaches: [examples, trees]."""
        at = self.roots.expand(len(x), -1)
        while True:
            below = self.branches[at, self._chosen(x, at).long()]
            if torch.equal(below, at):
                return at
            at = below

    def _chosen(self, x: Tensor, at: Tensor) -> Tensor:
        """Return whether the comparison of the node at each row of `at` is true: [examples, trees]."""
        read = x.gather(1, self.feature[at])
        chosen = torch.zeros_like(read, dtype=torch.bool)
        for index, name in enumerate(_MODES[:-1]):
            chosen |= (self.mode[at] == index) & _COMPARE[name](read, self.value[at])
        for node, members in enumerate(self.members):
            if len(members):
                chosen |= (at == node) & torch.isin(read, members)
        return chosen | (read.isnan() & self.missing[at])

    def combined(self, leaves: Tensor, aggregate: str) -> Tensor:
        """Return the sum, the mean, the smallest or the largest of what leaves contribute: [examples, targets]."""
        weights, has = self.weights[leaves], self.has[leaves]
        if aggregate in {"SUM", "AVERAGE"}:
            return weights.sum(1) / (len(self.roots) if aggregate == "AVERAGE" else 1)
        sign = 1.0 if aggregate == "MAX" else -1.0
        best = (weights * sign).masked_fill(~has, -math.inf).amax(1) * sign
        return torch.where(has.any(1), best, 0.0)  # 0 where no leaf contributes to the target


def _tree_attributes(call: NodeCall, name: str) -> Any:
    """Return an attribute that has been a list, or a tensor of the same name with `_as_tensor`."""
    given = call.get(f"{name}_as_tensor")
    return call.get(name) if given is None else given


def _listed_trees(call: NodeCall, kind: str, targets: int) -> _Trees:
    """Return the trees of versions in which each node has a tree and a number in it."""
    keys = list(zip(call["nodes_treeids"], call["nodes_nodeids"], strict=True))
    rows = {key: row for row, key in enumerate(keys)}
    modes = [str(mode).removeprefix("BRANCH_") for mode in call["nodes_modes"]]
    children = [call["nodes_falsenodeids"], call["nodes_truenodeids"]]
    branches = [
        [row, row] if mode == "LEAF" else [rows[key[0], child[row]] for child in children]
        for row, (key, mode) in enumerate(zip(keys, modes, strict=True))
    ]
    below = {child for row, pair in enumerate(branches) for child in pair if child != row}
    weights, has = _contributions(call, kind, rows, targets)
    missing = call.get("nodes_missing_value_tracks_true") or [0] * len(keys)
    return _Trees(
        torch.tensor([*call["nodes_featureids"]]),
        _numbers(_tree_attributes(call, "nodes_values")),
        torch.tensor([_MODES.index(mode) if mode in _MODES else -1 for mode in modes]),
        torch.tensor(branches),
        torch.tensor([*missing], dtype=torch.bool),
        [],  # these versions have no `MEMBER`
        torch.tensor([row for row in range(len(keys)) if row not in below]),
        weights,
        has,
    )


def _contributions(call: NodeCall, kind: str, rows: Mapping[Any, int], targets: int) -> tuple[Tensor, Tensor]:
    """Return `_Trees.weights` and `has`; attributes begin with `kind`, and `rows` are by tree and node."""
    weights = torch.zeros(len(rows), targets, dtype=torch.float64)
    has = torch.zeros(len(rows), targets, dtype=torch.bool)
    found = zip(call[f"{kind}_treeids"], call[f"{kind}_nodeids"], strict=True)
    at = torch.tensor([rows[key] for key in found]), torch.tensor([*call[f"{kind}_ids"]])
    weights.index_put_(at, _numbers(_tree_attributes(call, f"{kind}_weights")), accumulate=True)
    has[at] = True
    return weights, has


def _regression_trees(call: NodeCall, x: Tensor) -> Tensor:
    trees = _listed_trees(call, "target", call["n_targets"])
    result = trees.combined(trees.leaves(x.double()), call["aggregate_function"])
    base = _tree_attributes(call, "base_values")
    result = result if base is None or not len(base) else result + _numbers(base)
    return _transformed(result, call["post_transform"])


def _trees(call: NodeCall, x: Tensor) -> Tensor:
    """Return the result of the form in which leaves have a table of their own, behind that of the nodes."""
    count, leaves = len(call["nodes_featureids"]), len(call["leaf_targetids"])
    pairs = zip(("false", "true"), ("nodes_falseleafs", "nodes_trueleafs"), strict=True)
    branches = torch.stack(  # an id with a flag is that of a leaf
        [torch.tensor(call[f"nodes_{side}nodeids"]) + count * torch.tensor(call[flags]) for side, flags in pairs], 1
    )
    leaf_rows = torch.arange(count, count + leaves)
    weights = torch.zeros(count + leaves, call["n_targets"], dtype=torch.float64)
    at = leaf_rows, torch.tensor(call["leaf_targetids"])
    weights[at] = call["leaf_weights"].double()
    has = torch.zeros_like(weights, dtype=torch.bool)
    has[at] = True
    modes = [*call["nodes_modes"].tolist(), *[-1] * leaves]
    missing = call.get("nodes_missing_value_tracks_true") or [0] * count
    trees = _Trees(
        torch.tensor([*call["nodes_featureids"], *[0] * leaves]),
        torch.cat([call["nodes_splits"].double(), torch.zeros(leaves, dtype=torch.float64)]),
        torch.tensor(modes),
        torch.cat([branches, leaf_rows[:, None].expand(-1, 2)]),
        torch.tensor([*missing, *[0] * leaves], dtype=torch.bool),
        _members(modes, call.get("membership_values")),
        torch.tensor(call["tree_roots"]),
        weights,
        has,
    )
    result = trees.combined(trees.leaves(x.double()), _AGGREGATES[call["aggregate_function"]])
    return _transformed(result, _TRANSFORMS[call["post_transform"]])


def _members(modes: list[int], values: Tensor | None) -> list[Tensor]:
    """Return the numbers that each node compares with; NaN ends those of a node."""
    if values is None:
        return []
    parts: list[list[float]] = [[]]
    for value in values.tolist():
        if math.isnan(value):
            parts.append([])
        else:
            parts[-1].append(value)
    following = iter(parts)
    return [
        torch.tensor(next(following) if mode == _MODES.index("MEMBER") else [], dtype=torch.float64) for mode in modes
    ]


def _encoded(call: NodeCall, x: Tensor) -> Tensor:
    """Return a number for each number; those of strings are left out."""
    keys, values = (_of_label(call, name) for name in ("keys", "values"))
    missing = call.get("default_tensor")
    if missing is None:
        missing = call["default_float" if values.is_floating_point() else "default_int64"]
    found = x.reshape(-1, 1) == keys.to(x.dtype)
    found = found | (x.reshape(-1, 1).isnan() & keys.isnan()) if x.is_floating_point() else found
    picked = values[found.byte().argmax(1)]
    return torch.where(found.any(1), picked, torch.as_tensor(missing, dtype=values.dtype)).reshape(x.shape)


def _of_label(call: NodeCall, name: str) -> Tensor:
    """Return the keys or the values of a `LabelEncoder`, of whatever type the node has them."""
    for kind in (f"{name}_tensor", f"{name}_floats", f"{name}_int64s"):
        if isinstance(call.get(kind), Tensor):
            return call[kind]
        if call.get(kind) is not None:
            return torch.tensor([*call[kind]], dtype=torch.float64 if kind.endswith("floats") else torch.int64)
    raise UnsupportedError("strings")


def _counted(call: NodeCall, x: Tensor) -> Tensor:
    """Return for each n-gram of integers its count in a row (TF), its weight if it occurs (IDF), or both multiplied."""
    rows = x.reshape(1, -1) if x.dim() == 1 else x
    places, starts, pool = call["ngram_indexes"], call["ngram_counts"], call.get("pool_int64s")
    if pool is None:
        raise UnsupportedError("strings")
    counts = torch.zeros(len(rows), 1 + max(places), dtype=torch.float64)
    for size, column, gram in _grams(starts, pool, places):
        for skip in range(call["max_skip_count"] + 1 if size > 1 else 1):
            span = (size - 1) * (skip + 1) + 1
            if call["min_gram_length"] <= size <= call["max_gram_length"] and span <= rows.shape[1]:
                found = (rows.unfold(1, span, 1)[..., :: skip + 1] == torch.tensor(gram)).all(-1)
                counts[:, column] += found.sum(1)
    weights = torch.ones(counts.shape[1], dtype=torch.float64)
    if call.get("weights") is not None:
        weights[torch.tensor([*places])] = _numbers(call["weights"])
    result = {"TF": counts, "IDF": (counts > 0) * weights, "TFIDF": counts * weights}[call["mode"]]
    return result[0] if x.dim() == 1 else result


def _grams(starts: Any, pool: Any, places: Any) -> list[tuple[int, int, list[int]]]:
    """Return the length, the column and the integers of each n-gram of a pool."""
    found, ends = [], [*starts[1:], len(pool)]
    for size, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        found += [(size, [*pool[at : at + size]]) for at in range(start, end, size)]
    return [(size, column, gram) for column, (size, gram) in zip(places, found, strict=True)]


OPERATORS = (
    Operator("ArrayFeatureExtractor", plain(lambda x, at: x[..., at.reshape(-1).long()].reshape(-1, at.numel())), _ML),
    Operator("Binarizer", lambda call, x: (x > call["threshold"]).to(x.dtype), _ML, jumps=True),
    Operator("FeatureVectorizer", plain(lambda *inputs: torch.cat([item.double() for item in inputs], -1)), _ML),
    Operator("Imputer", _imputed, _ML),
    Operator("LabelEncoder", _encoded, _ML),
    Operator("LinearRegressor", _linear, _ML),
    Operator("Normalizer", _normalized, _ML),
    Operator("OneHotEncoder", _one_hot, _ML),
    Operator("SVMRegressor", _supported, _ML),
    Operator("Scaler", _scaled, _ML),
    Operator("TfIdfVectorizer", _counted),
    Operator("TreeEnsemble", _trees, _ML, jumps=True),
    Operator("TreeEnsembleClassifier", None, _ML, jumps=True),  # its scores have a form that depends on the labels
    Operator("TreeEnsembleRegressor", _regression_trees, _ML, jumps=True),
)
