"""Record `generate` of a Hugging Face Llama with its cache, and compare one call with the exported graph."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from filch.compare import compare
from filch.export import cache_argument, export, optimize
from filch.steal import describe, steal_forward


def llama() -> tuple[LlamaForCausalLM, tuple[()], dict[str, torch.Tensor]]:
    """Return a small Llama with random weights, and a prompt."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
    )
    return LlamaForCausalLM(config).eval(), (), {"input_ids": torch.randint(0, 512, (1, 12))}


if __name__ == "__main__":
    model, args, kwargs = llama()

    # Record each module in each step of `generate`; each record has the cache as it was at that moment.
    with steal_forward(model, submodules=True) as steps:
        model.generate(**kwargs, max_new_tokens=8, do_sample=False)
    print(f"generate made {len(steps.calls())} calls and {len(steps)} records; the inputs of the last attention:")
    _, given = steps["model.layers.1.self_attn", 7, "I"]
    hidden_states, cache = given["hidden_states"], given[cache_argument(model)]
    print(f"  {describe(hidden_states)} and a cache of {describe(cache.layers[1].keys)} per layer")

    # Compare one call with the optimized graph.
    program = optimize(export(model, args, kwargs))
    with torch.no_grad(), steal_forward(model, submodules=True) as capture:
        model(*args, **kwargs)
    report = compare(capture, program)
    print(report.table("modules", width=80))
    report.assert_close()
