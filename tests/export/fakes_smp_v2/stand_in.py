"""A stand-in for ``torch.sagemaker``, which exists in SageMaker's containers only: it leaves models as they are."""

import importlib.abc
import importlib.machinery
import sys
import types


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the library's modules when a script imports them, without importing torch for programs that do not."""

    def find_spec(self, name, *_):
        if name == "torch.sagemaker" or name.startswith("torch.sagemaker."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return types.ModuleType(spec.name)

    def exec_module(self, module):
        name = module.__name__.removeprefix("torch.sagemaker").removeprefix(".")
        if name == "":
            module.init = lambda *_: print("library initialized", flush=True)
            module.transform = lambda model, **_: (print("model transformed", flush=True), model)[1]
        if name == "grad_norm":
            module.clip_grad_norm_ = lambda model, most: model.clip_grad_norm_(most)
        if name == "state":
            module.tp_rank = module.ep_rank = 0
            module.ranker = types.SimpleNamespace(get_rep_rank=lambda _: 0)
        if name.startswith("distributed.checkpoint"):
            self.save_like_pytorch(module)

    def save_like_pytorch(self, module):
        """The library's saver and loader have PyTorch's interface."""
        from torch.distributed import checkpoint

        pending = []

        def async_save(contents, *, checkpoint_id, process_group, coordinator_rank):
            pending.append((contents, checkpoint_id, process_group))

        def maybe_finalize_async_calls(*, blocking, process_group):
            while pending:
                contents, place, group = pending.pop()
                checkpoint.save(contents, checkpoint_id=place, process_group=group)

        def load(contents, *, storage_reader, process_group, coordinator_rank):
            checkpoint.load(contents, storage_reader=storage_reader, process_group=process_group)

        module.async_save = async_save
        module.maybe_finalize_async_calls = maybe_finalize_async_calls
        module.load = load
        module.DistributedFileSystemReader = checkpoint.FileSystemReader


sys.meta_path.insert(0, Finder())
if "torch" in sys.modules:
    from torch.distributed.checkpoint import optimizer

    load_sharded = optimizer.load_sharded_optimizer_state_dict

    def load_for_group(*, process_group=None, **options):  # PyTorch of the containers takes the group
        return load_sharded(**options)

    optimizer.load_sharded_optimizer_state_dict = load_for_group
