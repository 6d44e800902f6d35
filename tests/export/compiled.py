"""Stand-in that each process of a job runs first: blocks are compiled without a compiler of C++, and printed."""

import torch

compiling = torch.nn.Module.compile


def compiled(self, *arguments, **keywords):
    print(f"compiled {type(self).__name__}\n", end="", flush=True)
    return compiling(self, *arguments, backend="aot_eager", **keywords)


torch.nn.Module.compile = compiled
