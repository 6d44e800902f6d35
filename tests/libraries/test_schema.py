"""The schema is complete, consistent with itself, and says what it says for every version."""

import tomllib
from pathlib import Path

import pytest

from smp_advisor.errors import PlanError
from smp_advisor.libraries import image, schema, versions, violations
from smp_advisor.libraries.library import LIBRARIES, get_library, plan_defaults
from smp_advisor.libraries.version import default_version

TYPES = {"int": int, "float": float, "bool": bool, "str": str}
SMP = schema("smp-v1")
EVERY_SETTING = [
    (library, parameter)
    for library in LIBRARIES
    for parameter in (*schema(library).parameters, *schema(library).settings)
]
EVERY_RULE = [(library, rule) for library in LIBRARIES for rule in schema(library).rules]
EVERY_VERSION = [(library, version) for library in LIBRARIES for version in versions(library)]


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_field_of_a_plan_is_a_parameter_or_a_script_setting(library):
    stated, kind = schema(library), get_library(library).plan
    settings = {setting.key for setting in stated.settings}
    fields = set(plan_defaults(kind)) - {"library", "version"} - settings
    assert fields <= {parameter.key for parameter in stated.parameters}
    users = {one.key for one in stated.parameters if one.audience == "user" and not one.alias_of}
    assert users <= fields
    assert settings <= set(plan_defaults(kind))
    assert plan_defaults(kind)["library"] == library
    assert plan_defaults(kind)["version"] == default_version(library)


def test_a_parameter_states_itself_consistently(subtests):
    for library, parameter in EVERY_SETTING:
        with subtests.test(f"{library} {parameter.key}"):
            assert parameter.sources
            assert parameter.title
            assert parameter.doc.endswith(".")
            assert parameter.default is None or type(parameter.default) is TYPES[parameter.type]
            if parameter.choices and parameter.default is not None:
                assert parameter.default in parameter.choices
            if parameter.minimum is not None and parameter.default is not None:
                assert parameter.default >= parameter.minimum
            if parameter.alias_of:
                assert schema(library).parameter(parameter.alias_of) is not None


def test_a_rule_speaks_of_known_settings(subtests):
    for library, rule in EVERY_RULE:
        with subtests.test(f"{library} {rule.id}"):
            script = {setting.key for setting in schema(library).settings}
            assert set(rule.keys) <= {*(one.key for one in schema(library).parameters), *script}
            assert rule.script_setting == (not script.isdisjoint(rule.keys))
            assert not rule.what.endswith(".")
            assert not rule.fix.endswith(".")


def test_the_defaults_of_a_version_break_none_of_its_rules(subtests):
    for library, version in EVERY_VERSION:
        with subtests.test(f"{library} {version}"):
            defaults = {key: value for key, value in schema(library).defaults(version).items() if value is not None}
            if library == "smp-v1":
                for key in ("partitions", "ddp_dist_backend", "ddp_port"):  # their presence is what the rules ask about
                    defaults.pop(key, None)
            assert list(violations(defaults, version=version, library=library)) == []


def test_parameters_come_with_their_version_and_go_with_it():
    assert "fp16" not in SMP.defaults("1.9.0")
    assert "fp16" in SMP.defaults("1.10.0")
    assert "deterministic_server" in SMP.defaults("1.5.0")
    assert "deterministic_server" not in SMP.defaults("1.15.0")
    gone = next(violations({"deterministic_server": True}, version="1.15.0"))
    assert "no longer takes deterministic_server" in gone.text
    renamed = next(violations({"pipeline_parallel_degree": 2}, version="1.5.0"))
    assert "in 1.5.0, its name is partitions" in renamed.text


def test_script_rules_are_left_out_where_the_script_is_unknown():
    parameters = {"offload_activations": True, "microbatches": 3}
    assert list(violations(parameters, version="1.15.0")) == []
    with_script = violations(
        parameters, version="1.15.0", settings={"batch_size": 4, "activation_checkpointing": False}
    )
    assert {one.rule for one in with_script} == {"offload-needs-checkpointing", "batch-divisible"}


def test_an_unknown_version_and_faulty_values_are_refused():
    parameters = {"microbatches": "4", "active_microbatches": 9, "fp16": True, "bf16": True, "x": 1}
    found = {one.rule for one in violations(parameters, version="1.15.0")}
    assert found == {"type", "unknown", "bf16-excludes-fp16", "bf16-needs-sharding"}

    with pytest.raises(PlanError, match=r"SMP v1 has no version '1.16.0': known versions are 1.4.0, .*, 1.15.0\.$"):
        image("smp-v1", "1.16.0")
    with pytest.raises(PlanError, match=r"library must be one of smp-v1, .*, fsdp, not 'deepspeed'"):
        schema("deepspeed")


FIRING = tomllib.loads(Path(__file__).with_name("rules.toml").read_text("utf-8"))


def test_every_rule_is_tried():
    assert {rule.id for rule in SMP.rules} == set(FIRING)


def test_a_rule_fires_and_a_near_identical_dictionary_passes(subtests):
    for rule in FIRING:
        with subtests.test(rule):
            entry = FIRING[rule]
            where = {"version": entry["version"], "settings": entry.get("settings")}
            assert [one.rule for one in violations(entry["parameters"], **where)] == [rule]
            assert list(violations(entry["parameters"] | entry["instead"], **where)) == []
