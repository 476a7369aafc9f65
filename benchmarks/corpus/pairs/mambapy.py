"""Mamba of mambapy, whose language model needs kernels for CUDA: its layers between the same two tables."""

from functools import partial

from torch import Tensor, nn

from support.models.zoo import build

from ._pair import Pair, State, renamed, token_ids

SIZES = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 8, "use_cache": False}


class LanguageModel(nn.Module):
    """Mamba with words before it, and a norm and logits after it."""

    def __init__(self) -> None:
        """Make layers with fresh weights."""
        super().__init__()
        from mambapy.mamba import Mamba, MambaConfig, RMSNorm

        self.embedding = nn.Embedding(96, 32)
        self.mamba = Mamba(MambaConfig(d_model=32, n_layers=3, d_state=8))
        self.norm = RMSNorm(32)
        self.head = nn.Linear(32, 96, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, float32[batch, length, vocabulary]."""
        return self.head(self.norm(self.mamba(self.embedding(tokens))))


def _weights(state: State) -> dict[str, Tensor]:
    return renamed(
        state,
        (r"^backbone\.embeddings", "embedding"),
        (r"^backbone\.norm_f", "norm"),
        (r"^backbone", "mamba"),
        (r"^lm_head", "head"),
    )


PAIRS = {
    "mambapy": Pair(
        partial(build, "MambaForCausalLM", SIZES | {"tie_word_embeddings": False}),
        LanguageModel,
        _weights,
        lambda: ((token_ids(),), (token_ids(),)),
        ("mambapy",),
    )
}
