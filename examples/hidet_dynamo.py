"""ResNet-18 through torch.compile, checked: hidet's document 'Optimize PyTorch Model' with its imports changed."""

import torch
from resnet18_correctness import resnet18

model, (x,) = resnet18()

with torch.no_grad():
    options = {
        "correctness_report": True,  # print how far each operator of the compiled graph is from PyTorch's
        "print_input_graph": True,  # print the graph that Dynamo hands over
        "search_space": 0,  # 0: no search, 1: max-autotune, 2: max-autotune in the exhaustive space
    }
    model_opt = torch.compile(model, backend="filch", options=options)
    model_opt(x)
