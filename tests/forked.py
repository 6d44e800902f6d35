"""Programs that run in forks of the process of the tests, which imports PyTorch and transformers once for all."""

import gc
import importlib
import os
import runpy
import sys
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

MODULES = (
    *("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint._fsspec_filesystem", "numpy.ctypeslib"),
    *("torch.distributed.checkpoint.state_dict", "torch.distributed.launcher.api", "transformers.trainer_utils"),
    *("transformers.conversion_mapping", "transformers.convert_slow_tokenizer", "transformers.optimization"),
    *("transformers.trainer_pt_utils", "datasets"),
    "transformers.models.auto.modeling_auto",
    *(f"transformers.models.{family}.modeling_{family}" for family in ("bert", "gpt2", "llama", "t5")),
)


@cache
def import_libraries() -> None:
    """Import what most programs import, and make the table with which transformers saves a model."""
    for module in MODULES:
        importlib.import_module(module)
    sys.modules["transformers.conversion_mapping"].get_checkpoint_conversion_mapping("llama")
    gc.freeze()  # a collection in a fork would copy the pages of all that was imported


def run_forked(
    program: Path, *arguments: object, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Run a file as ``python PROGRAM ARGUMENTS`` does, and return what it printed; a failing program fails the test."""
    import_libraries()
    with TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        pid = os.fork()
        if not pid:
            _run(program, arguments, cwd, environment or {}, (output, errors))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, errors.read_text("utf-8", "replace")[-4000:]
        return output.read_text("utf-8")


def _run(program: Path, arguments: tuple, cwd: Path | None, environment: Mapping[str, str], files: tuple) -> None:
    """Run the program in this process, and end the process."""
    status = 1
    try:
        for number, (name, file) in enumerate(zip(("stdout", "stderr"), files, strict=True), 1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 (to the end)
        os.environ |= environment
        os.chdir(cwd or Path.cwd())
        sys.argv = [str(program), *map(str, arguments)]
        sys.path[:0] = [str(program.parent)]
        runpy.run_path(str(program), run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 (of any program)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
