"""All private names of torch that Filch uses.

Names of ATen operators, such as `aten._to_copy`, are not among them: exported programs contain these.
"""

from typing import TYPE_CHECKING, Any

from ._names import PrivateNames

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, _compile as compile_module, _neg_view as neg_view
    from torch._C import (
        DisableTorchFunction,
        _AutoDispatchBelowAutograd as AutoDispatchBelowAutograd,
        _current_graph_task_id as current_graph_task_id,
        _DisableFuncTorch as DisableFuncTorch,
        _is_torch_function_mode_enabled as is_torch_function_mode_enabled,
        _is_tracing as is_tracing,
        _len_torch_dispatch_stack as len_torch_dispatch_stack,
    )
    from torch._decomp.decompositions import native_batch_norm
    from torch._dynamo import config as dynamo_config, lookup_backend
    from torch._dynamo.convert_frame import compile_frame, get_compile_id, preserve_global_state
    from torch._dynamo.exc import RestartAnalysis
    from torch._dynamo.utils import get_metrics_context, orig_code_map
    from torch._export.serde import schema
    from torch._export.serde.serialize import ExportedProgramDeserializer
    from torch._functorch import config as functorch_config
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
    from torch._guards import CompileContext, compile_context
    from torch._inductor import config as inductor_config, list_mode_options, list_options
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.compiler_bisector import CompilerBisector
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.pattern_matcher import PatternMatcherPass
    from torch._ops import (
        HigherOrderOperator,
        OpOverload,
        OpOverloadPacket,
        _len_torch_dispatch_stack_pre_dispatch as len_torch_dispatch_stack_pre_dispatch,
    )
    from torch.autograd import _make_grads as make_grads
    from torch.autograd.grad_mode import _unsafe_preserve_version_counter as unsafe_preserve_version_counter
    from torch.fx.node import _type_repr as type_repr
    from torch.utils import _pytree as pytree
    from torch.utils._mode_utils import no_dispatch
    from torch.utils._python_dispatch import (
        TorchDispatchMode,
        _disable_current_modes as disable_current_modes,
        _get_current_dispatch_mode_stack as get_current_dispatch_mode_stack,
    )
    from torch.utils._sympy import functions as sympy_functions

    # Torch's stubs lack these, or do not say what they take.
    CAPTURE_STRATEGIES: tuple[Any, ...]
    GraphLowering: Any
    AsyncCollectiveTensor: type[Tensor]
    IndexPutFallback: Any
    ScatterFallback: Any
    call_impl: Any
    current_autograd_node: Callable[[], Any]
    debug_has_internal_overlap: Callable[[Tensor], int]
    disabled_torch_function_impl: Any
    expired: Callable[[int], bool]
    free_weak_ref: Callable[[int], None]
    get_config_copy: Callable[[], dict[str, Any]]
    get_dynamic_layer_stack_depth: Callable[[], int]
    get_sequence_nr: Callable[[], int]
    is_functorch_wrapped_tensor: Callable[[Tensor], bool]
    make_per_channel_quantized_tensor: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    make_per_tensor_quantized_tensor: Callable[[Tensor, float, int], Tensor]
    make_subclass: Any
    pop_dynamic_layer_stack_and_undo_to_depth: Callable[[int], None]
    queue_callback: Callable[[Callable[[], None]], None]
    resolve_process_group: Callable[[str], Any]
    saved_tensors_hooks_enable: Callable[[], None]
    saved_tensors_hooks_get_disabled_error_message: Callable[[], str | None]
    kernel_function: Any
    kernel_function_of_cpp: Any
    kernel_function_of_triton: Any
    weak_ref: Callable[[Any], int]

NAMES = PrivateNames(
    "torch",
    {
        "AsyncCollectiveTensor": "torch.distributed._functional_collectives:AsyncCollectiveTensor",
        "AutoDispatchBelowAutograd": "torch._C:_AutoDispatchBelowAutograd",
        "CAPTURE_STRATEGIES": "torch.onnx._internal.exporter._capture_strategies:CAPTURE_STRATEGIES",
        "CompileContext": "torch._guards:CompileContext",
        "CompilerBisector": "torch._inductor.compiler_bisector:CompilerBisector",
        "DisableFuncTorch": "torch._C:_DisableFuncTorch",
        "DisableTorchFunction": "torch._C:DisableTorchFunction",
        "ExportedProgramDeserializer": "torch._export.serde.serialize:ExportedProgramDeserializer",
        "GraphLowering": "torch._inductor.graph:GraphLowering",
        "HigherOrderOperator": "torch._ops:HigherOrderOperator",
        "IndexPutFallback": "torch._inductor.ir:IndexPutFallback",
        "OpOverload": "torch._ops:OpOverload",
        "OpOverloadPacket": "torch._ops:OpOverloadPacket",
        "PatternMatcherPass": "torch._inductor.pattern_matcher:PatternMatcherPass",
        "RestartAnalysis": "torch._dynamo.exc:RestartAnalysis",
        "ScatterFallback": "torch._inductor.ir:ScatterFallback",
        "TorchDispatchMode": "torch.utils._python_dispatch:TorchDispatchMode",
        "call_impl": "torch.nn:Module._call_impl",
        "compile_context": "torch._guards:compile_context",
        "compile_frame": "torch._dynamo.convert_frame:compile_frame",
        "compile_fx": "torch._inductor.compile_fx:compile_fx",
        "compile_fx_inner": "torch._inductor.compile_fx:compile_fx_inner",
        "compile_module": "torch._compile",
        "current_autograd_node": "torch._C:_current_autograd_node",
        "current_graph_task_id": "torch._C:_current_graph_task_id",
        "debug_has_internal_overlap": "torch:_debug_has_internal_overlap",
        "disable_current_modes": "torch.utils._python_dispatch:_disable_current_modes",
        "disabled_torch_function_impl": "torch._C:_disabled_torch_function_impl",
        "dynamo_config": "torch._dynamo.config",
        "expired": "torch:UntypedStorage._expired",
        "free_weak_ref": "torch:UntypedStorage._free_weak_ref",
        "functorch_config": "torch._functorch.config",
        "get_compile_id": "torch._dynamo.convert_frame:get_compile_id",
        "get_config_copy": "torch._inductor.config:get_config_copy",
        "get_current_dispatch_mode_stack": "torch.utils._python_dispatch:_get_current_dispatch_mode_stack",
        "get_dynamic_layer_stack_depth": "torch._C._functorch:get_dynamic_layer_stack_depth",
        "get_metrics_context": "torch._dynamo.utils:get_metrics_context",
        "get_sequence_nr": "torch.autograd:_get_sequence_nr",
        "inductor_config": "torch._inductor.config",
        "is_functorch_wrapped_tensor": "torch._C._functorch:is_functorch_wrapped_tensor",
        "is_torch_function_mode_enabled": "torch._C:_is_torch_function_mode_enabled",
        "is_tracing": "torch._C:_is_tracing",
        "kernel_function": "torch._inductor.debug:set_kernel_post_grad_provenance_tracing",
        "kernel_function_of_cpp": "torch._inductor.codegen.cpp:set_kernel_post_grad_provenance_tracing",
        "kernel_function_of_triton": "torch._inductor.codegen.triton:set_kernel_post_grad_provenance_tracing",
        "len_torch_dispatch_stack": "torch._C:_len_torch_dispatch_stack",
        "len_torch_dispatch_stack_pre_dispatch": "torch._ops:_len_torch_dispatch_stack_pre_dispatch",
        "list_mode_options": "torch._inductor:list_mode_options",
        "list_options": "torch._inductor:list_options",
        "lookup_backend": "torch._dynamo:lookup_backend",
        "make_grads": "torch.autograd:_make_grads",
        "make_per_channel_quantized_tensor": "torch:_make_per_channel_quantized_tensor",
        "make_per_tensor_quantized_tensor": "torch:_make_per_tensor_quantized_tensor",
        "make_subclass": "torch:Tensor._make_subclass",
        "native_batch_norm": "torch._decomp.decompositions:native_batch_norm",
        "neg_view": "torch:_neg_view",
        "no_dispatch": "torch.utils._mode_utils:no_dispatch",
        "orig_code_map": "torch._dynamo.utils:orig_code_map",
        "pop_dynamic_layer_stack_and_undo_to_depth": "torch._C._functorch:pop_dynamic_layer_stack_and_undo_to_depth",
        "preserve_global_state": "torch._dynamo.convert_frame:preserve_global_state",
        "pytree": "torch.utils._pytree",
        "queue_callback": "torch.autograd:Variable._execution_engine.queue_callback",
        "resolve_process_group": "torch.distributed.distributed_c10d:_resolve_process_group",
        "saved_tensors_hooks_enable": "torch._C._autograd:_saved_tensors_hooks_enable",
        "saved_tensors_hooks_get_disabled_error_message": (
            "torch._C._autograd:_saved_tensors_hooks_get_disabled_error_message"
        ),
        "schema": "torch._export.serde.schema",
        "select_decomp_table": "torch._inductor.decomposition:select_decomp_table",
        "sympy_functions": "torch.utils._sympy.functions",
        "temporarily_clear_interpreter_stack": "torch._functorch.pyfunctorch:temporarily_clear_interpreter_stack",
        "type_repr": "torch.fx.node:_type_repr",
        "unsafe_preserve_version_counter": "torch.autograd.grad_mode:_unsafe_preserve_version_counter",
        "weak_ref": "torch:UntypedStorage._weak_ref",
    },
)
# Inductor calls this function for each kernel, and these modules import it by its name.
KERNEL_FUNCTIONS = ("kernel_function", "kernel_function_of_cpp", "kernel_function_of_triton")
# The submodule that a wrapper adds to the names of all modules below it.
WRAPPERS = {
    "torch.nn.parallel.distributed:DistributedDataParallel": "module",
    "torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel": "_fsdp_wrapped_module",
    "torch._dynamo.eval_frame:OptimizedModule": "_orig_mod",
}
TRACE_LOG = "torch.__trace"  # the logger of structured traces, to which `TORCH_TRACE` adds a handler
DYNAMO = "_dynamo"  # the folder of torch that has its code
VERBOSE_LOGS = ("torch.onnx", "torch.export", "torch._export", "torch.fx", "torch._dynamo")
# Private attributes of objects, by the class that has them.
ATTRIBUTES = {
    "torch:Tensor": ("_base", "_indices", "_is_zerotensor", "_post_accumulate_grad_hooks", "_values", "_version"),
    "torch:UntypedStorage": ("_cdata",),
    "torch._dynamo.eval_frame:OptimizedModule": ("_orig_mod",),
    "torch._ops:HigherOrderOperator": ("_name",),
    "torch._ops:OpOverload": ("_dispatch_cache", "_opname", "_overloadname", "_schema"),
    "torch.autograd.graph:Node": ("_sequence_nr",),
    "torch.distributed.tensor:DTensor": ("_local_tensor", "_spec"),
    "torch.export:ExportedProgram": (
        *("_constants", "_graph_module", "_graph_signature", "_module_call_graph", "_state_dict"),
    ),
    "torch.masked:MaskedTensor": ("_masked_data", "_masked_mask"),
    "torch.nested._internal.nested_tensor:NestedTensor": ("_ragged_idx",),
    "torch.nn:Buffer": ("_is_buffer",),
    "torch.nn:Module": (
        *("_buffers", "_compiled_call_impl", "_forward_hooks", "_forward_pre_hooks", "_modules", "_parameters"),
    ),
}

if not TYPE_CHECKING:  # else any name would do
    __getattr__ = NAMES.find
