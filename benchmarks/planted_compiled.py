import sys,time
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import torch
from random import Random
from zoo import ZOO
from filch.export import export, optimize
from filch.steal import steal_forward, argument_tensors, ModuleInfo
from filch.compare import compare
found=[0,0]
def engines(what, program, inputs):
    from compiled_plants import OrtPlants
    if what == "ort":
        yield "extended", lambda: OrtPlants(program,inputs,"extended")
        yield "all", lambda: OrtPlants(program,inputs,"all")
    if what == "openvino":
        from openvino_plants import OpenVinoPlants
        yield "openvino", lambda: OpenVinoPlants(program,inputs)
    if what == "inductor":
        from inductor_plants import InductorPlants
        yield "inductor", lambda: InductorPlants(program,inputs)
seed=sys.argv[1]; what=sys.argv[2]
for n in sys.argv[3:]:
    model,args,kwargs=ZOO[n]()
    program=export(model,args,kwargs)
    if what!="inductor": program=optimize(program)
    with torch.no_grad(), steal_forward(model,submodules=True) as capture: model(*args,**kwargs)
    taken = argument_tensors(ModuleInfo.of(model).parameters, args, kwargs)
    inputs = {value: taken[path] for value, path in program.inputs.items()}
    for level, make in engines(what,program,inputs):
        t=time.time()
        plants=make()
        r=compare(capture,program,backend=plants.clean,stages=("compiled",))
        print(n,level,"clean",r.close,r.headline(), time.time()-t,flush=True)
        random=Random(f"{seed} {n} {level}")
        for kind in plants.kinds:
            t=time.time()
            plant=plants.plant(kind,random)
            if plant is None:
                print("   none",kind); continue
            t1=time.time()
            r=compare(capture,program,backend=plant.backend,stages=("compiled",))
            first=r.first_divergence
            ok=first is not None and first.node==plant.node
            found[0]+=ok; found[1]+=1
            print("  ","OK" if ok else "MISSED",kind,plant.node,plant.text,f"{t1-t:.1f} {time.time()-t1:.1f}", flush=True)
            if not ok: print("      first",first)
print(found)
