"""Operators that draw random numbers."""

from ._operator import Operator, of_torch

OPERATORS = (
    Operator("Bernoulli", torch="bernoulli", random=True),
    Operator("Multinomial", torch="multinomial", random=True),
    Operator("RandomNormal", torch="normal randn", random=True),
    Operator("RandomNormalLike", torch="randn_like", random=True),
    Operator("RandomUniform", torch="rand uniform", random=True),
    Operator("RandomUniformLike", torch="rand_like", random=True),
    of_torch("cauchy exponential geometric gumbel_softmax log_normal poisson", random=True),
    of_torch("randint randint_like random randperm", random=True),
)
