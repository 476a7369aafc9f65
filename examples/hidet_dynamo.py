"""Check ResNet-18 under torch.compile: hidet's document 'Optimize PyTorch Model' with other imports."""

import torch
from resnet18_correctness import resnet18

model, (x,) = resnet18()

with torch.no_grad():
    options = {
        "correctness_report": True,  # print the error of each operator of the compiled graph, relative to PyTorch
        "print_input_graph": True,  # print the graph that Dynamo captured
        "search_space": 0,  # 0: no search, 1: max-autotune, 2: max-autotune in the exhaustive space
    }
    model_opt = torch.compile(model, backend="filch", options=options)
    model_opt(x)
