"""Profiles that tests share, and modules in a few lines."""

from functools import cache

from tests.deferred import Deferred

nn = Deferred("torch.nn")
PlainGPT = Deferred("tests.profiling.plain_models", "PlainGPT")
profile_with_fallbacks = Deferred("smp_advisor.profiling.fallback", "profile_with_fallbacks")
read_model = Deferred("smp_advisor.profiling.profiled_model", "read_model")
Settings = Deferred("smp_advisor.profiling.traced_steps", "Settings")


def profiled(model, **settings):
    """Profile of a model, traced in this process."""
    values = {"precision": "bf16", "attention": "fused", "sequence": 64} | settings
    return profile_with_fallbacks(read_model(model), Settings(**values))


@cache
def plain_profile():
    """Profile of a small GPT, which many tests read."""
    return profiled(PlainGPT(layers=6), sequence=256)


def confidence(profile, figure):
    return next(source.confidence for source in profile.provenance if source.figure == figure)


def net(forward, **parts):
    """A module with these parts, whose forward method is a function of the module and the inputs."""
    module = type("Net", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module
